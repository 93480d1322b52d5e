"""Which later scores are shown, and where."""

from __future__ import annotations

import pytest

from tunekit.core.events import (
    CheckpointSaved,
    Processed,
    Reported,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.timeline import Timeline
from tunekit.following.record import name_problem, rows_of
from tunekit.journal.journal import Record


def processed(*iterations):
    """The events of reports that were saved and processed, and not validated."""
    events = []
    for n, iteration in enumerate(iterations):
        run = iterations[: n + 1].count(iteration)
        known = {"trial_id": "a", "id": f"a:0:{iteration}:{run}", "iteration": iteration}
        events += [
            Reported(trial_id="a", report={"training_iteration": iteration}),
            CheckpointSaved(**known, checkpoint=f"./a/c{iteration}"),
            Processed(**known),
        ]
    return events


def later(iteration, run=1, trial="a", **metrics):
    known = {"id": f"{trial}:0:{iteration}:{run}", "checkpoint": f"./{trial}/c{iteration}"}
    return {"name": "new", "status": "validated", "metrics": metrics, **known}


def rows(events, scores):
    timeline = Timeline(events, "accuracy", (), scores)
    return {row["training_iteration"]: row for row in timeline.rows("a")}


def test_a_score_is_in_the_row_of_its_checkpoint_alone():
    found = rows(processed(1, 2), [later(2, f1=0.5)])
    assert found[2]["new"] == {"f1": 0.5} and "new" not in found[1]


def test_a_score_of_an_older_run_is_not_shown_in_the_newer_ones_row():
    events = processed(1, 2, 2)
    assert "new" not in rows(events, [later(2, run=1, f1=0.5)])[2]
    assert rows(events, [later(2, run=2, f1=0.5)])[2]["new"] == {"f1": 0.5}
    assert Timeline(events, None, (), [later(2, run=1, f1=0.5)]).scores("a") == []


def test_a_checkpoint_that_the_sweep_has_not_validated_may_have_a_later_score():
    timeline = Timeline(processed(1, 2), "accuracy", (), [later(2, f1=0.5)])
    [score] = timeline.scores("a")
    assert (score.iteration, score.value("new/f1"), score.checkpoint) == (2, 0.5, "./a/c2")
    assert timeline.score("a", "new/f1", "max") == score
    assert timeline.score("a", "accuracy", "max") is None
    assert timeline.validations == [] and not timeline.own_names


def test_a_name_that_the_sweep_itself_produces_since_is_the_sweeps():
    events = [
        *processed(1),
        ValidationRequested(trial_id="a", id="a:0:1:1", iteration=1),
        ValidationEnded(id="a:0:1:1", status="validated", metrics={"new": {"f1": 0.9}}),
    ]
    timeline = Timeline(events, "new/f1", (), [later(1, f1=0.1, recall=0.2)])
    [score] = timeline.scores("a")
    assert score.value("new/f1") == 0.9 and score.value("new/recall") == 0.2
    assert timeline.names == ["new/f1", "new/recall"]


def test_what_is_not_of_the_sweep_is_left_out():
    timeline = Timeline(processed(1), None, (), [later(1, trial="b", f1=0.5)])
    assert timeline.names == [] and list(timeline.trials) == ["a"]


def scores(*outcomes, **about):
    events = []
    for iteration, status in outcomes:
        name = f"a:0:{iteration}:1"
        events.append(ValidationRequested(trial_id="a", id=name, iteration=iteration))
        metrics = {"f1": len(events)} if status == "validated" else {}
        events.append(ValidationEnded(id=name, status=status, metrics=metrics, attempts=1))
    return Record([{"n": 1, "name": "new", "function": "f", **about}], events)


def test_of_several_outcomes_the_newest_is_shown():
    several = scores(
        (1, "failed"), (2, "timed_out"), (3, "failed"), (1, "validated"), (3, "failed")
    )
    table = rows_of([several], None)
    found = {row["iteration"]: row for row in table}
    assert [found[i]["status"] for i in (1, 2, 3)] == ["validated", "timed_out", "failed"]
    assert len(table) == 3
    assert found[1]["metrics"] == {"f1": 7} and found[1]["reason"] is None


def test_only_rows_of_the_same_sweep_are_shown():
    own, other = scores((1, "validated"), sweep=5.0), scores((2, "validated"), sweep=6.0)
    assert [row["iteration"] for row in rows_of([own, other], 5.0)] == [1]


@pytest.mark.parametrize("name", ["", " ", "a//b", "/a", "a/", "a\n", "..", "pid", "trial_id"])
def test_names_that_no_metric_can_have(name):
    assert name_problem(name, [])


def test_names_that_the_sweep_has_are_taken():
    assert name_problem("eval", ["eval"]) and name_problem("eval", ["eval/f1"])
    assert name_problem("ev", ["eval"]) is None and name_problem("eval-2", ["eval"]) is None
