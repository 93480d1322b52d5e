"""What a trial has reported, until Tune gets it; and what the trial does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.broken import of_queue
from tunekit.core.queue import Circumstances, Entry, Next, Process, Queue, what_next


def entry(iteration: int, **more: Any) -> Entry:
    return Entry({"training_iteration": iteration}, iteration=iteration, **more)


def queue_of(*entries: Entry) -> Queue:
    return Queue(entries)


def pending(iteration: int, serves: float | None = None) -> Entry:
    return entry(iteration, validated=True, scoring=True, checkpoint="c", decision_point=serves)


STEPS = st.lists(st.sampled_from(["report", "ask", "end", "fail", "take", "drop"]), max_size=40)


@given(STEPS, st.randoms(use_true_random=False))
def test_reports_leave_once_in_order_and_complete_whatever_happens(steps, chance):
    queue, iteration, left, void = Queue(), 0, [], set()
    for step in steps:
        open_ones = [one for one in queue if one.scoring]
        if step in ("report", "ask") and not queue.over:
            iteration += 1
            queue.append(pending(iteration) if step == "ask" else entry(iteration))
        elif step == "end" and open_ones:
            chance.choice(open_ones).scoring = False
        elif step == "fail" and not queue.over:
            queue.fail("it has failed", restarts=True)
        elif step == "take":
            while one := queue.take():
                assert one.complete
                left.append(one)
        elif step == "drop":
            void |= {one.iteration for one in queue.drop()}
        assert list(of_queue(queue)) == []
    told = [one.iteration for one in left if one.failure is None]
    assert told == sorted(set(told)) and not void & set(told) - {0}
    waiting = {one.iteration for one in queue if one.failure is None}
    assert {*told} | (void - {0}) | waiting == {*range(1, iteration + 1)}


def test_a_failure_waits_for_the_scores_of_earlier_reports():
    first, unsaved = pending(1), entry(2, saving=True)
    queue = queue_of(first, unsaved)
    assert queue.fail("it has failed", restarts=True) == [unsaved], "its checkpoint is lost"
    assert queue.take() is None and queue.over
    first.scoring = False
    assert [queue.take(), queue.take().failure, queue.take()] == [first, "it has failed", None]


def test_a_trial_that_restarts_has_not_ended_and_one_that_does_not_keeps_its_reports():
    again = queue_of(entry(1, checkpoint="c", may_be_last=True))
    assert again.fail("it has failed", restarts=True) == [] and again.take().iteration == 1
    ended = queue_of(entry(1, checkpoint="c", may_be_last=True), entry(2, saving=True))
    assert ended.fail("it has failed", restarts=False) == []
    assert [one.complete for one in ended] == [False, True, True], "is the first validated?"


def test_the_next_report_decides_whether_one_was_the_last():
    queue = queue_of(entry(1, checkpoint="c", may_be_last=True))
    assert queue.take() is None
    queue.settle()
    queue.append(entry(2))
    assert [queue.take().iteration, queue.take().iteration] == [1, 2]


WAIT, EACH = Circumstances("wait"), Circumstances("wait", each_score=True)
CONTINUE, AUTO = Circumstances("continue"), Circumstances()
OTHERS = Circumstances(others_wait=True)


@pytest.mark.parametrize(
    ("entries", "now", "known", "what"),
    [
        ([], EACH, {}, Next.TRAIN),
        ([pending(1)], EACH, {}, Next.WAIT),
        ([entry(1)], EACH, {}, Next.TRAIN),
        ([pending(1)], CONTINUE, {}, Next.TRAIN),
        ([pending(1, 1.0)], CONTINUE, {}, Next.TRAIN),
        ([pending(1, 1.0)], CONTINUE, {"decides_again": lambda: False}, Next.WAIT),
        ([pending(1, 1.0), pending(3, 3.0)], CONTINUE, {}, Next.WAIT),
        ([pending(1, 1.0)], AUTO, {}, Next.TRAIN),
        ([pending(1)], OTHERS, {"can_host": True}, Next.TRAIN),
        ([pending(1, 1.0)], OTHERS, {"can_host": True}, Next.WAIT),
        ([pending(1, 1.0)], AUTO, {"can_host": True}, Next.TRAIN),
        ([pending(1, 1.0)], Circumstances(synchronous=True), {}, Next.WAIT),
        ([pending(1), entry(2, last=True)], CONTINUE, {}, Next.RELEASE),
        ([pending(1), entry(2, last=True)], WAIT, {"can_host": True}, Next.WAIT),
        ([pending(1), entry(2, last=True, saving=True)], CONTINUE, {}, Next.WAIT),
        ([pending(1)], EACH, {"can_release": True}, Next.WAIT),
        ([pending(1)], EACH._replace(others_wait=True), {"can_release": True}, Next.RELEASE),
        ([pending(1)], EACH._replace(exclusive=True), {}, Next.RELEASE),
        ([pending(1), entry(2)], EACH._replace(exclusive=True), {}, Next.WAIT),
        ([pending(1)], WAIT, {"process": Process.VALIDATES}, Next.WAIT),
        ([entry(1, saving=True)], WAIT, {"process": Process.LOST}, Next.RELEASE),
        ([entry(1, saving=True)], WAIT, {"process": Process.LEAVES}, Next.WAIT),
        ([], WAIT, {"process": Process.LEAVES}, Next.RELEASE),
    ],
)
def test_what_a_trial_does_next(entries, now, known, what):
    assert what_next(queue_of(*entries), now, **known) is what
