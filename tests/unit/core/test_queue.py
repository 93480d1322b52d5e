"""A trial's reports until Tune gets them, and what the trial does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.invariants import broken_in
from tunekit.core.queue import Circumstances, Entry, Next, Process, Queue, Stage, what_next


def entry(iteration: int, **more: Any) -> Entry:
    return Entry({"training_iteration": iteration}, iteration=iteration, **more)


def pending(iteration: int, at: float | None = None) -> Entry:
    return entry(iteration, validated=True, stage=Stage.SCORING, checkpoint="c", decision_point=at)


REPORTED = [Stage.SAVING, Stage.DONE]


class ReportsOfATrial(RuleBasedStateMachine):
    """Whatever happens, Tune gets each report once, in order and complete, or it was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.reported = Queue(), 0
        self.processed: list[int] = []
        self.dropped: set[int] = set()

    @precondition(lambda self: not self.queue.over)
    @rule(stage=st.sampled_from(REPORTED), validated=st.sampled_from([None, False]))
    def the_trial_reports(self, stage: Stage, validated: bool | None) -> None:
        self.queue.settle()
        self.reported += 1
        self.queue.append(entry(self.reported, stage=stage, validated=validated))

    @precondition(lambda self: self.queue.saves)
    @rule(data=st.data(), validates=st.booleans())
    def a_checkpoint_is_saved(self, data: st.DataObject, validates: bool) -> None:
        one = data.draw(st.sampled_from([one for one in self.queue if one.stage is Stage.SAVING]))
        one.checkpoint, one.stage = "c", Stage.SCORING if validates else Stage.DONE

    @precondition(lambda self: any(one.stage is Stage.SCORING for one in self.queue))
    @rule(data=st.data())
    def a_validation_ends(self, data: st.DataObject) -> None:
        waiting = [one for one in self.queue if one.stage is Stage.SCORING]
        data.draw(st.sampled_from(waiting)).stage = Stage.DONE

    @precondition(lambda self: not self.queue.over)
    @rule(restarts=st.booleans())
    def the_trial_fails(self, restarts: bool) -> None:
        lost = self.queue.fail("it has failed", restarts=restarts)
        self.dropped |= {one.iteration for one in lost}

    @rule()
    def tune_processes_what_is_complete(self) -> None:
        while one := self.queue.take():
            assert one.complete
            self.processed += [one.iteration] if one.failure is None else []

    @rule()
    def a_decision_makes_the_rest_void(self) -> None:
        self.dropped |= {one.iteration for one in self.queue.drop()}

    @invariant()
    def no_invariant_of_a_queue_is_broken(self) -> None:
        assert list(broken_in(self.queue)) == []

    @invariant()
    def each_report_is_in_one_place(self) -> None:
        reports = [one for one in self.queue if one.failure is None]
        queued = [one.iteration for one in reports]
        assert self.processed == sorted(set(self.processed)), "in order, and once"
        assert not self.dropped & {*self.processed, *queued} - {0}
        everything = {*self.processed, *queued, *self.dropped} - {0}
        assert everything == {*range(1, self.reported + 1)}, "none is lost"
        assert all(one.validated is not None for one in reports[:-1]), "only the newest may be last"


TestReportsOfATrial = ReportsOfATrial.TestCase


def test_a_failure_waits_for_the_scores_of_earlier_reports():
    first, unsaved = pending(1), entry(2, stage=Stage.SAVING)
    queue = Queue([first, unsaved])
    assert queue.fail("it has failed", restarts=True) == [unsaved], "its checkpoint is lost"
    assert queue.take() is None and queue.over
    first.stage = Stage.DONE
    assert [queue.take(), queue.take().failure, queue.take()] == [first, "it has failed", None]


def test_a_trial_that_restarts_has_not_ended_and_one_that_does_not_keeps_its_reports():
    again = Queue([entry(1, checkpoint="c", validated=None)])
    assert again.fail("it has failed", restarts=True) == [] and again.take().iteration == 1
    ended = Queue([entry(1, checkpoint="c", validated=None), entry(2, stage=Stage.SAVING)])
    assert ended.fail("it has failed", restarts=False) == []
    assert [one.complete for one in ended] == [False, True, True], "is the first validated?"


WAIT, CONTINUE, AUTO = Circumstances("wait"), Circumstances("continue"), Circumstances()
OTHERS = Circumstances(others_wait=True)


@pytest.mark.parametrize(
    ("entries", "now", "known", "what"),
    [
        ([], WAIT, {}, Next.TRAIN),
        ([pending(1)], WAIT, {}, Next.WAIT),
        ([entry(1)], WAIT, {}, Next.TRAIN),
        ([pending(1)], CONTINUE, {}, Next.TRAIN),
        ([pending(1, 1.0)], CONTINUE, {}, Next.TRAIN),
        ([pending(1, 1.0)], CONTINUE, {"decides_again": False}, Next.WAIT),
        ([pending(1, 1.0), pending(3, 3.0)], CONTINUE, {}, Next.WAIT),
        ([pending(1, 1.0)], AUTO, {}, Next.TRAIN),
        ([pending(1)], OTHERS, {"can_host": True}, Next.TRAIN),
        ([pending(1, 1.0)], OTHERS, {"can_host": True}, Next.WAIT),
        ([pending(1, 1.0)], AUTO, {"can_host": True}, Next.TRAIN),
        ([pending(1, 1.0)], Circumstances(synchronous=True), {}, Next.WAIT),
        ([pending(1), entry(2, last=True)], CONTINUE, {}, Next.RELEASE),
        ([pending(1), entry(2, last=True)], WAIT, {"can_host": True}, Next.WAIT),
        ([pending(1), entry(2, last=True, stage=Stage.SAVING)], CONTINUE, {}, Next.WAIT),
        ([pending(1)], WAIT, {"can_release": True}, Next.WAIT),
        ([pending(1)], WAIT._replace(others_wait=True), {"can_release": True}, Next.RELEASE),
        ([pending(1)], WAIT._replace(exclusive=True), {}, Next.RELEASE),
        ([pending(1), entry(2)], WAIT._replace(exclusive=True), {}, Next.WAIT),
        ([pending(1)], WAIT, {"process": Process.VALIDATES}, Next.WAIT),
        ([entry(1, stage=Stage.SAVING)], WAIT, {"process": Process.ENDED}, Next.RELEASE),
        ([entry(1, stage=Stage.SAVING)], WAIT, {"process": Process.LEAVES}, Next.WAIT),
        ([], WAIT, {"process": Process.LEAVES}, Next.RELEASE),
    ],
)
def test_what_a_trial_does_next(entries, now, known, what):
    assert what_next(Queue(entries), now, **known) is what
