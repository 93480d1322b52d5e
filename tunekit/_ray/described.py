"""What a scheduler, a search algorithm or a search space was made with, as far as that is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.tune.search import Repeater, SearchAlgorithm, SearchGenerator
from ray.tune.search.repeater import TRIAL_INDEX
from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Quantized

from tunekit.core.metrics import flatten
from tunekit.core.parameters import CHOICE, FLOAT, INT, choice

__all__ = ["described", "described_space", "innermost_searcher", "repeat_index"]

_GRID = "/grid_search"  # how the flat names of values end that are tried one after the other

# Texts that are no secrets.
_TEXTS = frozenset({"metric", "mode", "time_attr", "_metric", "_mode", "_time_attr"})


def described(thing: Any) -> dict[str, Any]:
    """The type of a scheduler or searcher, and of Ray's own ones the settings that are numbers.

    Only a few texts are among them, and nothing of a user's own class: it may hold secrets. What it
    counts while it runs is, as it was then: from outside, the one cannot be told from the other.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> known = described(ASHAScheduler(max_t=27))
        >>> known["type"], known["settings"]["max_t"]
        ('AsyncHyperBandScheduler', 27)
    """
    kind = type(thing)
    known = sorted(vars(thing).items()) if kind.__module__.split(".")[0] == "ray" else ()
    settings = {
        name.strip("_"): value
        for name, value in known
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and name in _TEXTS)
    }
    return {"type": kind.__name__, "settings": settings}


def innermost_searcher(search_alg: SearchAlgorithm) -> Any:
    """Return what suggests configurations, inside of what limits, repeats or hands them on."""
    found: Any = search_alg
    while isinstance(found, SearchGenerator) or hasattr(found, "searcher"):
        found = found.searcher
    return found


def repeat_index(search_alg: Any) -> str | None:
    """Return the hyperparameter in which a ``Repeater`` numbers the trials of a configuration.

    None if there is no ``Repeater``, or if it does not number them (``set_index=False``).

    Example:
        >>> from ray.tune.search.optuna import OptunaSearch
        >>> repeat_index(Repeater(OptunaSearch(), repeat=3)), repeat_index(OptunaSearch())
        ('__trial_index__', None)
    """
    found = search_alg
    while found is not None:
        if isinstance(found, Repeater):
            return TRIAL_INDEX if getattr(found, "_set_index", True) else None
        found = getattr(found, "searcher", None)
    return None


def described_space(space: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return what is searched, by flat name: the attributes of its ``Parameter``.

    What is drawn from no bounded range, such as ``tune.randn`` or ``tune.sample_from``, is left
    out, and so is what is not searched.

    Example:
        >>> from ray import tune
        >>> described_space({"lr": tune.loguniform(1e-4, 0.1), "net": {"width": tune.choice([8])}})
        {'lr': {'kind': 'float', 'low': 0.0001, 'high': 0.1, 'log': True},
         'net/width': {'kind': 'choice', 'choices': [8]}}
        >>> described_space({"n": tune.randint(0, 10), "k": tune.grid_search([1, 2]), "epochs": 9})
        {'n': {'kind': 'int', 'low': 0, 'high': 9}, 'k': {'kind': 'choice', 'choices': [1, 2]}}
    """
    found = {}
    for name, value in flatten(space if isinstance(space, Mapping) else {}).items():
        if name.endswith(_GRID) and isinstance(value, (list, tuple)):
            own = {"kind": CHOICE, "choices": [choice(one) for one in value]}
            found[name.removesuffix(_GRID)] = own
        elif isinstance(value, Domain) and (known := _described_domain(value)):
            found[name] = known
    return found


def _described_domain(domain: Domain) -> dict[str, Any] | None:
    if isinstance(domain, Categorical):
        return {"kind": CHOICE, "choices": [choice(one) for one in domain.categories]}
    if not isinstance(domain, (Float, Integer)):
        return None
    low, high, sampler = domain.lower, domain.upper, domain.get_sampler()
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    step = None
    if isinstance(sampler, Quantized):
        step, sampler = sampler.q, sampler.sampler
    if isinstance(domain, Integer) and step in (None, 1):
        high -= 1  # Tune's own upper bound is exclusive, unless values are rounded
    known = {"kind": INT if isinstance(domain, Integer) else FLOAT, "low": low, "high": high}
    if isinstance(sampler, LogUniform):
        known["log"] = True
    elif step is not None:
        known["low"], known["high"] = _multiples(low, high, step)
        known["step"] = step
    return known


def _multiples(low: float, high: float, step: float) -> tuple[float, float]:
    """Return the first and the last multiple of a step in a range, as Tune draws them."""
    least, most = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return least * step, most * step
