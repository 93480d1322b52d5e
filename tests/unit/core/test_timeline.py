"""A journal told again: cases that whole sweeps rarely come to."""

from __future__ import annotations

from typing import Any

import pytest

from tunekit.core.events import event_of
from tunekit.core.timeline import Timeline


def told(*lines: dict[str, Any], metric: str = "accuracy") -> Timeline:
    events = [event_of({"n": n, **line}) for n, line in enumerate(lines, start=1)]
    return Timeline(events, metric)


def added(at: float = 0.0) -> dict[str, Any]:
    return {"event": "added", "time": at, "trial_id": "a", "config": {"lr": 1}, "folder": "f"}


def reported(iteration: int, at: float, *, took: Any = 1.0, generation: int = 0) -> dict[str, Any]:
    report = {"training_iteration": iteration, "generation": generation, "time_this_iter_s": took}
    return {"event": "reported", "time": at, "trial_id": "a", "report": report}


def requested(iteration: int, at: float, *, run: int = 1) -> dict[str, Any]:
    place = {"generation": 0, "iteration": iteration, "run": run}
    known = {"id": f"a:0:{iteration}:{run}", "trial_id": "a", "checkpoint": f"./f/c{run}"}
    return {"event": "requested", "time": at, **known, **place}


def ended(iteration: int, at: float, accuracy: float, *, run: int = 1) -> dict[str, Any]:
    how = {"attempts": 1, "waited_s": 0.0, "ran_s": 1.0, "reason": None, "error": None}
    known = {"status": "validated", "metrics": {"accuracy": accuracy}, **how}
    return {"event": "ended", "time": at, "id": f"a:0:{iteration}:{run}", **known}


def event(kind: str, at: float, **known: Any) -> dict[str, Any]:
    return {"event": kind, "time": at, "trial_id": "a", **known}


def validated(iteration: int, at: float, accuracy: float) -> list[dict[str, Any]]:
    return [
        reported(iteration, at),
        requested(iteration, at),
        ended(iteration, at + 0.5, accuracy),
    ]


@pytest.mark.parametrize(("mode", "scores", "at"), [("max", (1, 3, 3), 2), ("min", (2, 1, 1), 2)])
def test_of_equally_good_checkpoints_the_first_is_the_best(mode, scores, at):
    lines = [line for n, score in enumerate(scores, 1) for line in validated(n, n, score)]
    best = told(added(), *lines).score("a", "accuracy", mode)
    assert best is not None and best.iteration == at


def test_a_validation_that_was_not_a_number_is_no_score():
    chronicle = told(added(), *validated(1, 1, float("nan")), *validated(2, 2, 0.5))
    assert chronicle.score("a", "accuracy", None).iteration == 2
    assert chronicle.score("a", "accuracy", "min").iteration == 2


def test_the_score_of_an_older_run_is_not_what_the_scheduler_judged():
    chronicle = told(
        added(),
        reported(1, 1),
        requested(1, 1),
        reported(1, 5),
        requested(1, 5, run=2),
        ended(1, 6, 0.9, run=2),
        ended(1, 7, 0.1),
        event("delivered", 8, generation=0, iteration=1, decision="CONTINUE"),
    )
    assert chronicle.decisions[0]["score"] == 0.9
    assert [(one.iteration, one.checkpoint) for one in chronicle.scores("a")] == [(1, "./f/c2")]
    assert [row["iteration_runs"] for row in chronicle.rows("a")] == [2]


def spans(chronicle: Timeline, kind: str) -> list[tuple[float, float]]:
    return [(span.begin, span.end) for span in chronicle.spans() if span.kind == kind]


def test_a_function_that_was_held_has_not_trained_meanwhile():
    """Tune's time of its next iteration includes how long it was held."""
    chronicle = told(
        added(),
        reported(1, 2.0, took=2.0),
        event("waited", 6.0, seconds=4.0),
        reported(2, 7.0, took=5.0),
        reported(3, 9.0, took=5.0),
        reported(4, 12.0, took=float("nan")),
    )
    assert spans(chronicle, "waiting") == [(2.0, 6.0)]
    assert spans(chronicle, "training") == [(0.0, 2.0), (6.0, 7.0), (7.0, 9.0), (12.0, 12.0)]
    assert chronicle.trials["a"].trained_s == 5.0


def of_validation(kind: str, at: float, attempt: int = 1) -> dict[str, Any]:
    return {"event": kind, "time": at, "id": "a:0:1:1", "attempt": attempt}


@pytest.mark.parametrize(
    ("lines", "status", "waited", "ran"),
    [
        ([], "waiting", [(1.0, 9.0)], []),
        ([of_validation("started", 2.0)], "starting", [(1.0, 9.0)], []),
        (
            [of_validation("started", 2.0), of_validation("began", 4.0)],
            "running",
            [(1.0, 4.0)],
            [(4.0, 9.0)],
        ),
    ],
)
def test_validations_that_have_not_ended_last_until_now(lines, status, waited, ran):
    chronicle = told(added(), reported(1, 1.0), requested(1, 1.0), *lines, reported(2, 9.0))
    assert chronicle.validations[0]["status"] == status
    assert (spans(chronicle, "requested"), spans(chronicle, "validating")) == (waited, ran)


