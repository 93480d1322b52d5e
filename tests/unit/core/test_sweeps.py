"""Whatever happens in a sweep, in any order: what its journal is read as."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    ValidationRequested,
)
from tunekit.core.queue import Entry, Queue
from tunekit.core.timeline import Timeline

SCORES = st.sampled_from([None, 0.1, 0.2, 0.3])
DECISIONS = st.sampled_from(["CONTINUE"] * 8 + ["PAUSE", "STOP"])


class Sweep(RuleBasedStateMachine):
    """A trial whose reports are queued and processed, and a reader who follows its journal."""

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

    def key(self, entry: Entry) -> dict[str, Any]:
        place = (self.generation, entry.iteration)
        name = f"a:{place[0]}:{place[1]}:{self.runs[place]}"
        return {"id": name, "generation": place[0], "iteration": place[1]}

    def back(self) -> None:
        """Let the trial go on from what was processed and saved last."""
        self.queue.drop()
        self.iteration = self.saved

    @rule(saves=st.booleans(), validates=st.booleans())
    def a_trial_reports(self, saves: bool, validates: bool) -> None:
        if self.over or len(self.queue) > 4:
            return
        self.iteration += 1
        place = (self.generation, self.iteration)
        self.runs[place] = self.runs.get(place, 0) + 1
        report = {"training_iteration": self.iteration, "generation": self.generation}
        self.write(Reported(trial_id="a", report=report))
        entry = Entry(report, iteration=self.iteration)
        self.queue.append(entry)
        if saves:
            entry.checkpoint = path = self.key(entry)["id"]
            self.write(CheckpointSaved(trial_id="a", **self.key(entry), checkpoint=path))
            if validates:
                entry.scoring = True
                self.write(ValidationRequested(trial_id="a", **self.key(entry)))

    @rule(data=st.data(), score=SCORES)
    def a_validation_ends(self, data: Any, score: float | None) -> None:
        waiting = [entry for entry in self.queue if entry.scoring]
        if not waiting:
            return
        entry = data.draw(st.sampled_from(waiting))
        entry.scoring = False
        entry.metrics = None if score is None else {"accuracy": score}
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
            self.queue.drop()
            self.over = True
            if not ends_first:
                self.write(TrialEnded(trial_id="a"))

    @precondition(lambda self: self.iteration > 3 and not self.over)
    @rule()
    def a_trial_is_ended_on_the_result_of_another_one(self) -> None:
        self.queue.drop()
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
                (row["generation"], row["training_iteration"]): (
                    row["iteration_runs"],
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
                assert timeline.trials["a"].waiting == len(self.queue)


TestSweeps = Sweep.TestCase
