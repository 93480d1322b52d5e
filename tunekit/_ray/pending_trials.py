"""Trials that wait for an actor to be reused, in the order in which they began to wait."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

__all__ = ["PendingTrials", "has_starting_actor", "start_in_order"]


class PendingTrials:
    """A set of trials that gives the one first that was added first and for which no actor starts.

    Tune keeps a plain set of them, so that any trial may be the next to go on in an actor that has
    become free, also one whose own actor is about to be there.

    Args:
        trials: Those that wait.
        starts: Whether a trial has an actor that starts.

    Example:
        >>> pending = PendingTrials("abc")
        >>> first = pending.pop()
        >>> pending.add(first)  # no actor could be had
        >>> pending.pop(), len(pending)
        ('a', 2)
    """

    def __init__(
        self,
        trials: Iterable[Trial] = (),
        starts: Callable[[Trial], bool] = lambda trial: False,
    ):
        self._trials: OrderedDict[Trial, None] = OrderedDict.fromkeys(trials)
        self._starts = starts
        self._popped: Trial | None = None

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def first_without_actor(self) -> Trial | None:
        """Return the first for which no actor starts; None if one does for each."""
        return next((trial for trial in self._trials if not self._starts(trial)), None)

    def pop(self) -> Trial:
        """Take the first for which no actor starts; the first, if one does for each."""
        self._popped = trial = self.first_without_actor or next(iter(self._trials))
        del self._trials[trial]
        return trial

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


def has_starting_actor(tune: TuneController, trial: Trial) -> bool:
    """Return whether a trial that waits has an actor that has its resources, and starts."""
    actor = tune._trial_to_actor.get(trial)
    return actor is not None and bool(tune._actor_manager.is_actor_started(actor))


def start_in_order(tune: TuneController) -> None:
    """Let Tune start trials in reused actors in the order in which they began to wait."""
    waiting = tune._resources_to_pending_trials
    if waiting.default_factory is not set:
        return
    starts = functools.partial(has_starting_actor, tune)
    in_order: defaultdict[Any, PendingTrials] = defaultdict(lambda: PendingTrials(starts=starts))
    for trial in tune._trials:
        if trial in waiting[trial.placement_group_factory]:
            in_order[trial.placement_group_factory].add(trial)
    tune._resources_to_pending_trials = in_order
