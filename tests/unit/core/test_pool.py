"""The pool starts validations in turn, within limits and resources, and ends each one once."""

from __future__ import annotations

import pytest

from tunekit.core.pool import Pool
from tunekit.core.shares import matching, shares
from tunekit.core.timing import StartTimes
from tunekit.core.validation import Request

FINE = {"accuracy": 0.5}


def names(attempts) -> list[str]:
    return [attempt.id for attempt in attempts]


def filled(*requests: Request, **settings) -> Pool:
    pool = Pool(**settings)
    for one in requests:
        assert pool.submit(one, now=0.0) == []
    return pool


def decoration(trial: str, iteration: int) -> Request:
    return Request(trial, iteration, used=False)


def in_order(pool: Pool) -> list[str]:
    started = []
    while pool.queued:
        [attempt] = pool.start(capacity=1, now=0.0)
        started.append(attempt.id.rsplit(":", 1)[0])
        pool.returned(attempt.id, FINE, {}, now=0.0)
    return started


def test_max_in_flight_limits_the_attempts_of_all_trials_together():
    pool = filled(*(Request(t, i) for t in "ab" for i in (1, 2)), max_in_flight=3)
    assert not pool.needs_capacity
    assert len(pool.start(capacity=0, now=0.0)) == 3
    assert pool.start(capacity=100, now=0.0) == []
    pool.returned("a:0:1:1#1", FINE, {}, now=1.0)
    assert len(pool.start(capacity=100, now=1.0)) == 1


def test_without_max_in_flight_pool_starts_as_many_as_resources_allow_and_at_least_one():
    pool = filled(*(Request("a", i) for i in range(1, 6)))
    assert pool.needs_capacity
    assert names(pool.start(capacity=0, now=0.0)) == ["a:0:1:1#1"]
    assert pool.start(capacity=0, now=0.0) == []
    assert names(pool.start(capacity=2, now=0.0)) == ["a:0:2:1#1", "a:0:3:1#1"]


def test_trials_take_turns_and_the_oldest_checkpoint_of_each_is_validated_first():
    pool = filled(*(Request("a", i) for i in (1, 2, 3)), Request("b", 7), Request("c", 9))
    assert in_order(pool) == ["a:0:1", "b:0:7", "c:0:9", "a:0:2", "a:0:3"]


def test_trial_with_no_validation_in_flight_goes_before_one_with_some():
    pool = filled(Request("b", 1), Request("a", 1), max_in_flight=2)
    assert names(pool.start(0, now=0.0)) == ["b:0:1:1#1", "a:0:1:1#1"]
    pool.submit(Request("b", 2), now=0.0)
    pool.submit(Request("a", 2), now=0.0)
    pool.returned("a:0:1:1#1", FINE, {}, now=1.0)
    # b was served longer ago, but one of it still runs.
    assert names(pool.start(0, now=1.0)) == ["a:0:2:1#1"]


def test_validation_timeout_counts_from_the_start_of_running_not_from_the_request():
    pool = filled(Request("a", 1, timeout_s=10.0))
    [attempt] = pool.start(1, now=0.0)
    assert pool.expire(now=1000.0) == ([], [])  # it waits for resources
    pool.began(attempt.id, now=1000.0)
    assert pool.expire(now=1009.9) == ([], [])
    cancel, [outcome] = pool.expire(now=1010.0)
    assert cancel == [attempt]
    assert outcome.status == "timed_out"
    assert "10 s" in outcome.reason
    assert (outcome.waited_s, outcome.ran_s) == (1000.0, 10.0)
    assert pool.idle


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_failed_validation_is_retried_max_retries_times_and_then_recorded(retries):
    pool = filled(Request("a", 1), Request("a", 2), max_retries=retries)
    for number in range(1, retries + 2):
        [attempt] = pool.start(0, now=0.0)
        assert attempt.id == f"a:0:1:1#{number}"  # before the newer one
        outcome = pool.failed(attempt.id, "raised ValueError: no", "trace", now=1.0)
    assert outcome.status == "failed"
    assert outcome.attempts == retries + 1
    assert outcome.error == "trace"
    assert outcome.reason.startswith("raised ValueError: no")
    assert (str(retries + 1) in outcome.reason) == (retries > 0)


