"""When a validated result ends its trial: the stopping criteria on validated metrics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tunekit.core.confidence import Interval
from tunekit.core.sequential import alike_by_value
from tunekit.core.values import number

__all__ = ["Criteria"]


class Criteria:
    """What was taken out of each trial's ``RunConfig(stop={...})``, because validation decides it.

    Tune compares reports; a metric that validation produces is not training's to stop by.

    Example:
        >>> criteria = Criteria()
        >>> criteria.take_over("a", {"accuracy": 0.9, "training_iteration": 9}, ["accuracy"])
        {'training_iteration': 9}
        >>> criteria.reached("a", {"accuracy": 0.8}), criteria.reached("a", {"accuracy": 0.9})
        (False, True)
    """

    def __init__(self) -> None:
        self._least: dict[str, dict[str, float]] = {}

    def take_over(
        self, trial_id: str, criterion: Mapping[str, float], names: Collection[str]
    ) -> dict[str, float]:
        """Take what a trial's criterion says about metrics of those names; return the rest."""
        taken = {name: least for name, least in criterion.items() if name in names}
        if taken:
            self._least.setdefault(trial_id, {}).update(taken)
        return {name: least for name, least in criterion.items() if name not in taken}

    @property
    def empty(self) -> bool:
        """Return whether there is none."""
        return not self._least

    def reached(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a validated result, flat, ends its trial."""
        least = self._least.get(trial_id, {})
        known = {name: number(result.get(name)) for name in least}
        return any(own is not None and own >= least[name] for name, own in known.items())

    def alike(self, trial_id: str, metric: str, interval: Interval) -> bool:
        """Return whether a trial ends, or does not, wherever in an interval a metric is.

        Example:
            >>> criteria = Criteria()
            >>> rest = criteria.take_over("a", {"accuracy": 0.9}, ["accuracy"])
            >>> [criteria.alike("a", "accuracy", Interval(0.8, high)) for high in (0.85, 0.95)]
            [True, False]
        """
        least = self._least.get(trial_id, {}).get(metric)
        return least is None or alike_by_value(interval, [least])
