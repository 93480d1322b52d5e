"""Student's t distribution: intervals and tests of means of few values."""

from __future__ import annotations

import math
from functools import lru_cache

# The continued fraction needs some multiple of sqrt(df) terms; this is enough for any df.
_MOST_TERMS = 100_000
_PRECISION = 1e-15
_TINY = 1e-300


def two_sided(t: float, df: float) -> float:
    """Return the probability that a t-distributed variable is at least as far from 0 as ``t``.

    This is the regularized incomplete beta function at ``df / (df + t**2)``, for ``df / 2`` and
    ``1 / 2`` (https://dlmf.nist.gov/8.17).

    Args:
        t: The value; its sign makes no difference.
        df: The degrees of freedom, above 0; they need not be a whole number.

    Example:
        >>> round(two_sided(12.7062, df=1), 5), two_sided(0.0, df=7.5)
        (0.05, 1.0)
    """
    square = t * t
    if math.isinf(square):
        return 0.0
    return _beta(df / 2, 0.5, df / (df + square), square / (df + square))


@lru_cache(maxsize=1024)
def quantile(df: float, confidence: float = 0.95) -> float:
    """Return the distance from 0 that a t-distributed variable stays within, with a probability.

    Args:
        df: The degrees of freedom, at least 1; they need not be a whole number.
        confidence: The probability, between 0 and 1.

    Example:
        >>> [round(quantile(df), 3) for df in (1, 2, 4, 9, 1e6)]
        [12.706, 4.303, 2.776, 2.262, 1.96]
    """
    below, above = 0.0, 1.0
    while two_sided(above, df) > 1 - confidence:
        below, above = above, 2 * above
    while True:
        middle = (below + above) / 2
        if middle in (below, above):
            return middle
        if two_sided(middle, df) > 1 - confidence:
            below = middle
        else:
            above = middle


def _beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularized incomplete beta function at ``x``, where ``y`` is ``1 - x``.

    Both are passed because computing the smaller one by subtraction would lose its digits.
    """
    if x == 0 or y == 0:
        return float(y == 0)
    front = a * math.log(x) + b * math.log(y)
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # The fraction converges fast only on this side of the mode.
    if x < (a + 1) / (a + b + 2):
        return math.exp(front) / (a * _fraction(a, b, x))
    return 1 - math.exp(front) / (b * _fraction(b, a, y))


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of https://dlmf.nist.gov/8.17.E22, ``1 + d1 / (1 + d2 / ...)``,
    evaluated from the front by Lentz's method as modified by Thompson and Barnett (1986)."""
    value = above = 1.0
    below = 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below or _TINY)
        above = 1 + d / above or _TINY
        value *= above * below
        if abs(above * below - 1) < _PRECISION:
            break
    return value
