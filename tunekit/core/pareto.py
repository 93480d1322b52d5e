"""Several objectives at once: the Pareto front, and an order of points.

A point has a value for each objective (larger is better). One dominates another if it is at least
as good in each objective, and better in one. The points that no other point dominates form the
front.

The order is that of multi-objective successive halving (Schmucker et al., 2021,
https://arxiv.org/abs/2106.12639): front after front, and within a front by an epsilon-net
(Clarkson, 2005): the next point is the one farthest from those before it, so that the first few
cover the front. Distances are measured in units of the front's extent in each objective; otherwise
the order would depend on whether a latency is in seconds or milliseconds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import TypeAlias

#: The values of the objectives (larger is better).
Point: TypeAlias = tuple[float, ...]


def dominates(one: Point, other: Point) -> bool:
    """Return whether a point is at least as good as another in each objective, and not equal.

    Example:
        >>> dominates((2, 1), (1, 1)), dominates((2, 1), (1, 2)), dominates((1, 1), (1, 1))
        (True, False, False)
    """
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points that no other one dominates, in the order of the points.

    Example:
        >>> pareto_front([(1, 1), (3, 0), (0, 3), (2, 2), (2, 2)])
        [1, 2, 3, 4]
    """
    return _fronts(list(map(_usable, points)))[0] if points else []


def rank_points(points: Sequence[Point]) -> list[int]:
    """Return the indices of points in the order of multi-objective successive halving.

    The first point of a front is the best one in the first objective. Equal points keep their
    order. A point with a value that is not finite is worse than any other; with a single
    objective, only NaN is.

    Args:
        points: The points, in the order in which they arrived.

    Example:
        >>> rank_points([(0, 0), (5, 0), (4, 1), (0, 5), (1, 1)])
        [1, 3, 2, 4, 0]
        >>> rank_points([(0.1,), (0.7,), (math.nan,), (0.4,)])
        [1, 3, 0, 2]
    """
    if points and len(points[0]) == 1:
        return sorted(range(len(points)), key=lambda at: descending(points[at][0]))
    usable = list(map(_usable, points))
    order: list[int] = []
    for places in _fronts(usable):
        order += (places[at] for at in _net([usable[place] for place in places]))
    return order


def descending(value: float) -> float:
    """Return a sort key that orders values from best to worst, NaN last.

    Example:
        >>> sorted([0.1, math.nan, math.inf, 0.7], key=descending)
        [inf, 0.7, 0.1, nan]
    """
    return math.inf if math.isnan(value) else -value


def _usable(point: Point) -> Point:
    return point if all(map(math.isfinite, point)) else (-math.inf,) * len(point)


def _fronts(points: Sequence[Point]) -> list[list[int]]:
    """Return the front, the front of the remaining points, and so on."""
    # No later point in this order dominates an earlier one.
    order = sorted(range(len(points)), key=lambda at: points[at], reverse=True)
    found: list[list[int]] = []
    for at in order:
        point = points[at]

        def is_dominated(level: int, point: Point = point) -> bool:
            return any(dominates(points[other], point) for other in reversed(found[level]))

        # A point dominated in one front is dominated in each front before it.
        level = bisect.bisect_left(range(len(found)), True, key=lambda n: not is_dominated(n))
        if level == len(found):
            found.append([])
        found[level].append(at)
    return [sorted(places) for places in found]


def _net(points: Sequence[Point]) -> list[int]:
    """Return the indices of a front's points in the order of an epsilon-net."""
    low = [min(values) for values in zip(*points, strict=True)]
    high = [max(values) for values in zip(*points, strict=True)]
    scaled = [
        [(v - a) / (b - a) if b > a else 0.0 for v, a, b in zip(point, low, high, strict=True)]
        for point in points
    ]
    left = list(range(len(points)))
    at = max(left, key=lambda place: points[place][0])
    order, distances = [], [math.inf] * len(points)
    while True:
        order.append(at)
        left.remove(at)
        if not left:
            return order
        for place in left:
            distances[place] = min(distances[place], math.dist(scaled[place], scaled[at]))
        at = max(left, key=lambda place: distances[place])
