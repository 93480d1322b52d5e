"""Which trials have ended though nobody got to say so, and which have not though they stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunekit.core.history import GENERATION, ITERATION

__all__ = ["cut_short", "through"]


def through(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """The trials that have saved at their last report: nothing of them is to come.

    A trial ends after it has saved. If the driver dies between the two, the trial must not be
    started again: it would run beyond its end.

    Args:
        events: What happened in the sweep, in order, as its journal has it.

    Example:
        >>> last = {"training_iteration": 9, "generation": 0, "done": True}
        >>> reported = {"event": "reported", "trial_id": "a", "report": last}
        >>> saved = {"event": "saved", "trial_id": "a", "generation": 0, "iteration": 9}
        >>> through([reported]), through([reported, saved])
        (set(), {'a'})
        >>> through([reported, saved, {"event": "retried", "trial_id": "a"}])
        set()
    """
    last: dict[str, tuple[int, int]] = {}
    ended: set[str] = set()
    for event in events:
        kind, trial_id = event["event"], event.get("trial_id", "")
        if kind == "reported" and event["report"].get("done"):
            last[trial_id] = (event["report"][GENERATION], event["report"][ITERATION])
        elif kind == "saved" and last.get(trial_id) == (event["generation"], event["iteration"]):
            ended.add(trial_id)
        elif kind in ("reported", "retried", "errored", "exploited"):
            last.pop(trial_id, None)
            ended.discard(trial_id)
    return ended


def cut_short(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the trials that a used-up time budget has stopped: a restored sweep goes on with them.

    Args:
        events: What happened in the sweep, in order, as its journal has it.

    Example:
        >>> expired = {"event": "expired", "trial_ids": ["a", "b"]}
        >>> sorted(cut_short([expired, {"event": "completed", "trial_id": "a"}]))
        ['b']
    """
    cut: set[str] = set()
    for event in events:
        if event["event"] == "expired":
            cut.update(event["trial_ids"])
        elif event["event"] in ("completed", "errored"):
            cut.discard(event["trial_id"])
    return cut
