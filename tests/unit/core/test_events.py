from __future__ import annotations

from typing import Any

import pytest

from tunekit.core.events import event_of, trials_ended_unrecorded


def reported(iteration: int, *, done: bool = False, generation: int = 0) -> dict[str, Any]:
    report = {"training_iteration": iteration, "generation": generation, "done": done}
    return {"event": "reported", "trial_id": "a", "report": report}


def saved(iteration: int, generation: int = 0) -> dict[str, Any]:
    place = {"generation": generation, "iteration": iteration}
    return {"event": "saved", "trial_id": "a", **place}


def of(kind: str) -> dict[str, Any]:
    exploit = {"generation": 1, "reached": 2, "donor_id": "b", "donor_generation": 0}
    known = {**exploit, "iteration": 1, "checkpoint": "c"} if kind == "exploited" else {}
    return {"event": kind, "trial_id": "a", **known}


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([reported(1), saved(1)], False),  # not its last report
        ([reported(2, done=True)], False),  # not saved
        ([reported(1), saved(1), reported(2, done=True)], False),  # saved before
        ([reported(2, done=True), saved(2)], True),
        ([reported(2, done=True), saved(2), {"event": "snapshot", "file": "x"}], True),
        ([reported(2, done=True, generation=1), saved(2)], False),  # another generation's
        ([reported(2, done=True), saved(2), of("exploited")], False),
        ([reported(2, done=True), saved(2), of("errored"), of("retried")], False),
        ([reported(2, done=True), saved(2), reported(2)], False),  # it runs again
    ],
)
def test_a_trial_has_ended_when_it_has_saved_at_its_last_report(events, ended):
    assert trials_ended_unrecorded(map(event_of, events)) == ({"a"} if ended else set())
