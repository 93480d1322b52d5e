"""The history that readers show is what Tune has processed, however trials fail or go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from tests.support.events import ended, event, named, processed, reported, requested, saved
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    TrialEnded,
    TrialFailed,
    TrialResumed,
    TrialRetried,
    ValidationEnded,
)
from tunekit.core.queue import Queue
from tunekit.core.ranking import ranking_of
from tunekit.core.report import Report, Stage, Wants
from tunekit.core.timeline import Timeline


def replay(
    *events: Event,
    metric: str = "accuracy",
    sessions: Sequence[dict[str, Any]] = (),
    later: Sequence[dict[str, Any]] = (),
) -> Timeline:
    numbered = [structs.replace(event, n=n) for n, event in enumerate(events, start=1)]
    return Timeline(numbered, metric, sessions, later)


def added() -> Event:
    return event("trial_added", 0.0, config={"lr": 1}, folder="f")


def validated(iteration: int, accuracy: float, decision: str = "CONTINUE") -> list[Event]:
    """Return the events of a report until Tune has processed its score."""
    return [
        reported(iteration, iteration),
        saved(iteration, iteration, validates=True),
        ended(iteration, iteration + 0.5, accuracy),
        processed(iteration, iteration + 0.5, decision),
    ]


@pytest.mark.parametrize(("mode", "scores", "at"), [("max", (1, 3, 3), 2), ("min", (2, 1, 1), 2)])
def test_best_of_equal_scores_is_the_first(mode, scores, at):
    lines = [line for n, score in enumerate(scores, 1) for line in validated(n, score)]
    best = replay(added(), *lines).score("a", "accuracy", mode)
    assert best is not None and best.iteration == at


def test_only_reports_with_checkpoints_are_unprocessed_after_a_kill():
    lines = [added(), reported(1, 1.0), saved(1, 1.0), reported(2, 2.0), reported(3, 3.0)]
    for sessions, unprocessed in ([{"n": 0}], 3), ([{"n": 0}, {"n": 6}], 1):
        assert replay(*lines, sessions=sessions).trials["a"].unprocessed == unprocessed


def spans(timeline: Timeline, kind: str) -> list[tuple[float, float]]:
    return [(span.begin, span.end) for span in timeline.spans() if span.kind == kind]


def test_time_that_a_trial_waits_is_not_counted_as_training():
    """Tune includes the wait in the time of the next iteration."""
    timeline = replay(
        added(),
        reported(1, 2.0, took=2.0),
        event("waited", 6.0, seconds=4.0),
        reported(2, 7.0, took=5.0),
        reported(3, 9.0, took=5.0),
        reported(4, 12.0, took=float("nan")),
    )
    assert spans(timeline, "waiting") == [(2.0, 6.0)]
    assert spans(timeline, "training") == [(0.0, 2.0), (6.0, 7.0), (7.0, 9.0), (12.0, 12.0)]
    assert timeline.trials["a"].trained_s == 5.0


def of_validation(kind: str, at: float, attempt: int = 1, **known: Any) -> Event:
    return event(kind, at, id="a:0:1:1", attempt=attempt, **known)


STARTED, BEGAN = of_validation("attempt_started", 1.0), of_validation("attempt_began", 2.0)
RETRIED = [
    of_validation("attempt_started", 5.0, attempt=2),
    of_validation("attempt_began", 6.0, attempt=2),
    ended(1, 9.0, 0.5),
]


@pytest.mark.parametrize(
    ("lines", "status", "waited", "ran"),
    [
        ([], "queued", [(1.0, 9.0)], []),
        ([STARTED], "starting", [(1.0, 9.0)], []),
        ([STARTED, BEGAN], "running", [(1.0, 2.0)], [(2.0, 9.0)]),
        ([STARTED, BEGAN, *RETRIED], "validated", [(1.0, 6.0)], [(6.0, 9.0)]),
    ],
    ids=["queued", "starting", "running", "retried"],
)
def test_validation_waits_until_its_newest_attempt_runs_and_then_runs_until_the_end(
    lines, status, waited, ran
):
    timeline = replay(added(), reported(1, 1.0), requested(1, 1.0), *lines, reported(2, 9.0))
    [row] = timeline.validations
    assert (row["status"], row["ran_from"]) == (status, ran[0][0] if ran else None)
    assert (spans(timeline, "requested"), spans(timeline, "validating")) == (waited, ran)


def test_validation_that_ran_when_its_driver_was_killed_is_queued_after_the_restore():
    lines = [added(), reported(1, 1.0), requested(1, 1.0), STARTED, BEGAN, reported(2, 3.0)]
    restored = replay(*lines, sessions=[{"n": 0}, {"n": 6}])
    assert restored.validations[0]["status"] == "queued"
    assert spans(restored, "validating") == []
    restored.extend([structs.replace(of_validation("attempt_began", 61.0), n=7)])
    assert restored.validations[0]["status"] == "running"
    assert spans(restored, "requested") == [(1.0, 61.0)]


@pytest.mark.parametrize(
    "last", [event("trial_errored", 4.0), reported(2, 4.0)], ids=["failed", "reported"]
)
def test_trial_is_not_shown_as_stopped_after_a_failure_or_a_later_report(last):
    trial = replay(added(), *validated(1, 0.5, "STOP"), last).trials["a"]
    assert not trial.stopped and trial.shown_status == trial.status


@pytest.mark.parametrize(
    ("lines", "status", "failures"),
    [
        ([], "pending", 0),
        ([reported(1, 1)], "running", 0),
        ([reported(1, 1), event("trial_failed", 2)], "running", 1),
        ([reported(1, 1), event("trial_failed", 2), event("trial_retried", 2)], "pending", 1),
        ([reported(1, 1), event("trial_failed", 2), event("trial_errored", 2)], "error", 1),
        ([event("trial_errored", 2)], "error", 1),
        ([reported(1, 1), event("trial_ended", 2, removed=False)], "terminated", 0),
        (
            [event("trial_ended", 2, removed=True), event("trial_retried", 3), reported(2, 4)],
            "running",
            0,
        ),
    ],
)
def test_trial_status_and_failure_count_follow_from_its_events(lines, status, failures):
    trial = replay(added(), *lines).trials["a"]
    assert (trial.status, trial.failures) == (status, failures)
    assert (trial.ended is not None) == (status in ("error", "terminated"))


def test_sweep_has_ended_only_if_no_event_follows_the_end_of_its_session():
    finished = event("session_closed", 1.0, finished=True)
    assert replay(finished).end == "finished"
    assert replay(event("session_closed", 1.0, finished=False)).end == "interrupted"
    assert replay(finished, reported(1, 2.0)).end is None


def test_each_generation_of_a_trial_keeps_its_own_hyperparameters():
    """Those before the first exploit may not be those that the trial was added with."""
    donor = {"donor_id": "b", "donor_generation": 0, "iteration": 2, "checkpoint": "./b/c2"}
    configs = {"old_config": {"lr": 2}, "donor_config": {"lr": 5}, "config": {"lr": 6}}
    timeline = replay(
        added(),
        reported(2, 1.0),
        event("exploited", 2.0, generation=1, reached=2, **donor, **configs),
    )
    assert [timeline.config_of("a", n)["lr"] for n in (0, 1, None)] == [2, 6, 6]


@pytest.mark.parametrize(
    ("metric", "mode", "rank", "best", "last"),
    [
        ("accuracy", "max", 1, 0.9, 0.7),
        ("accuracy", "min", 1, 0.7, 0.7),
        ("accuracy", None, None, None, 0.7),
        (None, "max", None, None, None),
    ],
)
def test_trial_is_ranked_only_with_both_a_metric_and_a_mode(metric, mode, rank, best, last):
    timeline = replay(added(), *validated(1, 0.9), *validated(2, 0.7))
    [one] = ranking_of(timeline, metric, mode)
    assert (one.rank, one.best_value, one.last_value) == (rank, best, last)


# Later validations ------------------------------------------------------------------------------


def unscored(iteration: int, *, run: int = 1) -> list[Event]:
    """Return the events of a report that was saved and processed, but not validated."""
    return [reported(iteration, 1.0), saved(iteration, 1.0, run=run), processed(iteration, 1.0)]


def later(iteration: int, *, run: int = 1, **metrics: float) -> dict[str, Any]:
    known = named(iteration, run=run)
    at = {"id": known["id"], "checkpoint": known["checkpoint"]}
    return {"name": "new", "status": "validated", "metrics": metrics, **at}


def test_later_score_of_an_older_run_is_not_shown_in_the_row_of_the_newer_run():
    lines = [*unscored(1), *unscored(1, run=2)]
    old = replay(*lines, later=[later(1, f1=0.5)])
    assert "new" not in next(old.rows("a")) and old.scores("a") == []
    new = replay(*lines, later=[later(1, run=2, f1=0.5)])
    assert next(new.rows("a"))["new"] == {"f1": 0.5}


def test_sweeps_own_metric_takes_precedence_over_a_later_one_of_its_name():
    own = ended(1, 2.0, {"new": {"f1": 0.9}})
    lines = [*unscored(1), requested(1, 2.0), own]
    timeline = replay(*lines, metric="new/f1", later=[later(1, f1=0.1, recall=0.2)])
    [score] = timeline.scores("a")
    assert score.value("new/f1") == 0.9 and score.value("new/recall") == 0.2
    assert timeline.names == ["new/f1", "new/recall"]


# Whatever happens in a sweep, in any order ------------------------------------------------------


SCORES = st.sampled_from([None, 0.1, 0.2, 0.3])
DECISIONS = st.sampled_from(["CONTINUE"] * 8 + ["PAUSE", "STOP"])


class Sweep(RuleBasedStateMachine):
    """A trial whose reports are queued and processed, and a reader that follows its journal."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.iteration = self.generation = self.saved = 0
        self.runs: dict[tuple[int, int], int] = {}
        self.lines: list[Event] = []
        self.follower = Timeline([], "accuracy")
        # By place: the run that Tune has processed, and its score.
        self.rows: dict[tuple[int, int], tuple[int, float | None]] = {}
        self.over = False

    def write(self, event: Event) -> None:
        self.lines.append(event)
        self.follower.extend([event])

    def key(self, entry: Report) -> dict[str, Any]:
        place = (self.generation, entry.iteration)
        name = f"a:{place[0]}:{place[1]}:{self.runs[place]}"
        return {"id": name, "generation": place[0], "iteration": place[1]}

    def back(self) -> None:
        """Let the trial continue from the last processed checkpoint."""
        self.queue.clear()
        self.iteration = self.saved

    @rule(saves=st.booleans(), validates=st.booleans())
    def a_trial_reports(self, saves: bool, validates: bool) -> None:
        if self.over or len(self.queue) > 4:
            return
        self.iteration += 1
        place = (self.generation, self.iteration)
        self.runs[place] = self.runs.get(place, 0) + 1
        report = {"training_iteration": self.iteration}
        self.write(Reported(trial_id="a", report=report, generation=self.generation))
        wants = Wants.SCORE if saves and validates else Wants.NOTHING
        entry = Report(report, iteration=self.iteration, saves=saves, wants=wants)
        self.queue.append(entry)
        if saves:
            entry.saved(path := self.key(entry)["id"])
            known = {**self.key(entry), "checkpoint": path, "validates": validates}
            self.write(CheckpointSaved(trial_id="a", **known))

    @rule(data=st.data(), score=SCORES)
    def a_validation_ends(self, data: Any, score: float | None) -> None:
        scoring = [entry for entry in self.queue if entry.stage is Stage.SCORING]
        if not scoring:
            return
        entry = data.draw(st.sampled_from(scoring))
        entry.scored(None if score is None else {"accuracy": score})
        how = "failed" if score is None else "validated"
        ended = ValidationEnded(id=self.key(entry)["id"], status=how, metrics=entry.metrics or {})
        self.write(ended)

    @rule(decision=DECISIONS, ends_first=st.booleans())
    def tune_processes_a_report(self, decision: str, ends_first: bool) -> None:
        if (entry := self.queue.take()) is None:
            return
        ranked = entry.metrics is not None
        decision = decision if ranked else "CONTINUE"
        key, place = self.key(entry), (self.generation, entry.iteration)
        if decision == "STOP" and ends_first:  # by its scheduler, while it decides
            self.write(TrialEnded(trial_id="a"))
        self.write(Processed(trial_id="a", **key, ranked=ranked, decision=decision))
        self.rows[place] = (self.runs[place], (entry.metrics or {}).get("accuracy"))
        self.saved = entry.iteration if entry.checkpoint else self.saved
        if decision == "PAUSE":
            self.back()
            self.write(TrialResumed(trial_id="a"))
        elif decision == "STOP":
            self.queue.clear()
            self.over = True
            if not ends_first:
                self.write(TrialEnded(trial_id="a"))

    @precondition(lambda self: self.iteration > 3 and not self.over)
    @rule()
    def a_trial_is_ended_on_the_result_of_another_one(self) -> None:
        self.queue.clear()
        self.over = True
        self.write(TrialEnded(trial_id="a", removed=True))

    @rule()
    def a_trial_fails(self) -> None:
        if not self.over:
            self.back()
            self.write(TrialFailed(trial_id="a"))
            self.write(TrialRetried(trial_id="a"))

    @rule()
    def a_trial_is_overwritten(self) -> None:
        if not self.over:
            self.back()
            self.generation += 1
            known = {"donor_id": "b", "donor_generation": 0, "checkpoint": "b"}
            place = {"generation": self.generation, "reached": self.iteration}
            self.write(Exploited(trial_id="a", **place, iteration=self.saved, **known))

    @invariant()
    def what_is_read_is_what_was_processed(self) -> None:
        for timeline in (self.follower, Timeline(self.lines, "accuracy")):
            rows = {
                (row["tunekit/generation"], row["training_iteration"]): (
                    row["tunekit/runs"],
                    row.get("accuracy"),
                )
                for row in timeline.rows("a")
            }
            assert rows == self.rows and list(rows) == sorted(rows)
            scores = {place: score for place, (_, score) in self.rows.items() if score is not None}
            found = timeline.scores("a")
            assert {one.place: one.value("accuracy") for one in found} == scores
            for one in found:  # each is of the run that was processed last
                at, run = one.place, self.rows[one.place][0]
                assert (one.run, one.checkpoint) == (run, f"a:{at[0]}:{at[1]}:{run}")
            best = timeline.score("a", "accuracy", "max")
            assert (best and best.value("accuracy")) == max(scores.values(), default=None)
            if self.lines:
                assert timeline.trials["a"].unprocessed == len(self.queue)


TestTimelineShowsWhatTuneHasProcessed = Sweep.TestCase


def test_unended_trial_of_a_restored_sweep_is_pending_until_its_next_report():
    report = {"training_iteration": 1}
    events = [
        Reported(n=1, time=2.0, trial_id="a", report=report),
        Reported(n=2, time=2.0, trial_id="b", report=report),
        TrialEnded(n=3, time=3.0, trial_id="b"),
    ]
    timeline = Timeline(events, sessions=[{"n": 0}, {"n": 4}])
    assert [one.status for one in timeline.trials.values()] == ["pending", "terminated"]
    timeline.extend([Reported(n=5, time=9.0, trial_id="a", report={"training_iteration": 2})])
    assert timeline.trials["a"].status == "running"
