"""Which trials have ended though nobody got to say so, and which have not though they stopped;
and whether any has begun.
"""

from __future__ import annotations

from collections.abc import Iterable

from tunekit.core.events import (
    Asked,
    BudgetExpired,
    CheckpointSaved,
    Event,
    Exploited,
    Reported,
    SessionClosed,
    SnapshotTaken,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialRetried,
)
from tunekit.core.history import GENERATION, ITERATION

__all__ = ["cut_short", "has_begun", "trials_ended_unrecorded"]


def trials_ended_unrecorded(events: Iterable[Event]) -> set[str]:
    """The trials that have saved at their last report: nothing of them is to come.

    A trial ends after it has saved. If the driver dies between the two, the trial must not be
    started again: it would run beyond its end.

    Args:
        events: What happened in the sweep, in order, as its journal has it.

    Example:
        >>> last = {"training_iteration": 9, "generation": 0, "done": True}
        >>> reported = Reported(trial_id="a", report=last)
        >>> saved = CheckpointSaved(trial_id="a", generation=0, iteration=9)
        >>> trials_ended_unrecorded([reported]), trials_ended_unrecorded([reported, saved])
        (set(), {'a'})
        >>> trials_ended_unrecorded([reported, saved, TrialRetried(trial_id="a")])
        set()
    """
    last: dict[str, tuple[int, int]] = {}
    ended: set[str] = set()
    for event in events:
        match event:
            case Reported() if event.report.get("done"):
                report = event.report
                last[event.trial_id] = (report[GENERATION], report[ITERATION])
            case CheckpointSaved() if last.get(event.trial_id) == event.place:
                ended.add(event.trial_id)
            case Reported() | TrialRetried() | TrialErrored() | Exploited():
                last.pop(event.trial_id, None)
                ended.discard(event.trial_id)
    return ended


def cut_short(events: Iterable[Event]) -> set[str]:
    """Return the trials that a used-up time budget has stopped: a restored sweep goes on with them.

    Args:
        events: What happened in the sweep, in order, as its journal has it.

    Example:
        >>> expired = BudgetExpired(trial_ids=["a", "b"])
        >>> sorted(cut_short([expired, TrialEnded(trial_id="a")]))
        ['b']
    """
    cut: set[str] = set()
    for event in events:
        match event:
            case BudgetExpired():
                cut.update(event.trial_ids)
            case TrialEnded() | TrialErrored():
                cut.discard(event.trial_id)
    return cut


def has_begun(events: Iterable[Event]) -> bool:
    """Return whether anything has come of a sweep's trials, so that it may not begin again.

    Args:
        events: What happened in the sweep, as its journal has it.

    Example:
        >>> added = TrialAdded(trial_id="a")
        >>> has_begun([added, SnapshotTaken(file="state/000000002-snapshot.zip")])
        False
        >>> has_begun([added, Reported(trial_id="a", report={})])
        True
    """
    nothing = (Asked, TrialAdded, SnapshotTaken, SessionClosed)
    return any(not isinstance(event, nothing) for event in events)
