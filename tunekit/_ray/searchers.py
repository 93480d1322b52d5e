"""Pass scores to Tune's search algorithms, and read the parameters of a search space."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.result import DEFAULT_METRIC
from ray.tune.search import SearchAlgorithm, SearchGenerator
from ray.tune.search.sample import Categorical, Float, Integer, LogUniform, Quantized

from tunekit._ray.compat import private
from tunekit.core.constraints import Constraint, penalize, violation
from tunekit.core.parameters import CHOICE, FLOAT, INT, Parameter
from tunekit.core.values import finite_number

#: The searchers and schedulers that fit a model to scores, which must be finite, and includes the
#: penalties that replace infeasible ones.
FIT_VALUES = ("AxSearch", "BayesOptSearch", "HEBOSearch", "PB2")
#: The attribute of an Optuna trial with the violation of each constraint; 0 if it is satisfied.
CONSTRAINTS = "constraints"


class ScoredSearch:
    """A search algorithm that gets only validated results.

    A trial that has ended without a score has no result for it.

    Args:
        search_alg: The search algorithm.
        constraints: The constraints on scores.
        scored: Whether the result being processed has a score.
        receives: Whether it gets anything; it already has what is replayed.
    """

    def __init__(
        self,
        search_alg: SearchAlgorithm,
        constraints: Sequence[Constraint],
        *,
        scored: bool,
        receives: bool,
    ):
        self.search_alg, self._constraints = search_alg, constraints
        self._scored, self._receives = scored, receives

    def __getattr__(self, name: str) -> Any:
        return getattr(self.search_alg, name)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass on a result."""
        if self._scored and self._receives:
            self.search_alg.on_trial_result(trial_id, self._penalized(trial_id, result))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass on the end of a trial, with its newest score if it has one."""
        if self._receives:
            passed = None
            if result and self._is_scored(result):
                passed = self._penalized(trial_id, result)
            self.search_alg.on_trial_complete(trial_id, result=passed, error=error)

    def _is_scored(self, result: Mapping[str, Any]) -> bool:
        """Return whether an algorithm can learn from a trial's last result.

        Infinity tells it that the trial is infeasible, unless it fits a model to values.
        """
        values = [result.get(name) for name in objectives_of(self.search_alg)]
        kind = type(innermost_searcher(self.search_alg)).__name__
        allowed = () if kind in FIT_VALUES else (math.inf, -math.inf)
        return all(
            finite_number(value) is not None or (isinstance(value, float) and value in allowed)
            for value in values
        )

    def _penalized(self, trial_id: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result for the algorithm; Optuna's may handle constraints itself."""
        broken = [violation(result, [one]) for one in self._constraints]
        if broken and constrain(innermost_searcher(self.search_alg), trial_id, broken):
            return dict(result)
        return penalize(result, objectives_of(self.search_alg), self._constraints)


def innermost_searcher(search_alg: SearchAlgorithm) -> Any:
    """Return the searcher that suggests configurations, without the wrappers around it."""
    found: Any = search_alg
    while isinstance(found, SearchGenerator) or hasattr(found, "searcher"):
        found = found.searcher
    return found


def objectives_of(search_alg: Any) -> dict[str, str | None]:
    """Return the metrics that a search algorithm learns from, each with its mode.

    Example:
        >>> from ray.tune.search import SearchGenerator, Searcher
        >>> objectives_of(SearchGenerator(Searcher(metric="accuracy", mode="max")))
        {'accuracy': 'max'}
    """
    searcher = innermost_searcher(search_alg)  # a wrapper may have a copy of an unset metric
    metric, mode = getattr(searcher, "metric", None), getattr(searcher, "mode", None)
    names = metric if isinstance(metric, list) else [metric]
    modes = mode if isinstance(mode, list) else [mode] * len(names)
    known = zip(names, modes, strict=True)
    return {name: best for name, best in known if isinstance(name, str) and name != DEFAULT_METRIC}


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
    study = private(searcher, "_ot_study")
    if getattr(study.sampler, "_constraints_func", None) is None:
        return False
    private(searcher, "_ot_trials")[trial_id].set_user_attr(CONSTRAINTS, list(broken))
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
