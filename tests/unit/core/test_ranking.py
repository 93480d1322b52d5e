"""Ranking with constraints, feasible scores first, and with several objectives."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tunekit
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
def test_who_knows_nothing_of_constraints_ranks_by_them(one, other, mode):
    mine, theirs = (
        penalized_value(s["accuracy"], mode, violation(s, LIMITS)) for s in (one, other)
    )
    better = mine > theirs if mode == "max" else mine < theirs
    worse = mine < theirs if mode == "max" else mine > theirs
    assert finite_number(mine) == mine
    # Differences of violations may be lost to rounding, never turned round.
    assert not (better and deb(other, one, mode)) and not (worse and deb(one, other, mode))
    if (violation(one, LIMITS) == 0) != (violation(other, LIMITS) == 0):
        assert better == deb(one, other, mode)


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=50))
def test_means_and_differences_of_what_is_infeasible_are_finite(by):
    told = [penalized_value(0.5, "max", one) for one in [*by, math.inf]]
    assert math.isfinite(sum(told)) and math.isfinite(max(told) - min(told))


@pytest.mark.parametrize("metrics", [{}, {"latency_ms": "fast"}, {"latency_ms": math.nan}])
def test_what_is_not_known_to_hold_does_not(metrics):
    assert violation({"eval/recall": 0.9, **metrics}, LIMITS) == math.inf


@pytest.mark.parametrize(
    "text",
    ["", "latency_ms", "latency_ms < 20", "<= 20", "a <= b", "a <= inf", "a <= nan", "a == 1", 3],
)
def test_what_is_not_a_constraint_is_refused(text):
    with pytest.raises(ConfigError, match="Constraint: text="):
        Constraint(text)


def test_all_mistakes_in_constraints_are_in_one_error():
    with pytest.raises(ConfigError) as caught:
        tunekit.ValidationConfig(lambda checkpoint: {}, constraints=["a <= 1", 2], when=0)
    assert [f"constraints[{n}]=" in str(caught.value) for n in (0, 1)] == [True, True]
    assert "when=0" in str(caught.value)


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
def test_the_order_is_that_of_the_definition(points):
    assert rank_points(points) == by_definition(points)
    assert pareto_front(points) == [
        i for i, one in enumerate(points) if not any(dominates(other, one) for other in points)
    ]


@given(clouds, st.sampled_from([0.25, 8.0, 1024.0]))
def test_the_order_does_not_depend_on_units(points, unit):
    scaled = [(point[0], *(value * unit for value in point[1:])) for point in points]
    assert rank_points(scaled) == rank_points(points)


@given(clouds)
def test_what_is_not_a_number_is_worse_than_anything(points):
    size = len(points[0])
    broken = [(math.nan, *[9.0] * (size - 1)), (9.0, *[math.inf] * (size - 1))]
    assert rank_points([*broken, *points])[-2:] == [0, 1]


@given(clouds, st.sampled_from([1.5, 2, 3]))
def test_a_trial_ends_at_its_rung_unless_it_is_among_the_best_so_far(points, eta):
    books = Halving([(1, 3)], max_t=9, reduction_factor=eta, stops=True)
    for n, point in enumerate(points):
        books.add(str(n))
        place = by_definition(points[: n + 1]).index(n)
        goes_on = place / (n + 1) <= 1 / eta
        said = books.reported(str(n), 1, point)
        assert said is (RungAction.CONTINUE if goes_on else RungAction.END)
        assert not list(books.promotable()) and not books.holds(str(n))


@pytest.mark.parametrize("bad", [{}, {"accuracy": "max"}, {"a": "max", "b": "least"}, ["a", "b"]])
def test_wrong_metrics_are_refused(bad):
    with pytest.raises(ConfigError, match="metrics"):
        MOASHA(bad)
