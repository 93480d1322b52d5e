"""Read from a journal which trials ended unrecorded or were cut short, and whether any began."""

from __future__ import annotations

from collections.abc import Iterable

from tunekit.core.events import (
    Asked,
    CheckpointSaved,
    CutShort,
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


def trials_ended_unrecorded(events: Iterable[Event]) -> set[str]:
    """Return the trials that saved at their last report: nothing more will come from them.

    A trial ends after it has saved. If the driver dies in between, the trial must not be started
    again: it would run beyond its end.

    Args:
        events: The events of the sweep's journal, in order.

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
                last[event.trial_id] = event.place
            case CheckpointSaved() if last.get(event.trial_id) == event.place:
                ended.add(event.trial_id)
            case Reported() | TrialRetried() | TrialErrored() | Exploited():
                last.pop(event.trial_id, None)
                ended.discard(event.trial_id)
    return ended


def cut_short(events: Iterable[Event]) -> set[str]:
    """Return the trials that a time budget or ``fail_fast`` has stopped; a restore continues them.

    Args:
        events: The events of the sweep's journal, in order.

    Example:
        >>> cut = CutShort(trial_ids=["a", "b"])
        >>> sorted(cut_short([cut, TrialEnded(trial_id="a")]))
        ['b']
    """
    cut: set[str] = set()
    for event in events:
        match event:
            case CutShort():
                cut.update(event.trial_ids)
            case TrialEnded() | TrialErrored():
                cut.discard(event.trial_id)
    return cut


def has_begun(events: Iterable[Event]) -> bool:
    """Return whether the sweep's trials have done anything, so that it may not start again.

    Args:
        events: The events of the sweep's journal.

    Example:
        >>> added = TrialAdded(trial_id="a")
        >>> has_begun([added, SnapshotTaken(file="state/000000002-snapshot.zip")])
        False
        >>> has_begun([added, Reported(trial_id="a", report={})])
        True
    """
    nothing = (Asked, TrialAdded, SnapshotTaken, SessionClosed)
    return any(not isinstance(event, nothing) for event in events)
