"""What a scheduler or a search algorithm was made with, as far as its attributes tell."""

from __future__ import annotations

from typing import Any

from ray.tune.search import Repeater, SearchAlgorithm, SearchGenerator
from ray.tune.search.repeater import TRIAL_INDEX

__all__ = ["described", "innermost_searcher", "repeat_index"]

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
