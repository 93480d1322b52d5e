"""Trials that differ in their seeds only, as one configuration: mean, interval, rank, verdict."""

from __future__ import annotations

import math
import random
import re
import statistics
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.tune.search.repeater import TRIAL_INDEX

from tunekit.core.problems import Problems
from tunekit.core.seeds import (
    REPEAT_INDEX,
    Configuration,
    Ending,
    Repeat,
    check_known,
    compare,
    configurations_of,
    ending_of,
    estimate_of,
    space_lacks,
)
from tunekit.core.t_distribution import quantile
from tunekit.core.timeline import TrialSummary

scores = st.floats(-1e6, 1e6)
COMPLETE, STOPPED, UNFINISHED = Ending


def repeats(values: dict[Any, list[float | None]], **more: Any) -> list[Repeat]:
    """Trials of configurations that differ in ``lr``, seed by seed."""
    return [
        Repeat(f"{lr}-{seed}", {"lr": lr, "seed": seed, **more}, value)
        for lr, own in values.items()
        for seed, value in enumerate(own)
    ]


def only(*trials: tuple[float | None, Ending]) -> Configuration:
    """One configuration."""
    own = [Repeat(str(n), {"seed": n}, value, end) for n, (value, end) in enumerate(trials)]
    [found] = configurations_of(own, "seed", "max")
    return found


def complete(*values: float) -> Configuration:
    return only(*((value, COMPLETE) for value in values))


# Groups ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), scores), max_size=30), st.randoms())
def test_each_trial_is_in_the_one_group_of_its_hyperparameters(drawn, shuffle):
    trials = [
        Repeat(str(n), {"lr": lr, "nested/on": on, "seed": n}, value)
        for n, (lr, on, value) in enumerate(drawn)
    ]
    shuffle.shuffle(trials)
    found = configurations_of(trials, "seed", "max")
    members = [one.trial_id for group in found for one in group.repeats]
    assert sorted(members) == sorted(one.trial_id for one in trials)
    keys = [tuple(sorted(group.hyperparameters.items())) for group in found]
    assert len(set(keys)) == len(keys)
    for group in found:
        for one in group.repeats:
            own = {k: v for k, v in one.hyperparameters.items() if k != "seed"}
            assert own == group.hyperparameters


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (1, "1", False),
        ([1, {"a": 2}], [1, {"a": 2}], True),
        ([1], [2], False),
        (math.nan, math.nan, True),
        (None, 0, False),
        (2**60, 2**60 + 1, False),
        ({}, {}, True),
    ],
)
def test_which_values_are_the_same(one, other, same):
    trials = [Repeat("a", {"x": one, "seed": 0}, 1.0), Repeat("b", {"x": other, "seed": 1}, 2.0)]
    assert len(configurations_of(trials, "seed", "max")) == (1 if same else 2)


def test_a_hyperparameter_that_is_missing_is_not_none():
    trials = [Repeat("a", {"seed": 0}, 1.0), Repeat("b", {"x": None, "seed": 0}, 1.0)]
    assert len(configurations_of(trials, "seed", "max")) == 2


def test_trials_without_the_seed_repeat_the_others():
    trials = [Repeat("a", {"lr": 1, "seed": 0}, 1.0), *(Repeat(n, {"lr": 1}, 3.0) for n in "bc")]
    [one] = configurations_of(trials, "seed", "max")
    assert (one.seeds, one.counted) == (3, 3)


def test_the_index_of_a_repeater_is_no_hyperparameter():
    assert REPEAT_INDEX == TRIAL_INDEX
    trials = [Repeat(str(n), {"lr": 1, "seed": 7 * n, REPEAT_INDEX: n}, float(n)) for n in range(3)]
    for seed in ("seed", REPEAT_INDEX):
        assert len(configurations_of(trials, seed, "max")) == (1 if seed == "seed" else 3)
    assert configurations_of(trials, "seed", "max")[0].hyperparameters == {"lr": 1}


