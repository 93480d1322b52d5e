from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decisions import Decisions
from tunekit.core.decision_points import Always, Interval, Never, Rungs


def due(rule, times, decisions=None, trial="a", start=1) -> list[float]:
    """The times, of consecutive reports, that are due; the last one does not end the trial."""
    decisions = decisions or Decisions()
    return [
        now
        for iteration, now in enumerate(times, start)
        if decisions.asked(trial, iteration, now, rule, done=False)
    ]


def test_a_rung_is_due_at_the_first_report_at_or_past_it():
    assert due(Rungs((1, 3, 9)), range(1, 30)) == [1, 3, 9]
    assert due(Rungs((1, 3, 9)), [0.5, 1.5, 2.5, 8.9, 9.1, 10]) == [1.5, 8.9, 9.1]
    assert due(Rungs((1.5, 2.25)), range(1, 6)) == [2, 3]


def test_a_report_past_several_rungs_serves_all_or_the_highest():
    times = [2, 30, 31, 32, 33]
    assert due(Rungs((1, 3, 9, 27)), times) == [2, 30]
    assert due(Rungs((1, 3, 9, 27), each=True), times) == [2, 30, 31, 32]


def test_an_interval_is_counted_from_the_last_due_report():
    assert due(Interval(4), range(1, 15)) == [4, 8, 12]
    assert due(Interval(4, burn_in=6), range(1, 15)) == [6, 10, 14]
    assert due(Interval(10), [7.0, 12.5, 19.0, 23.0, 32.0, 34.0]) == [12.5, 23.0, 34.0]


def test_what_the_books_show_counts_as_well():
    assert due(Rungs((1, 3, 9), frozenset({1, 3})), range(1, 10)) == [9]
    assert due(Interval(4, last=7), range(8, 20)) == [11, 15, 19]
    assert Interval(4, last=12).serves(15, coming=(10,)) is None
    assert Interval(4, last=10).serves(15, coming=(12,)) is None


def test_always_and_never():
    assert due(Always(), range(1, 5)) == [1, 2, 3, 4]
    assert due(Never(), range(1, 5)) == []


@pytest.mark.parametrize("rule", [Rungs((1, 3)), Interval(4), Always(), Never()])
def test_the_end_is_due_and_a_report_without_the_time_is_not(rule):
    decisions = Decisions()
    assert not decisions.asked("a", 1, None, rule, done=False)
    assert decisions.asked("a", 2, None, rule, done=True)
    assert decisions.asked("b", 1, 0.5, rule, done=True)


def test_trials_do_not_share_anything():
    decisions = Decisions()
    assert due(Interval(2), range(1, 5), decisions, "a") == [2, 4]
    assert due(Interval(2), range(1, 5), decisions, "b") == [2, 4]
    for iteration in (2, 4):
        decisions.settled("a", iteration)
    assert decisions.asked("a", 5, 5, Interval(2), done=False)
    assert not decisions.asked("b", 5, 5, Interval(2), done=False)


@pytest.mark.parametrize(
    ("rule", "fails", "then"),
    [(Rungs((1, 3, 9)), 3, [5, 9]), (Interval(4), 4, [5, 9, 13]), (Interval(4), 8, [9, 13])],
)
def test_when_a_validation_fails_the_next_report_is_due(rule, fails, then):
    decisions = Decisions()
    until = max(fails, 4)
    assert due(rule, range(1, until + 1), decisions)[-1] == fails
    for iteration in range(1, fails + 1):
        decisions.settled("a", iteration)
    assert due(rule, range(until + 1, 15), decisions, start=until + 1) == then


def test_an_older_score_that_fails_after_a_newer_one_was_due_is_made_up_for():
    decisions = Decisions()
    due(Rungs((1, 3, 9), each=True), range(1, 4), decisions)
    decisions.settled("a", 1)
    assert due(Rungs((1, 3, 9), each=True), range(4, 10), decisions, start=4) == [4, 9]
    decisions = Decisions()
    due(Rungs((1, 3, 9)), range(1, 4), decisions)
    decisions.settled("a", 1)  # the report at 3 is past 1 as well
    assert due(Rungs((1, 3, 9)), range(4, 10), decisions, start=4) == [9]


def test_a_score_that_was_heard_and_not_used_leaves_its_milestone_open():
    decisions = Decisions()
    due(Rungs((3,)), range(1, 4), decisions)
    decisions.settled("a", 3)
    assert due(Rungs((3,)), range(4, 6), decisions, start=4) == [4]


def test_reports_at_the_same_time_serve_once():
    epochs = [1, 1, 1, 2, 2, 2, 3, 3, 3]
    decisions = Decisions()
    asked = [
        decisions.asked("a", i, now, Rungs((1, 3)), done=False) for i, now in enumerate(epochs, 1)
    ]
    assert [i for i, is_due in enumerate(asked, 1) if is_due] == [1, 7]


def test_a_trial_with_other_weights_counts_from_the_books():
    decisions = Decisions()
    assert due(Interval(4), range(1, 11), decisions) == [4, 8]
    decisions.moved("a")  # by a clone of a trial that was perturbed at 12 and reports on from 14
    assert due(Interval(4, last=12), range(14, 22), decisions, start=14) == [16, 20]
    decisions.moved("a")  # and one of a trial that is behind
    assert due(Interval(4, last=5), range(6, 18), decisions, start=6) == [9, 13, 17]


def test_a_score_of_weights_that_are_gone_does_not_count():
    decisions = Decisions()
    assert decisions.asked("a", 10, 100.0, Interval(40), done=False)
    decisions.moved("a")  # by a trial that is ahead in iterations and behind in seconds
    rule = Interval(40, last=50.0)
    assert not decisions.asked("a", 12, 80.0, rule, done=False)
    assert decisions.asked("a", 13, 95.0, rule, done=False)


@given(
    st.lists(st.floats(0.01, 5), min_size=1, max_size=40),
    st.sets(st.floats(0.1, 60), max_size=8),
)
def test_every_interval_between_due_reports_holds_a_milestone(steps, milestones):
    times = [sum(steps[: n + 1]) for n in range(len(steps))]
    last, expected = 0.0, []
    for now in times:
        if any(last < milestone <= now for milestone in milestones):
            expected.append(now)
            last = now
    assert due(Rungs(tuple(sorted(milestones))), times) == expected
