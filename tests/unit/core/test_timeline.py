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


def saved(iteration: int, at: float, *, run: int = 1) -> dict[str, Any]:
    return {**requested(iteration, at, run=run), "event": "saved"}


def processed(
    iteration: int, at: float, decision: str = "CONTINUE", *, run: int = 1, finished: bool = False
) -> dict[str, Any]:
    known = {"id": f"a:0:{iteration}:{run}", "judged": True, "finished": finished}
    return event("processed", at, iteration=iteration, decision=decision, **known)


def event(kind: str, at: float, **known: Any) -> dict[str, Any]:
    return {"event": kind, "time": at, "trial_id": "a", **known}


def scored(iteration: int, at: float, accuracy: float) -> list[dict[str, Any]]:
    """A report whose validation has ended, and that Tune has not processed."""
    return [
        reported(iteration, at),
        saved(iteration, at),
        requested(iteration, at),
        ended(iteration, at + 0.5, accuracy),
    ]


def validated(
    iteration: int, at: float, accuracy: float, decision: str = "CONTINUE", **known: Any
) -> list[dict[str, Any]]:
    return [
        *scored(iteration, at, accuracy),
        processed(iteration, at + 0.5, decision, **known),
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


def test_a_report_is_a_result_once_it_is_processed():
    lines = [added(), *validated(1, 1.0, 0.5), *scored(2, 2.0, 0.9), reported(3, 3.0)]
    chronicle = told(*lines)
    trial = chronicle.trials["a"]
    assert (trial.iteration, trial.waiting) == (1, 2)
    assert [row["training_iteration"] for row in chronicle.rows("a")] == [1]
    assert chronicle.score("a", "accuracy", "max").iteration == 1
    assert len(chronicle.validations) == 2 and chronicle.iterations == 3
    chronicle.extend([event_of({"n": 99, **processed(2, 3.5)})])
    assert (trial.iteration, trial.waiting) == (2, 1)
    assert chronicle.score("a", "accuracy", "max").value("accuracy") == 0.9


EXPLOIT = {
    "generation": 1,
    "reached": 2,
    "donor_id": "b",
    "donor_generation": 0,
    "iteration": 2,
    "checkpoint": "./b/c2",
    "old_config": {},
    "donor_config": {},
    "config": {},
}


@pytest.mark.parametrize(
    "line",
    [
        processed(1, 4.0, "STOP"),
        processed(1, 4.0, "PAUSE"),
        event("exploited", 4.0, **EXPLOIT),
        event("completed", 4.0, removed=True),
        event("failed", 4.0),
        event("chosen", 4.0),
    ],
    ids=lambda line: line["event"] + line.get("decision", ""),
)
def test_what_was_trained_past_a_decision_never_counts(line):
    chronicle = told(added(), *scored(1, 1.0, 0.5), *scored(2, 2.0, 0.9), line)
    assert chronicle.trials["a"].waiting == 0
    assert [one.iteration for one in chronicle.scores("a")] in ([], [1])
    assert all(row["training_iteration"] == 1 for row in chronicle.rows("a"))


def test_the_newest_run_of_an_iteration_counts_once_it_is_processed():
    lines = [added(), *validated(1, 1.0, 0.9), event("failed", 2.0), event("retried", 2.0)]
    again = [reported(1, 3.0), saved(1, 3.0, run=2), requested(1, 3.0, run=2)]
    chronicle = told(*lines, *again)
    assert [row["iteration_runs"] for row in chronicle.rows("a")] == [1]
    chronicle = told(*lines, *again, ended(1, 4.0, 0.1, run=2), processed(1, 4.0, run=2))
    assert [(row["iteration_runs"], row["accuracy"]) for row in chronicle.rows("a")] == [(2, 0.1)]
    [one] = chronicle.scores("a")
    assert (one.run, one.checkpoint) == (2, "./f/c2")
    assert [row["score"] for row in chronicle.decisions] == [0.9, 0.1]


def test_after_a_kill_only_reports_with_checkpoints_wait():
    lines = [added(), reported(1, 1.0), saved(1, 1.0), reported(2, 2.0), reported(3, 3.0)]
    events = [event_of({"n": n, **line}) for n, line in enumerate(lines, start=1)]
    for sessions, waiting in ([{"n": 0}], 3), ([{"n": 0}, {"n": 6}], 1):
        timeline = Timeline(events, "accuracy", sessions)
        assert timeline.trials["a"].waiting == waiting


def test_each_report_of_a_followed_folder_is_a_result():
    lines = [added(), *scored(1, 1.0, 0.5), reported(2, 2.0)]
    events = [event_of({"n": n, **line}) for n, line in enumerate(lines, start=1)]
    timeline = Timeline(events, "accuracy", [{"n": 0, "followed": "/run"}])
    assert (timeline.trials["a"].iteration, timeline.trials["a"].waiting) == (2, 0)
    assert [row.get("accuracy") for row in timeline.rows("a")] == [0.5, None]


def test_trainings_values_of_a_validated_name_are_kept_elsewhere():
    lines = [added(), *validated(1, 1.0, 0.2), *validated(2, 2.0, 0.3)]
    for line in lines:
        if line["event"] == "reported":
            line["report"] |= {"accuracy": 0.99, "eval": {"loss": 2.0}}
    unscored = [reported(3, 3.0), processed(3, 3.0)]
    unscored[0]["report"]["accuracy"] = 0.98
    rows = list(told(*lines, *unscored).rows("a"))
    assert [row.get("accuracy") for row in rows] == [0.2, 0.3, None]
    assert [row["reported"] for row in rows] == [{"accuracy": n} for n in (0.99, 0.99, 0.98)]


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


@pytest.mark.parametrize("finished", [False, True], ids=["early", "at its end"])
def test_a_trial_that_finished_was_not_stopped(finished):
    end = event("completed", 4.0, removed=False)
    trial = told(added(), *validated(1, 1.0, 0.5, "STOP", finished=finished), end).trials["a"]
    assert (trial.stopped, trial.status) == (not finished, "terminated")
    assert trial.shown_status == ("terminated" if finished else "stopped")


def test_a_scheduler_may_end_a_trial_while_it_decides():
    end = event("completed", 1.4, removed=True)
    chronicle = told(added(), *scored(1, 1.0, 0.5), end, processed(1, 1.5, "STOP"))
    assert [one.iteration for one in chronicle.scores("a")] == [1]
    assert chronicle.trials["a"].stopped and chronicle.trials["a"].waiting == 0


@pytest.mark.parametrize("last", [event("errored", 4.0), reported(2, 4.0)])
def test_a_trial_that_failed_or_has_not_ended_was_not_stopped(last):
    trial = told(added(), *validated(1, 1.0, 0.5, "STOP"), last).trials["a"]
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