# The mean and its interval -----------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(scores, min_size=2, max_size=12))
@example([0.1, 0.1])
@example([1e308, -1e308])
@example([5e-324, 0.0])
def test_the_interval_is_that_of_students_t(values):
    found = estimate_of(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.std >= 0
    if max(map(abs, values)) < 1e300:
        # The stdev of Python 3.10 takes the squares of smaller numbers for 0.
        assert found.std == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-150)
    half = quantile(len(values) - 1) * found.std / math.sqrt(len(values))
    assert found.high - found.mean == pytest.approx(
        half, rel=1e-6, abs=1e-9 + abs(found.mean) * 1e-9
    )
    assert found.low <= found.mean <= found.high


def test_an_interval_has_the_mean_in_it_as_often_as_it_says():
    draw = random.Random(1)
    held = sum(
        found.low <= 3.0 <= found.high
        for found in (estimate_of([draw.gauss(3.0, 2.0) for _ in range(3)]) for _ in range(4000))
    )
    assert 0.94 < held / 4000 < 0.96


def test_one_seed_has_no_interval_and_ranks_by_its_value():
    found = configurations_of(repeats({1: [0.5], 2: [0.9], 3: [0.6, 0.8]}), "seed", "max")
    assert [one.hyperparameters["lr"] for one in found] == [2, 3, 1]
    assert [one.rank for one in found] == [1, 2, 3]
    assert math.isnan(found[0].estimate.low) and math.isnan(found[0].estimate.std)
    assert found[1].estimate.low < 0.7 < found[1].estimate.high


@pytest.mark.parametrize("values", [[math.inf, 1.0], [math.inf, -math.inf]])
def test_scores_that_are_infinite_have_no_interval(values):
    found = estimate_of(values)
    assert math.isnan(found.std) and math.isnan(found.low)
    ranked = configurations_of(repeats({1: values, 2: [0.5], 3: [None]}), "seed", "min")
    assert [one.hyperparameters["lr"] for one in ranked] == [2, 1, 3]
    assert [one.rank for one in ranked] == [1, 2, None]


def test_trials_of_one_seed_count_once_with_their_mean():
    trials = [
        Repeat("a", {"seed": 0}, 0.2),
        Repeat("b", {"seed": 0}, 0.4),
        Repeat("c", {"seed": 1}, 0.6),
    ]
    [one] = configurations_of(trials, "seed", "max")
    assert (one.seeds, one.counted) == (2, 3)
    assert one.estimate == estimate_of([statistics.mean([0.2, 0.4]), 0.6])


@settings(deadline=None)
@given(st.permutations(repeats({1: [0.1, 0.7], 2: [0.5, 0.9, 0.2], 3: [None, 0.3], 4: [None]})))
@pytest.mark.parametrize("mode", ["min", "max"])
def test_ranks_are_those_of_the_means_whatever_the_order(mode, trials):
    found = configurations_of(trials, "seed", mode)
    means = [one.estimate.mean for one in found if one.estimate is not None]
    assert means == sorted(means, reverse=mode == "max")
    assert [one.rank for one in found] == [1, 2, 3, None]
    for one in found[:3]:
        own = [repeat.value for repeat in one.repeats[: one.counted]]
        assert own == sorted(own, reverse=mode == "max")
        assert (one.best.value, one.worst.value) == (own[0], own[-1])
    assert found[3].best is None and found[3].worst is None


# Trials that did not run their course ------------------------------------------------------------


def test_what_was_stopped_counts_and_leaves_no_interval():
    found = only((0.9, COMPLETE), (0.8, COMPLETE), (0.1, STOPPED))
    assert found.estimate.mean == pytest.approx(0.6) and found.estimate.n == 3
    assert found.complete == 2 and not found.comparable
    assert math.isnan(found.estimate.low) and found.estimate.std > 0


def test_what_is_unfinished_does_not_count():
    found = only((0.9, COMPLETE), (0.8, COMPLETE), (0.1, UNFINISHED), (None, COMPLETE))
    assert found.estimate == estimate_of([0.9, 0.8])
    assert (found.seeds, found.complete, len(found.repeats)) == (2, 2, 4)
    assert found.comparable and found.worst.value == 0.8


def test_while_nothing_has_ended_all_that_there_is_counts():
    found = only((0.4, UNFINISHED), (0.6, UNFINISHED), (None, UNFINISHED))
    assert (found.seeds, found.complete, found.rank) == (2, 0, 1)
    assert found.estimate.mean == pytest.approx(0.5) and math.isnan(found.estimate.low)


