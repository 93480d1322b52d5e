"""What fits beside what, and what waits."""

from __future__ import annotations

import pytest

from tunekit.core.room import Shortage, one_at_a_time, queued, shares


@pytest.mark.parametrize(
    ("cluster", "trial", "validation", "turns"),
    [
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, True),
        ({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, False),
        ({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1, "GPU": 1}, True),
        ({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, False),  # side by side
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.3}, {"GPU": 0.7}, False),
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.6}, {"GPU": 0.5}, True),
        ({"CPU": 8}, {"CPU": 4}, {"CPU": 5}, False),  # two trials fit
        ({"CPU": 1}, {"CPU": 2}, {"CPU": 1}, False),  # none fits, or not yet
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1, "GPU": 1}, False),
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 0}, False),
        ({"CPU": 4, "fast": 1}, {"CPU": 1, "fast": 1}, {"CPU": 1, "fast": 1}, True),
    ],
)
def test_what_can_only_run_one_after_the_other(cluster, trial, validation, turns):
    assert one_at_a_time(cluster, trial, validation) is turns


@pytest.mark.parametrize(
    ("shape", "need", "wants"),
    [
        ({"CPU": 1.0}, {"CPU": 1}, True),
        ({"CPU": 1.0}, {"CPU": 2}, False),
        ({"CPU": 1.0, "GPU": 1.0}, {"CPU": 1}, False),
        ({"CPU": 1.0, "GPU": 0.3333}, {"CPU": 1, "GPU": 1 / 3}, True),
        ({"CPU": 1.0, "accelerator_type:H100": 0.001}, {"CPU": 1}, True),
        ({"CPU_group_0_ab": 1.0, "bundle_group_ab": 0.001}, {"CPU": 1}, True),
        ({"bundle_group_ab": 0.001}, {"CPU": 1}, False),
        ({"validation": 1.0}, {"validation": 1}, True),
        ({"CPU": 1.0}, {"CPU": 1, "validation": 1}, False),
    ],
)
def test_who_waits_for_what(shape, need, wants):
    assert queued([(shape, 3), ({"other": 1.0}, 5)], need) == (3 if wants else 0)


def test_a_shortage_is_over_when_anything_has_its_resources():
    shortage = Shortage()
    shortage.seen(started=0, queued=0, now=0.0)
    assert shortage.for_s(5.0) == 0
    shortage.seen(started=3, queued=3, now=5.0)
    shortage.seen(started=3, queued=3, now=6.0)
    assert shortage.for_s(7.0) == 2.0
    shortage.relieved(now=8.0)
    assert shortage.for_s(9.0) == 1.0
    shortage.seen(started=3, queued=2, now=9.0)
    assert shortage.for_s(20.0) == 0
    shortage.relieved(now=20.0)
    assert shortage.for_s(21.0) == 0, "there was none to relieve"


@pytest.mark.parametrize(
    ("on_pending", "when", "lends", "in_trials", "left"),
    [
        ("auto", "decisions", True, False, 0),
        ("wait", "decisions", True, False, 0),
        ("auto", "decisions", False, False, 1),
        ("auto", 1, True, False, 1),  # scores of trials that train on
        ("wait", 1, True, True, 0),
        ("continue", "decisions", True, True, 1),
    ],
)
def test_room_is_left_unless_trials_make_it(on_pending, when, lends, in_trials, left):
    one = {"CPU": 1.0}
    known = {"on_pending": on_pending, "when": when, "lends": lends, "in_trials": in_trials}
    for pausing in (False, True):
        found = shares({"CPU": 4.0}, one, one, most=1, pausing=pausing, **known)
        assert (found.limit, found.validations) == (None if pausing else 4 - left, left)
