"""What a scheduler would have decided, had it got its results as soon as they were reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

__all__ = ["Arrival", "wrong_decisions"]


@dataclass(frozen=True)
class Arrival:
    """A result that a scheduler got.

    Attributes:
        reported: The number of its report, in the order in which trials reported.
        trial: The trial.
        result: The result.
        decision: What the scheduler decided.
    """

    reported: int
    trial: Trial
    result: Mapping[str, Any]
    decision: str


def wrong_decisions(
    scheduler: TrialScheduler, trials: Sequence[Trial], arrivals: Sequence[Arrival]
) -> int | None:
    """Count the decisions that would have been different without delay.

    A scheduler that has heard nothing yet gets the results in the order in which they were
    reported, those of each trial up to the one at which either scheduler stops the trial.

    Args:
        scheduler: The scheduler as it was before the sweep; it is changed.
        trials: The sweep's trials, in the order in which they were made.
        arrivals: What the sweep's own scheduler got.

    Returns:
        How many; None for a scheduler that changes trials or decides by more than results.
    """
    if type(scheduler) not in (AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule):
        return None
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    ended: set[Trial] = set()
    wrong = 0
    for arrival in sorted(arrivals, key=lambda one: one.reported):
        trial = arrival.trial
        if trial in ended:
            continue
        decision = scheduler.on_trial_result(None, trial, {**arrival.result})
        wrong += decision != arrival.decision
        if TrialScheduler.STOP in (decision, arrival.decision):
            ended.add(trial)
            scheduler.on_trial_complete(None, trial, {**arrival.result, DONE: True})
    return wrong
