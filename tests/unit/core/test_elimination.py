"""Confirming a winner: who is eliminated, who is evaluated next, and how often that is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunekit import Estimate
from tunekit.core.confidence import ConfidenceSequence, Interval
from tunekit.core.elimination import Elimination, Verdict
from tunekit.errors import ConfigError


def race(mode="max", confidence=0.95, **intervals):
    """Return a race in which each candidate has an interval, in the order of the ranking."""
    found = Elimination(list(intervals), mode=mode, confidence=confidence)
    for name, ends in intervals.items():
        if isinstance(ends, tuple):
            found.evaluated(name, Interval(*ends))
        elif ends is not None:
            found.exhausted(name, ends)
    return found


# Who is in the race -----------------------------------------------------------------------------


def test_all_are_in_the_race_at_first():
    found = Elimination(["a", "b", "c"])
    assert found.verdict() == Verdict("a", False, 0.0, ("a", "b", "c"))
    assert found.next() == ("a", "b")


def test_who_cannot_be_the_best_is_eliminated():
    found = race(a=(0.7, 0.8), b=(0.75, 0.9), c=(0.5, 0.74), d=None)
    assert found.contenders() == ("a", "b", "d")
    found.evaluated("d", Interval(0.81, 0.85))
    assert found.contenders() == ("b", "d")


def test_small_values_may_be_better():
    found = race("min", a=(0.7, 0.8), b=(0.1, 0.3), c=(0.25, 0.6))
    assert found.contenders() == ("b", "c")
    assert found.verdict().winner == "b"
    found.exhausted("c", 0.31)
    assert found.verdict() == Verdict("b", True, found.verdict().confidence, ("b",))


def test_a_winner_is_certain_when_it_is_alone():
    found = race(a=(0.7, 0.8), b=(0.81, 0.9))
    assert found.verdict() == Verdict("b", True, 0.95, ("b",))
    assert found.next() == ()


@pytest.mark.parametrize("mode", ["max", "min"])
def test_equal_means_go_by_the_ranking(mode):
    assert race(mode, a=0.8, b=0.8, c=0.8).verdict() == Verdict("a", True, 1.0, ("a",))
    assert race(mode, b=0.8, a=0.8).verdict().winner == "b"


def test_who_can_only_draw_is_eliminated_by_who_is_ranked_before():
    assert race(a=0.8, b=(0.7, 0.8)).contenders() == ("a",)
    assert race(b=(0.7, 0.8), a=0.8).contenders() == ("b", "a")


def test_an_exact_mean_counts_even_outside_its_interval():
    found = race(a=(0.8, 0.9), b=(0.6, 0.7))
    assert found.contenders() == ("a",)
    found.exhausted("a", 0.65)
    assert found.contenders() == ("a", "b")  # it is back, as what was said of a was wrong
    found.exhausted("b", 0.66)
    assert found.verdict() == Verdict("b", True, 1.0, ("b",))


def test_a_single_candidate_wins():
    found = Elimination(["a"])
    assert found.verdict() == Verdict("a", True, 1.0, ("a",)) and found.next() == ()


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_probability_of_an_error_is_shared(count):
    found = Elimination([str(n) for n in range(count)], confidence=0.9)
    assert found.each == pytest.approx(1 - 0.1 / count)


def test_exact_means_cannot_be_wrong():
    found = race(a=(0.9, 1.0), b=0.8, c=(0.1, 0.2), d=0.7, confidence=0.9)
    assert found.verdict().confidence == pytest.approx(1 - 2 * 0.1 / 4)


# Who is next ------------------------------------------------------------------------------------


def test_who_was_never_evaluated_is_next():
    found = race(a=(0.7, 0.8), b=(0.7, 0.9), c=None, d=None)
    assert found.next() == ("c", "b")
    found.evaluated("c", Interval(0.6, 0.85))
    assert found.next() == ("d", "b")


def test_the_leader_and_its_closest_challenger_are_next_the_wider_one_first():
    found = race(a=(0.70, 0.84), b=(0.80, 0.90), c=(0.60, 0.86), d=(0.2, 0.82))
    assert found.next() == ("c", "b")
    found.evaluated("c", Interval(0.78, 0.83))
    assert found.next() == ("a", "b")
    found.evaluated("a", Interval(0.79, 0.84))
    assert found.next() == ("b", "a")


def test_who_was_never_evaluated_does_not_lead():
    found = race(a=None, b=(0.2, 0.3), c=None)
    assert found.verdict().winner == "b" and found.next() == ("a", "b")


def test_nobody_exhausted_is_next():
    assert race(a=0.85, b=(0.7, 0.9), c=(0.8, 0.86)).next() == ("b",)
    assert race(a=(0.7, 0.9), b=0.85, c=(0.8, 0.86)).next() == ("a",)


def test_equal_ones_are_evaluated_in_the_order_of_the_ranking():
    assert race(b=(0.7, 0.9), a=(0.7, 0.9), c=(0.7, 0.9)).next() == ("b", "a")


ends = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda two: tuple(sorted(two)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), ends, st.integers(0, 20)), min_size=1, max_size=6))
def test_the_best_is_among_the_contenders_whatever_it_is(given):
    """Tries every corner of what the means can be, ranked by mean and then by the ranking."""
    names = "abcdef"[: len(given)]
    for mode in ("max", "min"):
        found = race(mode, **dict(zip(names, given, strict=True)))
        left, best = found.contenders(), max if mode == "max" else min
        for one in range(len(given)):  # at its best, with the others at their worst
            means = []
            for other, known in enumerate(given):
                low, high = (-1, 21) if known is None else (known, known)
                if isinstance(known, tuple):
                    low, high = known
                hopeful = (mode == "max") is (one == other)
                means.append(high if hopeful else low)
            assert (names[means.index(best(means))] == names[one]) == (names[one] in left)
        nexts = found.next()
        assert set(nexts) <= set(left) and (not nexts) == (len(left) == 1)
        assert not any(isinstance(given[names.index(name)], int) for name in nexts)
        assert found.verdict().winner in left


# How often it is right, and what it costs -------------------------------------------------------


def confirmed(random, shares, examples=20000, batch=500, confidence=0.95):
    """Return whether the race found the best mean over all examples, and how many it took."""
    names = [str(name) for name in random.permutation(len(shares))]
    hits = {name: (random.random(examples) < shares[int(name)]).cumsum() for name in names}
    found = Elimination(names, confidence=confidence)
    sequences = {name: ConfidenceSequence(found.each) for name in names}
    used = dict.fromkeys(names, 0)
    while todo := found.next():
        for name in todo:
            used[name] = n = min(used[name] + batch, examples)
            mean = hits[name][n - 1] / n
            if n == examples:
                found.exhausted(name, mean)
            else:
                found.evaluated(name, sequences[name].update(Estimate(mean, n, bounds=(0, 1))))
    best = max(names, key=lambda name: (hits[name][-1], -names.index(name)))
    assert found.verdict().certain
    return found.verdict().winner == best, sum(used.values())


@pytest.mark.parametrize(
    ("shares", "most"),
    [
        ((0.900, 0.892, 0.88, 0.87, 0.85), 0.5),
        ((0.90, 0.85, 0.80, 0.75, 0.70), 0.1),
    ],
)
def test_the_right_one_is_confirmed_with_fewer_examples(shares, most):
    random = np.random.default_rng(11)
    right, used = zip(*(confirmed(random, shares) for _ in range(100)), strict=True)
    assert sum(right) >= 95
    assert np.mean(used) <= most * 20000 * len(shares)


def test_equal_candidates_end_when_the_examples_do():
    random = np.random.default_rng(5)
    for _ in range(5):
        right, used = confirmed(random, (0.8, 0.8, 0.8), examples=2000)
        assert right and used <= 6000


# What is not taken ------------------------------------------------------------------------------


def problems_of(call, *given, **named):
    with pytest.raises(ConfigError) as caught:
        call(*given, **named)
    return caught.value.problems


@pytest.mark.parametrize("candidates", [[], ["a", "a"], "ab"])
def test_candidates_are_a_list_of_names(candidates):
    (problem,) = problems_of(Elimination, candidates)
    assert problem.startswith("candidates=") and "each there once" in problem


def test_all_mistakes_are_reported_together():
    found = problems_of(Elimination, [], mode="best", confidence=95)
    assert [problem.split("=")[0] for problem in found] == ["candidates", "mode", "confidence"]
    found = problems_of(race(a=None).evaluated, "z", (0.9, 0.1))
    assert [problem.split("=")[0] for problem in found] == ["candidate", "interval"]
    found = problems_of(race(a=None).exhausted, "z", math.nan)
    assert [problem.split("=")[0] for problem in found] == ["candidate", "mean"]


@pytest.mark.parametrize("confidence", [0, 1, math.nan, "0.9"])
def test_a_confidence_is_a_probability(confidence):
    (problem,) = problems_of(Elimination, ["a"], confidence=confidence)
    assert problem.startswith("confidence=")


def test_what_is_exact_does_not_become_an_interval_again():
    found = race(a=0.8, b=(0.7, 0.9))
    (problem,) = problems_of(found.evaluated, "a", Interval(0.7, 0.9))
    assert "is exhausted" in problem and "next()" in problem
    assert found.contenders() == ("a", "b")


@pytest.mark.parametrize("interval", [(0.9, 0.8), (math.nan, 1.0), (0.1, None)])
def test_an_interval_has_two_ends_in_order(interval):
    (problem,) = problems_of(race(a=None).evaluated, "a", interval)
    assert problem.startswith("interval=")
