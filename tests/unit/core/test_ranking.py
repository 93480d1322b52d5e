"""Feasible scores rank before infeasible ones, and several objectives rank by Pareto front."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.constraints import Constraint, penalized_value, violation
from tunekit.core.halving import Halving, RungAction
from tunekit.core.pareto import dominates, pareto_front, rank_points
from tunekit.core.values import finite_number
from tunekit.errors import ConfigError
from tunekit.schedulers import MOASHA

LIMITS = [Constraint("latency_ms <= 20"), Constraint("eval/recall >= 0.5")]
values = st.floats(-1e6, 1e6)
scores = st.fixed_dictionaries({"accuracy": values, "latency_ms": values, "eval/recall": values})


def deb(one, other, mode):
    """Return whether a score is better than another, as in the paper."""
    broken, others = violation(one, LIMITS), violation(other, LIMITS)
    if broken or others:
        return broken < others
    return (
        one["accuracy"] > other["accuracy"]
        if mode == "max"
        else one["accuracy"] < other["accuracy"]
    )


@given(scores, scores, st.sampled_from(["min", "max"]))
def test_penalized_values_rank_scores_as_debs_rule_for_constraints_does(one, other, mode):
    mine, theirs = (
        penalized_value(s["accuracy"], mode, violation(s, LIMITS)) for s in (one, other)
    )
    better = mine > theirs if mode == "max" else mine < theirs
    worse = mine < theirs if mode == "max" else mine > theirs
    assert finite_number(mine) == mine
    # Rounding may hide a difference of violations, but not reverse it.
    assert not (better and deb(other, one, mode)) and not (worse and deb(one, other, mode))
    if (violation(one, LIMITS) == 0) != (violation(other, LIMITS) == 0):
        assert better == deb(one, other, mode)


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=50))
def test_sum_and_spread_of_penalized_values_are_finite(by):
    found = [penalized_value(0.5, "max", one) for one in [*by, math.inf]]
    assert math.isfinite(sum(found)) and math.isfinite(max(found) - min(found))


@pytest.mark.parametrize("metrics", [{}, {"latency_ms": "fast"}, {"latency_ms": math.nan}])
def test_missing_or_non_numeric_metric_violates_its_constraint_infinitely(metrics):
    assert violation({"eval/recall": 0.9, **metrics}, LIMITS) == math.inf


@pytest.mark.parametrize(
    "text",
    ["", "latency_ms", "<= 20", "a <= b", "a <= inf", "a <= nan", "a == 1", 3],
)
def test_text_that_is_not_a_constraint_is_refused_and_named(text):
    with pytest.raises(ConfigError) as caught:
        Constraint(text)
    assert caught.value.where == "Constraint" and f"text={text!r}" in caught.value.problems[0]


# Several objectives: the order and the volume, against their definitions ------------------------


coarse = st.integers(0, 4).map(float)  # many ties
clouds = st.integers(2, 3).flatmap(
    lambda size: st.lists(st.tuples(*[coarse] * size), min_size=1, max_size=25)
)


def by_definition(points):
    """Front after front; in each, always the point farthest from those before it."""
    left, order = list(range(len(points))), []
    while left:
        best = [i for i in left if not any(dominates(points[j], points[i]) for j in left)]
        left = [i for i in left if i not in best]
        spans = [(min(v), max(v) - min(v)) for v in zip(*(points[i] for i in best), strict=True)]
        at = {
            i: [(v - low) / (span or 1.0) for v, (low, span) in zip(points[i], spans, strict=True)]
            for i in best
        }
        net = [max(best, key=lambda i: points[i][0])]
        while len(net) < len(best):
            rest = [i for i in best if i not in net]
            near = {i: min(math.dist(at[i], at[j]) for j in net) for i in rest}
            net.append(max(rest, key=lambda i: near[i]))
        order += net
    return order


@given(clouds)
def test_points_rank_by_pareto_front_and_then_by_distance_from_those_before(points):
    assert rank_points(points) == by_definition(points)
    assert pareto_front(points) == [
        i for i, one in enumerate(points) if not any(dominates(other, one) for other in points)
    ]


@given(clouds)
def test_point_with_a_non_finite_objective_ranks_after_all_others(points):
    size = len(points[0])
    broken = [(math.nan, *[9.0] * (size - 1)), (9.0, *[math.inf] * (size - 1))]
    assert rank_points([*broken, *points])[-2:] == [0, 1]


@given(clouds, st.sampled_from([1.5, 2, 3]))
def test_halving_that_stops_ends_trials_at_a_rung_unless_among_the_best_so_far(points, eta):
    books = Halving([(1, 3)], max_t=9, reduction_factor=eta, stops=True)
    for n, point in enumerate(points):
        books.add(str(n))
        place = by_definition(points[: n + 1]).index(n)
        expected = RungAction.CONTINUE if place / (n + 1) <= 1 / eta else RungAction.END
        assert books.reported(str(n), 1, point) is expected
        assert not list(books.promotable()) and not books.holds(str(n))


@pytest.mark.parametrize("bad", [{}, {"accuracy": "max"}, {"a": "max", "b": "least"}, ["a", "b"]])
def test_moasha_refuses_metrics_that_are_not_two_or_more_names_with_min_or_max(bad):
    with pytest.raises(ConfigError) as caught:
        MOASHA(bad)
    assert all("metrics" in problem for problem in caught.value.problems)
