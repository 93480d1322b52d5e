"""Trials that wait for an actor to be reused, in the order in which they began to wait."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

__all__ = ["PendingTrials", "start_in_order"]


class PendingTrials:
    """A set of trials that gives the one first that was added first.

    Tune keeps a plain set of them, so that any trial may be the next to go on in an actor that has
    become free.

    Example:
        >>> pending = PendingTrials("abc")
        >>> first = pending.pop()
        >>> pending.add(first)  # no actor could be had
        >>> pending.pop(), len(pending)
        ('a', 2)
    """

    def __init__(self, trials: Iterable[Trial] = ()):
        self._trials: OrderedDict[Trial, None] = OrderedDict.fromkeys(trials)
        self._popped: Trial | None = None

    def __len__(self) -> int:
        return len(self._trials)

    def pop(self) -> Trial:
        """Take the first."""
        self._popped, _ = self._trials.popitem(last=False)
        return self._popped

    def add(self, trial: Trial) -> None:
        """Add one as the last; the one that was taken just now is the first again."""
        self._trials[trial] = None
        if trial is self._popped:
            self._trials.move_to_end(trial, last=False)

    def discard(self, trial: Trial) -> None:
        """Take one out, as it does not wait any more."""
        self._trials.pop(trial, None)
        if trial is self._popped:
            self._popped = None


def start_in_order(tune: TuneController) -> None:
    """Let Tune start trials in reused actors in the order in which they began to wait."""
    waiting = tune._resources_to_pending_trials
    if waiting.default_factory is PendingTrials:
        return
    in_order: defaultdict[Any, PendingTrials] = defaultdict(PendingTrials)
    for trial in tune._trials:
        if trial in waiting[trial.placement_group_factory]:
            in_order[trial.placement_group_factory].add(trial)
    tune._resources_to_pending_trials = in_order