def test_a_validation_that_was_tried_again_waits_until_its_last_attempt():
    chronicle = told(
        added(),
        reported(1, 1.0),
        requested(1, 1.0),
        of_validation("started", 1.0),
        of_validation("began", 2.0),
        of_validation("started", 5.0, attempt=2),
        of_validation("began", 6.0, attempt=2),
        ended(1, 9.0, 0.5),
    )
    assert spans(chronicle, "requested") == [(1.0, 6.0)]
    assert spans(chronicle, "validating") == [(6.0, 9.0)]
    assert chronicle.validations[0]["ran_from"] == 6.0


def test_what_ran_when_the_driver_was_killed_waits_again():
    lines = [
        added(),
        reported(1, 1.0),
        requested(1, 1.0),
        of_validation("started", 1.0),
        of_validation("began", 2.0),
        reported(2, 3.0),
        of_validation("started", 60.0),
        of_validation("began", 61.0),
    ]
    events = [event_of({"n": n, **line}) for n, line in enumerate(lines, start=1)]
    sessions = [{"n": 0}, {"n": 6}]
    crashed = Timeline(events[:6], "accuracy", sessions[:1])
    assert crashed.validations[0]["status"] == "running"
    restored = Timeline(events[:6], "accuracy", sessions)
    assert restored.validations[0]["status"] == "waiting"
    assert spans(restored, "validating") == []
    again = Timeline(events, "accuracy", sessions)
    assert again.validations[0]["status"] == "running"
    assert spans(again, "requested") == [(1.0, 61.0)]


@pytest.mark.parametrize(
    ("at", "stopped"), [(3.0, True), (5.0, False)], ids=["before its end", "after it"]
)
def test_a_stop_that_comes_after_the_end_has_stopped_nothing(at, stopped):
    stop = event("delivered", at, generation=0, iteration=1, decision="STOP")
    end = event("completed", 4.0, removed=False)
    lines = [added(), *validated(1, 1.0, 0.5), *sorted([stop, end], key=lambda e: e["time"])]
    trial = told(*lines).trials["a"]
    assert (trial.stopped, trial.status) == (stopped, "terminated")
    assert trial.shown_status == ("stopped" if stopped else "terminated")


@pytest.mark.parametrize("last", [event("errored", 4.0), reported(2, 4.0)])
def test_a_trial_that_failed_or_has_not_ended_was_not_stopped(last):
    stop = event("delivered", 3.0, generation=0, iteration=1, decision="STOP")
    trial = told(added(), *validated(1, 1.0, 0.5), stop, last).trials["a"]
    assert not trial.stopped and trial.shown_status == trial.status


def test_what_waited_for_resources_did_not_run():
    started = {"event": "started", "time": 2.0, "id": "a:0:1:1", "attempt": 1}
    chronicle = told(added(), reported(1, 1.0), requested(1, 1.0), started, ended(1, 8.0, 0.5))
    assert spans(chronicle, "requested") == [(1.0, 7.0)]
    assert spans(chronicle, "validating") == [(7.0, 8.0)]


def test_a_request_that_is_made_again_after_a_kill_is_the_same_one():
    chronicle = told(added(), reported(1, 1.0), requested(1, 1.0), requested(1, 30.0))
    assert [row["requested"] for row in chronicle.validations] == [1.0]


@pytest.mark.parametrize(
    ("lines", "status", "failures"),
    [
        ([], "pending", 0),
        ([reported(1, 1)], "running", 0),
        ([reported(1, 1), event("failed", 2)], "running", 1),
        ([reported(1, 1), event("failed", 2), event("retried", 2)], "pending", 1),
        ([reported(1, 1), event("failed", 2), event("errored", 2)], "error", 1),
        ([event("errored", 2)], "error", 1),
        ([reported(1, 1), event("completed", 2, removed=False)], "terminated", 0),
        ([event("completed", 2, removed=True), event("retried", 3), reported(2, 4)], "running", 0),
    ],
)
def test_what_becomes_of_a_trial(lines, status, failures):
    story = told(added(), *lines).trials["a"]
    assert (story.status, story.failures) == (status, failures)
    assert (story.ended is not None) == (status in ("error", "terminated"))


def test_the_end_of_a_session_is_not_the_end_if_another_begins():
    finished = event("closed", 1.0, finished=True)
    assert told(finished).end == "finished"
    assert told(event("closed", 1.0, finished=False)).end == "interrupted"
    assert told(finished, reported(1, 2.0)).end is None


def test_each_generation_has_the_hyperparameters_that_it_was_trained_with():
    """Those before the first exploit may not be those that the trial was added with."""
    donor = {"donor_id": "b", "donor_generation": 0, "iteration": 2, "checkpoint": "./b/c2"}
    configs = {"old_config": {"lr": 2}, "donor_config": {"lr": 5}, "config": {"lr": 6}}
    chronicle = told(
        added(),
        reported(2, 1.0),
        event("exploited", 2.0, generation=1, reached=2, **donor, **configs),
    )
    assert [chronicle.config_of("a", n)["lr"] for n in (0, 1, None)] == [2, 6, 6]
