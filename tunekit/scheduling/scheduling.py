"""The scheduler of a sweep that runs, by its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.decisions import decides_alike, mode_of
from tunekit.core.confidence import Interval
from tunekit.core.validation import Request
from tunekit.scheduling.base import BaseScheduler, objectives_of
from tunekit.scheduling.next_trial import NextTrial
from tunekit.scheduling.restore import SchedulerRestore
from tunekit.scheduling.state import SchedulerState

__all__ = ["Scheduling"]


@dataclass(frozen=True)
class Scheduling:
    """What a sweep has of its scheduler once Tune has added a trial.

    Attributes:
        state: What is saved of it: the user's scheduler, and what it knows of trials.
        base: Gives it results and ends of trials.
        next_trial: Lets it choose.
        restore: Repeats what happened before the sweep was interrupted.
    """

    state: SchedulerState
    base: BaseScheduler
    next_trial: NextTrial
    restore: SchedulerRestore

    @property
    def objectives(self) -> set[str]:
        """Return the metric that it judges by, if any."""
        return objectives_of(self.state.base)

    @property
    def mode(self) -> str | None:
        """Return which values of the metric are better, ``"min"`` or ``"max"``; None if unknown."""
        return self.state.mode or mode_of(self.state.base)

    def uses(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether it will use a report's score, or that is the trial's last.

        Call this with each report, as often as you like.
        """
        return self.state.usage.uses(self.state.stand_ins.of(trial), report)

    def past_last(self, trial_id: str) -> bool:
        """Return whether a trial has reported after the last report that can be decided by."""
        stand_in = self.state.stand_ins.by_id.get(trial_id)
        return stand_in is not None and self.state.usage.past_last(stand_in)

    def decides_alike(self, request: Request, metric: str, interval: Interval) -> bool:
        """Return whether it decides the same wherever in an interval a score is; if unknown, no."""
        at = self.state.usage.serves(request)
        stand_in = self.state.stand_ins.by_id.get(request.trial_id)
        if at is None or stand_in is None or metric not in self.objectives:
            return True
        return decides_alike(self.state.base, stand_in, at, interval)
