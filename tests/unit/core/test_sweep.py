"""Each report is processed with its own score, in whatever order facts arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.invariants import broken_in, check_journal
from tests.support.seeds import SCHEDULES
from tunekit.core.events import AttemptBegan, Event, Reported, TrialRetried, ValidationEnded
from tunekit.core.report import Report, Stage, Wants
from tunekit.core.state import SweepState
from tunekit.core.sweep import (
    About,
    Advance,
    Cancel,
    Command,
    Delete,
    Record,
    Rules,
    Save,
    Sweep,
    Validate,
)

TRIALS = ("a", "b")


class Facts(RuleBasedStateMachine):
    """A shell that carries commands out at any speed, and a Tune that decides anything."""

    when: str | int = "auto"

    def __init__(self) -> None:
        super().__init__()
        self.state = SweepState(required=frozenset({"accuracy"}))
        self.sweep = Sweep(Rules(when=self.when, on_failure="ignore"), self.state)
        self.journal: list[Event] = []
        self.saving: list[Save] = []
        self.validating: dict[str, Any] = {}
        self.reached = Counter[str]()
        #: What Tune has got of each trial, and the trials that train no more.
        self.given: dict[str, list[int]] = {trial: [] for trial in TRIALS}
        self.over: set[str] = set()
        self.saved: dict[str, Report] = {}
        self.deleted = Counter[str]()
        self.scores: dict[str, float] = {}

    # Commands are carried out ------------------------------------------------------------------

    def do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Record(event):
                    self.state.apply(event)
                    self.journal.append(
                        type(event)(**{**_fields(event), "n": len(self.journal) + 1})
                    )
                case Save():
                    self.saving.append(command)
                case Validate(request):
                    assert request.checkpoint and request.id not in self.validating
                    self.validating[request.id] = request
                    self.do([Record(AttemptBegan(id=request.id, attempt=1))])
                case Cancel(trial_id):
                    for name in [n for n in self.validating if n.startswith(f"{trial_id}:")]:
                        del self.validating[name]
                        self.do(self.sweep.ended(ValidationEnded(id=name, status="skipped")))
                case Delete(checkpoint):
                    self.deleted[checkpoint] += 1
                case Advance(trial_id):
                    self.advance(trial_id)

    def advance(self, trial_id: str) -> None:
        while report := self.sweep.next_report(trial_id, trains=trial_id not in self.over):
            assert not self.sweep.queue_of(trial_id).saves, "a decision would abort the save"
            if report.failure is not None:
                self.do([Record(TrialRetried(trial_id=trial_id))])
                self.over.discard(trial_id)
                self.reached[trial_id] = len(self.given[trial_id])
            else:
                self.process(trial_id, report)

    def process(self, trial_id: str, report: Report) -> None:
        if report.iteration == 0:  # the function has returned
            report.give()
            return
        result = self.sweep.result(trial_id, report)
        self.do(self.sweep.give(trial_id, report, result))
        score = self.scores.get(str(self.sweep.key(trial_id, report)))
        assert report.metrics is None or result["accuracy"] == score, "each its own score"
        self.given[trial_id].append(report.iteration)
        assert report.iteration == len(self.given[trial_id]), "in order, once, and none is lost"
        stops = self.draw_decision(report)
        decision = "STOP" if stops else "CONTINUE"
        self.do(self.sweep.decided(trial_id, report, decision, finished=False))
        if stops:
            self.over.add(trial_id)
            self.do(self.sweep.dropped(trial_id))

    def draw_decision(self, report: Report) -> bool:
        return bool(report.ranked and self.scores and sum(self.reached.values()) % 5 == 4)

    # Facts -------------------------------------------------------------------------------------

    def trains(self, trial_id: str) -> bool:
        queue = self.sweep.queue_of(trial_id)
        return trial_id not in self.over and not queue.over and not queue.saves

    @rule(
        trial_id=st.sampled_from(TRIALS),
        saves=st.booleans(),
        point=st.booleans(),
        requests=st.sampled_from([None, None, True, False]),
        last=st.sampled_from([False, False, False, True]),
    )
    def a_trial_reports(
        self, trial_id: str, saves: bool, point: bool, requests: bool | None, last: bool
    ) -> None:
        if not self.trains(trial_id):
            return
        self.reached[trial_id] += 1
        iteration = self.reached[trial_id]
        about = About(
            point=float(iteration) if point else None,
            last=last,
            saves=saves,
            requests=requests,
            may_be_last=not (last or saves),
        )
        self.do(self.sweep.reported(trial_id, {"training_iteration": iteration}, about))
        self.advance(trial_id)

    @precondition(lambda self: self.saving)
    @rule(data=st.data(), there=st.sampled_from([True, True, True, False]))
    def a_save_ends(self, data: st.DataObject, there: bool) -> None:
        one = data.draw(st.sampled_from(self.saving))
        self.saving.remove(one)
        path = f"{one.trial_id}/{one.report.iteration}/{len(self.journal)}"
        saved = path if there else None
        if there:
            self.saved[path] = one.report
        self.do(self.sweep.saved(one.trial_id, one.report, saved, path=path if there else ""))

    @precondition(lambda self: self.validating)
    @rule(data=st.data(), score=st.sampled_from([0.5, 0.9, None]))
    def a_validation_ends(self, data: st.DataObject, score: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.validating)))
        del self.validating[name]
        if score is not None:
            self.scores[name] = score
            metrics = {"accuracy": score}
            ended = ValidationEnded(id=name, status="validated", metrics=metrics, attempts=1)
        else:
            ended = ValidationEnded(id=name, status="failed", reason="raised KeyError: 'x'")
        self.do(self.sweep.ended(ended))

    @rule()
    def a_step_ends(self) -> None:
        self.do(self.sweep.flow())

    @rule(trial_id=st.sampled_from(TRIALS))
    def a_function_returns(self, trial_id: str) -> None:
        if self.trains(trial_id) and self.reached[trial_id]:
            self.do(self.sweep.returned(trial_id, {"__duplicate__": True}))
            self.advance(trial_id)

    @rule(trial_id=st.sampled_from(TRIALS), restarts=st.booleans())
    def a_trial_fails(self, trial_id: str, restarts: bool) -> None:
        if trial_id in self.over or self.sweep.queue_of(trial_id).over:
            return
        self.saving = [one for one in self.saving if one.trial_id != trial_id]
        self.do(self.sweep.failed(trial_id, "it has failed", restarts=restarts))
        self.advance(trial_id)

    @precondition(lambda self: any(trial_id not in self.over for trial_id in self.sweep.queues))
    @rule(data=st.data())
    def a_trial_is_stopped_by_hand(self, data: st.DataObject) -> None:
        waiting = [trial_id for trial_id in self.sweep.queues if trial_id not in self.over]
        trial_id = data.draw(st.sampled_from(waiting))
        self.over.add(trial_id)
        self.do(self.sweep.dropped(trial_id))

    # What always holds -------------------------------------------------------------------------

    @invariant()
    def queues_are_whole(self) -> None:
        for queue in self.sweep.queues.values():
            assert queue, "a trial without reports has no queue"
            assert list(broken_in(queue)) == []
            for one in list(queue)[:-1]:
                assert one.wants is not Wants.SCORE_IF_LAST or queue.over, "only the newest"

    @invariant()
    def each_validation_is_waited_for(self) -> None:
        assert self.state.unfinished.keys() == self.validating.keys()
        scoring = sum(
            one.stage is Stage.SCORING for queue in self.sweep.queues.values() for one in queue
        )
        assert scoring == len(self.validating)

    @invariant()
    def checkpoints_of_dropped_reports_are_deleted_once_and_no_others(self) -> None:
        dropped = {path for path, one in self.saved.items() if one.stage is Stage.DROPPED}
        assert self.deleted == Counter(dropped)

    def teardown(self) -> None:
        """At the end everything is given or dropped, and the journal is whole."""
        while self.saving or self.validating:
            for one in list(self.saving):
                self.saving.remove(one)
                self.do(self.sweep.saved(one.trial_id, one.report, "c", path="c"))
            for name in list(self.validating):
                self.validating.pop(name)
                self.do(self.sweep.ended(ValidationEnded(id=name, status="skipped")))
        self.do(self.sweep.flow())
        if self.scores:  # otherwise, reports wait for the first one
            left = [one for queue in self.sweep.queues.values() for one in queue]
            assert all(one.stage is Stage.OPEN for one in left), left
        check_journal(self.journal)
        for trial_id in TRIALS:
            reports = [
                event.report["training_iteration"]
                for event in self.journal
                if isinstance(event, Reported) and event.trial_id == trial_id
            ]
            assert set(self.given[trial_id]) <= set(reports)


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


class FactsOfEachCheckpoint(Facts):
    when = 1


TestReportsGetTheirOwnScoresInAnyOrderOfFactsIfDecisionsAreValidated = Facts.TestCase
TestReportsGetTheirOwnScoresInAnyOrderOfFactsIfEachCheckpointIsValidated = (
    FactsOfEachCheckpoint.TestCase
)
Facts.TestCase.settings = FactsOfEachCheckpoint.TestCase.settings = settings(
    max_examples=100 * SCHEDULES, stateful_step_count=30
)


def saving(sweep: Sweep, trial_id: str) -> Save:
    """Return the command to save the first report of a trial."""
    *_, recorded, save = sweep.reported(trial_id, {"training_iteration": 1}, About(saves=True))
    sweep.state.apply(recorded.event)
    return save


def made() -> Sweep:
    return Sweep(Rules(when=1), SweepState(required=frozenset({"accuracy"})))


def test_checkpoint_of_a_stopped_trial_is_deleted_and_its_validation_cancelled():
    sweep = made()
    sweep.saved("a", saving(sweep, "a").report, "c", path="c")
    assert sweep.dropped("a") == [Delete("c"), Cancel("a")]
    save = saving(sweep, "b")
    assert sweep.dropped("b") == []
    assert sweep.saved("b", save.report, "d", path="d") == [Delete("d")], "stopped during the save"


def test_trials_get_their_results_in_the_order_in_which_scores_arrive():
    sweep, names = made(), {}
    for trial_id in "abc":
        _, validate, _ = sweep.saved(trial_id, saving(sweep, trial_id).report, "c", path="c")
        names[trial_id] = validate.request.id
    for trial_id in "cab":
        metrics = {"accuracy": 0.5}
        ended = ValidationEnded(id=names[trial_id], status="validated", metrics=metrics)
        sweep.state.apply(ended)
        sweep.ended(ended)
    assert [one.trial_id for one in sweep.flow()] == ["c", "a", "b"]
