"""Confidence sequences: what they promise, what they cost, and what they do not take."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunekit import Estimate
from tunekit.core.confidence import ConfidenceSequence, Interval

PATHS = 2000
# When a validation yields: after batches that grow, from a few examples to 20,000.
YIELDS = sorted({round(8 * 1.31**k) for k in range(30)})
EVERYTHING = Interval(-math.inf, math.inf)


def interval_of(n, mean, variance=None, bounds=(0.0, 1.0), confidence=0.95):
    """Return the interval after one estimate, with nothing before it."""
    return ConfidenceSequence(confidence).update(Estimate(mean, n, variance, bounds))


def cumulative(values, yields):
    """Return the mean and the variance of the first n values, for each n of yields."""
    n = np.array(yields)
    sums, squares = values.cumsum(axis=-1)[..., n - 1], (values**2).cumsum(axis=-1)[..., n - 1]
    mean = sums / n
    return mean, np.maximum(squares / n - mean**2, 0)


# What is promised -------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.95, 0.8, 0.5])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.5, 0.9, 0.99])
def test_zeros_and_ones_are_missed_at_no_time_as_often_as_promised(p, confidence):
    """Looks after every single example, and adds up the probability that any interval misses."""
    chance, missed = np.array([1.0]), 0.0
    for n in range(1, 600):
        chance = np.append(chance * (1 - p), 0) + np.append(0, chance * p)

        def low(hits, n=n):
            return interval_of(n, hits / n, confidence=confidence).low > p

        def high(hits, n=n):
            return interval_of(n, hits / n, confidence=confidence).high < p

        first = bisected(lambda hits: low(hits), 0, n + 1)
        last = bisected(lambda hits: not high(hits), 0, n + 1)
        missed += chance[first:].sum() + chance[:last].sum()
        chance[first:] = chance[:last] = 0
    assert missed <= 1 - confidence


def bisected(found, low, high):
    """Return the least whole number from low to high - 1 with found(number), or high."""
    while low < high:
        middle = (low + high) // 2
        if found(middle):
            high = middle
        else:
            low = middle + 1
    return low
