"""Tune gets each report of a trial once, in order and complete, unless it was dropped."""

from __future__ import annotations

from typing import Any

import pytest

from tunekit.core.queue import Circumstances, Next, Process, Queue, what_next
from tunekit.core.report import Report, Stage, Wants


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


def test_report_to_score_if_last_is_ready_once_the_trial_continues_before_it_is_saved():
    first = saving(2, wants=Wants.SCORE_IF_LAST)
    first.continued()
    first.saved("c")
    assert first.stage is Stage.READY


def test_report_to_score_if_last_waits_for_its_save_once_the_trial_ends():
    last = saving(3, wants=Wants.SCORE_IF_LAST)
    last.ended(validates=True, saves=True)
    assert last.stage is Stage.SAVING
    last.saved("c")
    assert last.stage is Stage.SCORING


def test_pending_points_are_those_of_earlier_reports_that_decide():
    queue = Queue([scoring(1, at=1.0), saving(2), scoring(3, at=3.0), scoring(4, at=4.0)])
    assert queue.pending_points(4) == [1.0, 3.0]


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("validates", [True, False])
def test_unsaved_report_is_saved_at_the_trials_end_if_possible(validates, saves):
    unsaved = report(4, wants=Wants.SCORE_IF_LAST)
    unsaved.ended(validates=validates, saves=saves)
    assert unsaved.stage is (Stage.SAVING if saves else Stage.READY)


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
        ([scoring(1)], WAIT, {}, Next.WAIT),
        ([report(1)], WAIT, {}, Next.TRAIN),
        ([scoring(1)], CONTINUE, {}, Next.TRAIN),
        ([scoring(1, 1.0)], CONTINUE, {"decides_again": False}, Next.WAIT),
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
