"""Tune gets each report of a trial once, in order and complete, unless it was dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.invariants import broken_in
from tunekit.core.queue import Circumstances, Next, Process, Queue, what_next
from tunekit.core.report import MOVES, IllegalMove, Report, Stage, Wants


def report(iteration: int, **more: Any) -> Report:
    return Report({"training_iteration": iteration}, iteration=iteration, **more)


def saving(iteration: int, **more: Any) -> Report:
    return report(iteration, saves=True, **more)


def scoring(iteration: int, at: float | None = None) -> Report:
    one = saving(iteration, wants=Wants.SCORE, decision_point=at)
    one.saved("c")
    return one


def undecided() -> Report:
    one = saving(1, wants=Wants.SCORE_IF_LAST)
    one.saved("c")
    return one


#: What may happen to a report, by the name of the fact.
FACTS: dict[str, Callable[[Report], None]] = {
    "saved": lambda one: one.saved("c"),
    "lost": Report.lost,
    "continued": Report.continued,
    "ended": lambda one: one.ended(validates=True, saves=True),
    "requested": Report.requested,
    "scored": lambda one: one.scored({"accuracy": 0.5}),
    "given": Report.give,
    "dropped": Report.drop,
}


def in_each_state() -> list[Report]:
    is_open = report(3, wants=Wants.SCORE_IF_LAST)
    given, dropped = report(5), report(6)
    given.give()
    dropped.drop()
    return [saving(1), scoring(2), is_open, report(4), given, dropped]


@pytest.mark.parametrize("fact", FACTS)
def test_report_refuses_every_move_that_its_table_lacks_for_its_stage(fact):
    assert {one.stage for one in in_each_state()} == {*Stage}
    for one in in_each_state():
        former = one.stage
        waits = fact in ("continued", "ended") and former is not Stage.OPEN
        if waits and (former is Stage.SAVING or fact == "continued"):
            FACTS[fact](one)  # it is applied later, or changes nothing
            assert one.stage is former
        elif (former, fact) in MOVES:
            FACTS[fact](one)
            assert one.stage in MOVES[former, fact]
        else:
            with pytest.raises(IllegalMove):
                FACTS[fact](one)
            assert one.stage is former


def test_report_to_score_if_last_is_scored_at_the_trials_end_and_else_ready():
    first, last = (saving(n, wants=Wants.SCORE_IF_LAST) for n in (2, 3))
    assert undecided().stage is Stage.OPEN
    first.continued()  # before it is saved
    first.saved("c")
    assert first.stage is Stage.READY
    last.ended(validates=True, saves=True)
    assert last.stage is Stage.SAVING
    last.saved("c")
    assert last.stage is Stage.SCORING
    for validates, saves, then in [
        (True, True, Stage.SAVING),
        (False, True, Stage.SAVING),
        (True, False, Stage.READY),
    ]:
        unsaved = report(4, wants=Wants.SCORE_IF_LAST)
        unsaved.ended(validates=validates, saves=saves)
        assert unsaved.stage is then


class ReportsOfATrial(RuleBasedStateMachine):
    """A trial that reports, saves, fails and returns in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.reported = Queue(), 0
        self.processed: list[int] = []
        self.dropped: set[int] = set()

    def of(self, state: Stage) -> list[Report]:
        return [one for one in self.queue if one.stage is state]

    @precondition(lambda self: not self.queue.over)
    @rule(saves=st.booleans(), wants=st.sampled_from(Wants))
    def the_trial_reports(self, saves: bool, wants: Wants) -> None:
        self.queue.continues()
        self.reported += 1
        wants = wants if saves or wants is not Wants.SCORE else Wants.NOTHING
        self.queue.append(report(self.reported, saves=saves, wants=wants))

    @precondition(lambda self: self.queue.saves)
    @rule(data=st.data(), there=st.booleans())
    def a_save_ends(self, data: st.DataObject, there: bool) -> None:
        one = data.draw(st.sampled_from(self.of(Stage.SAVING)))
        if there:
            one.saved("c")
        else:
            one.lost()

    @precondition(lambda self: self.of(Stage.SCORING))
    @rule(data=st.data())
    def a_validation_ends(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.of(Stage.SCORING))).scored(None)

    @precondition(lambda self: self.queue.undecided and not self.queue.over)
    @rule(validates=st.booleans(), saves=st.booleans())
    def the_trial_returns(self, validates: bool, saves: bool) -> None:
        self.queue.undecided.ended(validates=validates, saves=saves)
        self.queue.append(report(0, last=True))

    @precondition(lambda self: not self.queue.over)
    @rule(restarts=st.booleans())
    def the_trial_fails(self, restarts: bool) -> None:
        lost = self.queue.fail("it has failed", restarts=restarts)
        self.dropped |= {one.iteration for one in lost}

    @rule()
    def tune_processes_what_is_complete(self) -> None:
        while one := self.queue.take():
            one.give()
            self.processed += [one.iteration] if one.iteration else []

    @rule()
    def a_decision_makes_the_rest_void(self) -> None:
        self.dropped |= {one.iteration for one in self.queue}
        self.queue.clear()

    @invariant()
    def no_invariant_of_a_queue_is_broken(self) -> None:
        assert list(broken_in(self.queue)) == []

    @invariant()
    def each_report_is_in_one_place(self) -> None:
        queued = [one.iteration for one in self.queue if one.iteration]
        assert self.processed == sorted(set(self.processed)), "in order, and once"
        assert not self.dropped & {*self.processed, *queued} - {0}
        everything = {*self.processed, *queued, *self.dropped} - {0}
        assert everything == {*range(1, self.reported + 1)}, "none is lost"
        for one in list(self.queue)[:-1]:
            assert one.wants is not Wants.SCORE_IF_LAST or self.queue.over, "only the newest"