def test_retry_of_a_timed_out_validation_has_its_full_time_limit():
    pool = filled(Request("a", 1, timeout_s=5.0), max_retries=1)
    for began in (0.0, 8.0):
        [attempt] = pool.start(1, now=began)
        pool.began(attempt.id, now=began)
        assert pool.expire(now=began + 4.0) == ([], [])
        cancelled, ended = pool.expire(now=began + 5.0)
        assert cancelled == [attempt]
    assert [(one.status, one.attempts) for one in ended] == [("timed_out", 2)]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "NoneType"),
        (0.5, "float"),
        ({}, "dict"),
        ({"accuracy": "x"}, "'accuracy'"),
        ({"accuracy": 0.5, "training_iteration": 3}, "'training_iteration'"),
    ],
)
def test_return_value_that_is_not_a_score_fails_its_validation_without_a_retry(value, named):
    pool = filled(Request("a", 1), max_retries=5)
    [attempt] = pool.start(1, now=0.0)
    outcome = pool.returned(attempt.id, value, {"accuracy"}, now=1.0)
    assert outcome.status == "failed"
    assert outcome.metrics == {}
    assert named in outcome.reason and pool.idle


def test_queued_validation_is_skipped_once_its_iteration_is_run_again():
    pool = filled(Request("a", 5))
    [replaced] = pool.submit(Request("a", 5, run=2), now=1.0)
    assert (replaced.key.run, replaced.status) == (1, "skipped") and "5" in replaced.reason
    assert [r.id for r in pool.pending()] == ["a:0:5:2"]


def test_dropping_a_trial_ends_all_of_its_validations_and_no_others():
    pool = filled(*(Request(t, i) for t in "ab" for i in (1, 2)), max_in_flight=2)
    pool.start(0, now=0.0)
    cancel, outcomes = pool.drop("a", "its trial failed", now=3.0)
    assert names(cancel) == ["a:0:1:1#1"]
    ended = {(one.id, one.status, one.reason) for one in outcomes}
    assert ended == {(f"a:0:{i}:1", "skipped", "its trial failed") for i in (1, 2)}
    assert {one.trial_id for one in pool.pending()} == {"b"}


def test_validations_of_a_trial_with_a_pending_decision_start_first_oldest_first():
    given = [decoration("a", 1), decoration("b", 1), decoration("b", 2), Request("b", 3)]
    assert in_order(filled(*given)) == ["b:0:1", "b:0:2", "b:0:3", "a:0:1"]


def test_trial_hosts_validations_only_if_one_decides_or_the_trial_waits_for_each():
    pool = filled(decoration("a", 1), decoration("b", 1), Request("b", 3), Request("c", 1))
    assert pool.start_in_trials("ax", each=False) == [], "its trial has to wait"
    assert names(pool.start_in_trials("abc", each=False)) == ["b:0:1:1#1", "c:0:1:1#1"]
    assert names(pool.start_in_trials("a", each=True)) == ["a:0:1:1#1"]
    pool.returned("b:0:1:1#1", FINE, {}, now=1.0)
    assert [trial for trial in "abcx" if pool.runs_in(trial)] == ["a", "c"]


def test_trials_host_at_most_max_in_flight_validations():
    pool = filled(Request("b", 3), Request("c", 1), max_in_flight=1)
    assert len(pool.start_in_trials("bc", each=False)) == 1
    assert pool.start_in_trials("bc", each=False) == []


@pytest.mark.parametrize(
    ("elsewhere", "hosted", "others_wait", "started"),
    [
        (0, 0, False, 3),
        (2, 0, False, 3),  # no other trial could use the slots
        (0, 0, True, 3),
        (2, 0, True, 1),  # two of the three wait for one validation each
        (3, 0, True, 0),
        (2, 2, True, 1),  # no trial waits for those in other trials' processes
    ],
)
def test_each_validation_elsewhere_spares_a_trial_from_hosting_if_its_slot_is_needed(
    elsewhere, hosted, others_wait, started
):
    pool = filled(*(Request(f"x{n}", 1) for n in range(elsewhere)))
    pool.start(elsewhere, now=0.0)
    for trial in [f"y{n}" for n in range(hosted)]:
        pool.submit(Request(trial, 1), now=0.0)
        assert pool.start_in_trials([trial], each=False)
    standing = [f"t{n}" for n in range(3)]
    for trial in standing:
        pool.submit(Request(trial, 1), now=0.0)
    found = pool.start_in_trials(standing, each=False, others_wait=others_wait)
    assert len(found) == started


