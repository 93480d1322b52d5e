"""Add to Tune's searchers: Optuna's own constraints, and the parameter of a domain."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from ray.tune.search.sample import (
    Categorical,
    Float,
    Integer,
    LogUniform,
    Quantized,
)

from tunekit._ray.compat import its
from tunekit.core.parameters import CHOICE, FLOAT, INT, Parameter

#: The attribute of an Optuna trial with the violation of each constraint; 0 if it is satisfied.
CONSTRAINTS = "constraints"


def constrain(searcher: Any, trial_id: str, broken: Sequence[float]) -> bool:
    """Pass a trial's constraints to a searcher whose sampler reads them, as Optuna's does.

    Args:
        searcher: Any searcher.
        trial_id: The trial.
        broken: The amount by which it violates each constraint; 0 if it satisfies it.

    Returns:
        Whether the searcher supports constraints.

    Example:
        >>> from ray.tune.search.basic_variant import BasicVariantGenerator
        >>> constrain(BasicVariantGenerator(), "a", [0.5])
        False
    """
    optuna = sys.modules.get("ray.tune.search.optuna.optuna_search")  # it is slow to import
    if optuna is None or type(searcher) is not optuna.OptunaSearch:
        return False
    study = its(searcher, "_ot_study")
    if getattr(study.sampler, "_constraints_func", None) is None:
        return False
    its(searcher, "_ot_trials")[trial_id].set_user_attr(CONSTRAINTS, list(broken))
    return True


def parameter_of(name: str, domain: Any) -> Parameter | None:
    """Return a hyperparameter with its search space; None if it is fixed or has no bounded range.

    Examples of the latter are ``tune.randn`` and ``tune.sample_from``.

    Example:
        >>> from ray import tune
        >>> found = parameter_of("n", tune.randint(0, 10))
        >>> (found.low, found.high), parameter_of("n", 3)
        ((0, 9), None)
    """
    if isinstance(domain, Categorical):
        return Parameter(name, CHOICE, choices=tuple(domain.categories))
    if not isinstance(domain, (Float, Integer)):
        return None
    low, high, sampler, step = domain.lower, domain.upper, domain.get_sampler(), None
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    if isinstance(sampler, Quantized):
        step, sampler = sampler.q, sampler.sampler
    if isinstance(domain, Integer) and step in (None, 1):
        high -= 1  # Tune's own upper bound is exclusive, unless values are rounded
    kind = INT if isinstance(domain, Integer) else FLOAT
    return Parameter(name, kind, low, high, isinstance(sampler, LogUniform))