TestEachReportReachesTuneOnceInOrderOrIsDropped = ReportsOfATrial.TestCase


def test_trial_failure_leaves_the_queue_only_after_the_scores_of_earlier_reports():
    first, unsaved = scoring(1), saving(2)
    queue = Queue([first, unsaved])
    assert queue.fail("it has failed", restarts=True) == [unsaved], "its checkpoint is lost"
    assert queue.take() is None and queue.over
    first.scored(None)
    assert [queue.take(), queue.take().failure, queue.take()] == [first, "it has failed", None]


def test_last_saved_report_of_a_failed_trial_stays_open_unless_the_trial_restarts():
    again = Queue([undecided()])
    assert again.fail("it has failed", restarts=True) == [] and again.take().iteration == 1
    ended = Queue([undecided(), saving(2)])
    assert ended.fail("it has failed", restarts=False) == []
    assert [one.stage for one in ended] == [Stage.OPEN, Stage.READY, Stage.READY]


WAIT, CONTINUE, AUTO = Circumstances("wait"), Circumstances("continue"), Circumstances()
OTHERS = Circumstances(others_wait=True)


@pytest.mark.parametrize(
    ("reports", "now", "known", "what"),
    [
        ([], WAIT, {}, Next.TRAIN),
        ([scoring(1)], WAIT, {}, Next.WAIT),
        ([report(1)], WAIT, {}, Next.TRAIN),
        ([scoring(1)], CONTINUE, {}, Next.TRAIN),
        ([scoring(1, 1.0)], CONTINUE, {}, Next.TRAIN),
        ([scoring(1, 1.0)], CONTINUE, {"decides_again": False}, Next.WAIT),
        ([scoring(1, 1.0), scoring(3, 3.0)], CONTINUE, {}, Next.WAIT),
        ([scoring(1, 1.0)], AUTO, {}, Next.TRAIN),
        ([scoring(1)], OTHERS, {"can_host": True}, Next.TRAIN),
        ([scoring(1, 1.0)], OTHERS, {"can_host": True}, Next.WAIT),
        ([scoring(1, 1.0)], AUTO, {"can_host": True}, Next.TRAIN),
        ([scoring(1, 1.0)], Circumstances(synchronous=True), {}, Next.WAIT),
        ([scoring(1), report(2, last=True)], CONTINUE, {}, Next.RELEASE),
        ([scoring(1), report(2, last=True)], WAIT, {"can_host": True}, Next.WAIT),
        ([scoring(1), saving(2, last=True)], CONTINUE, {}, Next.WAIT),
        ([scoring(1)], WAIT, {"can_release": True}, Next.WAIT),
        ([scoring(1)], WAIT._replace(others_wait=True), {"can_release": True}, Next.RELEASE),
        ([scoring(1)], WAIT._replace(exclusive=True), {}, Next.RELEASE),
        ([scoring(1), report(2)], WAIT._replace(exclusive=True), {}, Next.WAIT),
        ([scoring(1)], WAIT, {"process": Process.VALIDATES}, Next.WAIT),
        ([saving(1)], WAIT, {"process": Process.ENDED}, Next.RELEASE),
        ([saving(1)], WAIT, {"process": Process.LEAVES}, Next.WAIT),
        ([], WAIT, {"process": Process.LEAVES}, Next.RELEASE),
    ],
)
def test_trial_trains_waits_or_releases_its_slot_as_its_queue_and_settings_require(
    reports, now, known, what
):
    assert what_next(Queue(reports), now, **known) is what