def test_validations_starve_for_as_long_as_none_has_resources():
    pool = filled(*(Request("a", n) for n in range(1, 4)), max_in_flight=4)
    assert pool.starved_s(5.0) == 0
    first, *_ = pool.start(0, now=5.0)
    for now in (5.0, 6.0):
        pool.set_unplaced(3, now)
    assert pool.starved_s(7.0) == 2.0
    pool.relieved(now=8.0)
    assert pool.starved_s(9.0) == 1.0
    pool.submit(Request("b", 1), now=9.0)
    pool.start(0, now=9.0)
    assert pool.starved_s(9.0) == 1.0, "one more makes no difference"
    pool.set_unplaced(2, now=9.0)  # the process of one starts
    assert pool.starved_s(20.0) == 0
    pool.set_unplaced(4, now=20.0)
    pool.began(first.id, now=22.0)
    assert pool.starved_s(23.0) == 0
    pool.returned(first.id, FINE, {}, now=23.0)
    pool.set_unplaced(3, now=23.0)
    assert pool.starved_s(24.0) == 1.0
    for trial in "ab":
        pool.drop(trial, "its trial failed", now=25.0)
    assert pool.starved_s(26.0) == 0


def test_deciding_validation_needs_a_slot_unless_held_back_by_max_in_flight():
    assert not filled(decoration("a", 1)).needs_slot
    pool = filled(Request("a", 1), Request("b", 1))
    assert pool.needs_slot
    limited = filled(Request("a", 1), Request("b", 1), max_in_flight=1)
    limited.start(capacity=0, now=0.0)
    assert not limited.needs_slot
    limited.set_unplaced(1, now=0.0)  # the one that was started waits for resources
    assert limited.needs_slot


def test_expected_wait_of_a_trial_is_the_typical_rest_of_its_deciding_validations():
    pool = filled(Request("a", 1), decoration("a", 2), decoration("b", 1))
    pool.durations.runs.extend([2.0, 6.0, 90.0])
    for attempt in pool.start(capacity=3, now=1.0):
        pool.began(attempt.id, now=1.0)
    assert [pool.wait_s("a", now) for now in (1.0, 5.0, 60.0)] == [6.0, 2.0, 0.0]
    assert pool.wait_s("b", now=5.0) is None, "the scheduler will not use it"


# How long trials take to start -------------------------------------------------------------------


def test_trial_start_is_measured_only_from_its_begin_to_the_first_report():
    starts = StartTimes()
    starts.begins("a", 0.0)
    starts.ends("a")  # it failed, and starts again
    starts.begins("a", 50.0)
    starts.reported("a", 54.0)
    starts.reported("a", 90.0)  # its start was not seen
    assert starts.typical_s == 4.0


# What fits alongside what, and what waits --------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "trial", "validation", "most", "exclusive", "alongside"),
    [
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, 1, True, None),
        ({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, 4, False, 1),  # one validation must be enough
        ({"CPU": 8}, {"CPU": 2}, {"CPU": 1}, 3, False, 2),
        ({"CPU": 8}, {"CPU": 4}, {"CPU": 5}, 1, True, None),  # two trials fit, both have to wait
        ({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, 1, False, None),  # nothing is shared
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.3}, {"GPU": 0.7}, 1, False, 1),
        ({"CPU": 4, "GPU": 1}, {"GPU": 0.6}, {"GPU": 0.5}, 1, True, None),
        ({"CPU": 1}, {"CPU": 2}, {"CPU": 1}, 1, False, None),  # no trial fits, or not yet
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 1, "GPU": 1}, 1, False, None),
        ({"CPU": 1}, {"CPU": 1}, {"CPU": 0}, 1, False, None),
        ({"CPU": 1}, {"fast": 0.5}, {"fast": 0.4}, 1, False, None),  # the cluster has none
        ({"CPU": 4, "fast": 1}, {"CPU": 1, "fast": 1}, {"CPU": 1, "fast": 1}, 1, True, None),
    ],
)
def test_trials_run_alongside_validations_or_exclude_them_as_the_cluster_has_room(
    cluster, trial, validation, most, exclusive, alongside
):
    found = shares(cluster, trial, validation, most=most)
    assert (found.exclusive, found.alongside) == (exclusive, alongside)


def test_trials_leave_validations_all_of_a_resource_that_they_do_not_need():
    assert shares({"CPU": 8, "GPU": 1}, {"CPU": 1}, {"GPU": 1}, most=1).apart


@pytest.mark.parametrize(
    ("shape", "need", "wants"),
    [
        ({"CPU": 1.0}, {"CPU": 1}, True),
        ({"CPU": 1.0}, {"CPU": 2}, False),
        ({"CPU": 1.0, "GPU": 0.3333}, {"CPU": 1, "GPU": 1 / 3}, True),
        ({"CPU": 1.0, "accelerator_type:H100": 0.001}, {"CPU": 1}, True),
        ({"bundle_group_ab": 0.001}, {"CPU": 1}, False),
    ],
)
def test_pending_demand_of_ray_matches_a_validation_if_their_resources_are_equal(
    shape, need, wants
):
    assert matching([(shape, 3), ({"other": 1.0}, 5)], need) == (3 if wants else 0)