@pytest.mark.parametrize(
    ("trial", "known", "ending"),
    [
        ({"status": "terminated"}, {}, COMPLETE),
        ({"status": "terminated", "stopped": True}, {}, STOPPED),
        ({"status": "terminated", "stopped": True}, {"whole": True}, COMPLETE),
        ({"status": "terminated"}, {"validating": True}, UNFINISHED),
        ({"status": "terminated", "generation": 1}, {}, UNFINISHED),
        ({"status": "error"}, {"whole": True}, UNFINISHED),
        ({"status": "running"}, {"whole": True}, UNFINISHED),
        ({"status": "pending"}, {}, UNFINISHED),
    ],
)
def test_how_trials_end(trial, known, ending):
    known = {"validating": False, "whole": False, **known}
    assert ending_of(TrialSummary("a", **trial), **known) is ending


# Comparing two -----------------------------------------------------------------------------------


def test_welchs_test_says_what_a_textbook_says():
    # https://en.wikipedia.org/wiki/Welch's_t-test, the second example: t = -1.57, df = 9.9.
    a = complete(17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8)
    b = complete(
        *(21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8),
        *(20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5, 21.5, 21.8),
    )
    found = compare(a, b)
    assert found.p == pytest.approx(0.149, abs=0.0005) and found.apart is False
    assert compare(b, a) == found


def test_equal_variances_give_students_own_test():
    # Of equal n and variance, df is 2n - 2 = 4, and t is 2.776 at p = 0.05.
    shift = 2.7764451 * math.sqrt(2 / 3)
    found = compare(complete(1 + shift, 2 + shift, 3 + shift), complete(1.0, 2.0, 3.0))
    assert found.p == pytest.approx(0.05, abs=1e-7)
    assert found.margin == pytest.approx(shift)


def test_it_is_wrong_as_often_as_it_says():
    draw = random.Random(2)

    def apart() -> bool:
        a = complete(*(draw.gauss(0, 1) for _ in range(4)))
        b = complete(*(draw.gauss(0, 3) for _ in range(6)))
        return bool(compare(a, b).apart)

    assert 0.035 < sum(apart() for _ in range(2000)) / 2000 < 0.065


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (complete(0.9), complete(0.8), "both have one seed"),
        (complete(0.9, 0.8), complete(0.8), "one of them has one seed"),
        (complete(0.9, 0.8), only((0.8, COMPLETE), (0.1, STOPPED)), "not all .* are complete"),
        (only((0.9, UNFINISHED), (0.8, UNFINISHED)), complete(1.0, 1.1), "are complete"),
        (complete(math.inf, 0.8), complete(0.5, 0.6), "not all scores are finite"),
    ],
)
def test_what_cannot_be_compared_is_said(one, other, reason):
    found = compare(one, other)
    assert found.p is None and found.apart is None
    assert re.search(reason, found.reason)


def test_a_seed_that_makes_no_difference_tells_all_apart():
    assert compare(complete(0.9, 0.9), complete(0.8, 0.8)).apart is True
    assert compare(complete(0.9, 0.9), complete(0.9, 0.9)).apart is False


def test_without_a_score_there_is_nothing_to_compare():
    assert compare(complete(0.9), only((None, COMPLETE))) is None


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "seed", "lacks"),
    [
        ({"seed": 0}, "seed", False),
        ({"seed": {"grid_search": [1, 2]}}, "seed", False),
        ({"train_loop_config": {"seed": 1}}, "train_loop_config/seed", False),
        ({"train_loop_config": {"seed": 1}}, "seed", True),
        ({"opt": {"grid_search": [{"seed": 1}]}}, "opt/seed", False),
        ({"opt": object()}, "opt/seed", False),
        ({"opt": 3}, "opt/seed", True),
        ({"lr": 0.1}, "seed", True),
        ({}, "seed", True),
    ],
)
def test_whether_a_space_has_it(space, seed, lacks):
    assert (space_lacks(space, seed) is not None) is lacks


def test_trials_that_have_no_hyperparameters_at_all():
    problems = Problems("load")
    check_known("seed", [{}, {}], problems)
    assert "seed_param='seed' is not a hyperparameter of any trial. The trials have none." in str(
        problems.error()
    )
    problems = Problems("load")
    check_known("seed", [], problems)
    assert not problems
