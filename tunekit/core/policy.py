"""When to save a checkpoint: the rules behind :mod:`tunekit.policies`.

A rule looks at one report at a time and says whether a checkpoint is due. It keeps what it needs
per trial, and is told of every saved checkpoint, whoever asked for it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["EveryIterations", "EverySeconds", "OnImprovement", "Rule"]


class Rule(Protocol):
    """Says whether a checkpoint is due."""

    def due(self, trial_id: str, iteration: int, report: Mapping[str, Any], now: float) -> bool:
        """Return whether a report of a trial makes a checkpoint due; ``now`` is in seconds."""
        ...

    def saved(self, trial_id: str, now: float) -> None:
        """Note that a checkpoint of the trial was saved."""
        ...


@dataclass
class EveryIterations:
    """Due at each multiple of ``n`` iterations, like Tune's ``checkpoint_frequency``.

    Example:
        >>> rule = EveryIterations(3)
        >>> [i for i in range(1, 8) if rule.due("a", i, {}, now=0.0)]
        [3, 6]
    """

    n: int

    def due(self, trial_id: str, iteration: int, report: Mapping[str, Any], now: float) -> bool:
        """Return whether a report makes a checkpoint due."""
        return iteration % self.n == 0

    def saved(self, trial_id: str, now: float) -> None:
        """Keep nothing: the rule needs nothing."""


@dataclass
class EverySeconds:
    """Due at the first report that is ``seconds`` after the last checkpoint (or first report).

    Example:
        >>> rule = EverySeconds(10)
        >>> [now for now in (0, 4, 9, 12, 15) if rule.due("a", 1, {}, now)]
        [12, 15]
        >>> rule.saved("a", 15)
        >>> rule.due("a", 1, {}, 20), rule.due("a", 1, {}, 25)
        (False, True)
    """

    seconds: float
    since: dict[str, float] = field(default_factory=dict)

    def due(self, trial_id: str, iteration: int, report: Mapping[str, Any], now: float) -> bool:
        """Return whether a report makes a checkpoint due."""
        return now - self.since.setdefault(trial_id, now) >= self.seconds

    def saved(self, trial_id: str, now: float) -> None:
        """Count from here."""
        self.since[trial_id] = now


@dataclass
class OnImprovement:
    """Due when a reported metric beats that of the best checkpoint so far by more than ``delta``.

    Reports that lack the metric, or have something other than a number there, are passed over.

    Example:
        >>> rule = OnImprovement("loss", "min")
        >>> losses = [1.0, 0.8, 0.9, 0.7]
        >>> for loss in losses:
        ...     if rule.due("a", 1, {"loss": loss}, now=0.0):
        ...         print(loss)
        ...         rule.saved("a", now=0.0)
        1.0
        0.8
        0.7
    """

    metric: str
    mode: str
    delta: float = 0.0
    best: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    def due(self, trial_id: str, iteration: int, report: Mapping[str, Any], now: float) -> bool:
        """Return whether a report makes a checkpoint due."""
        value: Any = report
        for key in self.metric.split("/"):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, numbers.Real):
            return False
        score = float(value) if self.mode == "max" else -float(value)
        best = self.best.get(trial_id)
        if math.isnan(score) or (best is not None and score <= best + self.delta):
            return False
        self.seen[trial_id] = score
        return True

    def saved(self, trial_id: str, now: float) -> None:
        """Note that the due checkpoint was saved: from now on, a value must be better than its."""
        if trial_id in self.seen:
            self.best[trial_id] = self.seen.pop(trial_id)
