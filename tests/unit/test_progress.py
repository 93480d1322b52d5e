"""What is said of validations while a sweep runs: the words, and when."""

from __future__ import annotations

import pytest

from tunekit.core.pool import Pool
from tunekit.core.progress import (
    News,
    awaited,
    counted,
    other_metrics,
    starved,
    waiting_trials,
)
from tunekit.core.validation import Pending, PendingStatus, Request
from tunekit.core.words import duration


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "none yet"),
        ({"validated": 0, "running": 0, "waiting": 0, "starting": 0, "failed": 0}, "none yet"),
        ({"validated": 3}, "3 validated"),
        ({"running": 2, "waiting": 3}, "2 running, 3 waiting"),
        ({"starting": 2, "waiting": 3}, "2 starting, 3 waiting"),
        (
            {"starting": 2, "queued": 2, "waiting": 3},
            "2 starting (2 queued for resources), 3 waiting",
        ),
        (
            {"starting": 3, "queued": 2, "waiting": 3},
            "3 starting (2 queued for resources), 3 waiting",
        ),
        ({"starting": 2, "queued": 2}, "2 starting (2 queued for resources)"),
        (
            {"skipped": 4, "timed_out": 3, "failed": 2, "validated": 1},
            "1 validated, 2 failed, 3 timed out, 4 skipped",
        ),
    ],
)
def test_counts_leave_out_what_is_zero(counts, said):
    assert counted(counts) == f"Validations: {said}"


def test_news_comes_soon_and_then_now_and_then():
    news = News(first_s=2, every_s=10)
    assert [now for now in range(40) if news.due(1000 + now)] == [2, 12, 22, 32]


def test_news_that_is_asked_for_rarely_does_not_catch_up():
    news = News(first_s=2, every_s=10)
    assert [news.due(now) for now in (0, 100, 101, 109, 110)] == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (119.9, "119 s"), (120, "2 min 0 s"), (7199, "119 min 59 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("waiting", "left", "said"),
    [
        (0, 0, None),
        (0, 3, None),
        (1, 1, "The one trial that has not ended waits for a score"),
        (1, 2, "1 of 2 trials waits for a score"),
        (2, 2, "Both trials that have not ended wait for a score"),
        (2, 3, "2 of 3 trials wait for a score"),
        (3, 3, "All 3 trials that have not ended wait for a score"),
    ],
)
def test_trials_that_stand_still(waiting, left, said):
    assert waiting_trials(waiting, left) == said


def test_a_short_wait_for_resources_is_not_worth_a_word():
    assert starved(0) is None
    assert starved(9.9) is None
    assert "for 10 s" in starved(10)


def test_running_validations_are_named_first_and_the_longest_before_all():
    pending = [
        Pending(Request("a", 9), PendingStatus.WAITING, 50.0),
        Pending(Request("b", 3), PendingStatus.STARTING, 20.0, queued=True),
        Pending(Request("b", 2), PendingStatus.RUNNING, 4.0),
        Pending(Request("a", 8, timeout_s=600), PendingStatus.RUNNING, 30.0),
        Pending(Request("c", 1), PendingStatus.WAITING, 1.0),
    ]
    assert awaited(pending, waited_s=75) == (
        "All trials have ended; the sweep has waited 75 s for 5 validations: "
        "validate a@8 (running 30 s, at most 10 min 0 s), "
        "validate b@2 (running 4 s), "
        "validate b@3 (queued for resources, asked for 20 s ago), and 2 more"
    )
    assert awaited(pending[:1], waited_s=2) == (
        "All trials have ended; the sweep has waited 2 s for 1 validation: "
        "validate a@9 (waiting 50 s to be started)"
    )


def test_validated_metrics_come_before_reported_ones():
    results = [{"loss": 1.0, "grad": 2.0}, {"loss": 0.5, "top1": 0.2, "top5": 0.9, "lag": 3}]
    names = other_metrics(results, ["top5", "top1", "absent"], shown=["top1"], most=3)
    assert names == ["top5", "loss", "grad"]


def test_what_tune_and_tunekit_add_is_no_metric():
    result = {
        "generation": 0,
        "iteration_runs": 2,
        "should_checkpoint": True,
        "done": False,
        "timestamp": 1,
        "time_total_s": 3.0,
        "training_iteration": 4,
        "validated_iteration": 4,
        "name": "x",
        "nested": {"loss": 1.0},
    }
    assert other_metrics([result], [], shown=[]) == []
    assert other_metrics([result, {"generation": 2}], [], shown=[]) == ["generation"]


def test_the_pool_tells_how_far_each_request_is():
    pool = Pool(max_in_flight=2)
    for iteration in (1, 2, 3):
        pool.submit(Request("a", iteration), now=10.0)
    first, _ = pool.start(capacity=0, now=10.0)
    pool.began(first.id, now=13.0)
    assert [(p.request.iteration, p.status, p.for_s) for p in pool.statuses(now=20.0)] == [
        (1, PendingStatus.RUNNING, 7.0),
        (2, PendingStatus.STARTING, 10.0),
        (3, PendingStatus.WAITING, 10.0),
    ]
    assert [p.request for p in pool.statuses(now=20.0)] == list(pool.pending())
