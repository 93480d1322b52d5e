"""Several objectives: the order and the volume, against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.halving import Halving, RungAction
from tunekit.core.pareto import dominates, pareto_front, rank_points

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
        assert not list(books.promotable()) and not books.waits(str(n))


@pytest.mark.parametrize("bad", [{}, {"accuracy": "max"}, {"a": "max", "b": "least"}, ["a", "b"]])
def test_wrong_metrics_are_refused(bad):
    from tunekit.errors import ConfigError
    from tunekit.schedulers import MOASHA

    with pytest.raises(ConfigError, match="metrics"):
        MOASHA(bad)
