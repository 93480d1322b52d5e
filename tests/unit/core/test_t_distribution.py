"""Student's t distribution, against printed tables and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunekit.core.t_distribution import quantile, two_sided

# Two-sided quantiles, as tables in textbooks of statistics have them.
TABLE = {
    1: {0.90: 6.314, 0.95: 12.706, 0.99: 63.657},
    2: {0.90: 2.920, 0.95: 4.303, 0.99: 9.925},
    3: {0.90: 2.353, 0.95: 3.182, 0.99: 5.841},
    4: {0.90: 2.132, 0.95: 2.776, 0.99: 4.604},
    9: {0.90: 1.833, 0.95: 2.262, 0.99: 3.250},
    30: {0.90: 1.697, 0.95: 2.042, 0.99: 2.750},
    120: {0.90: 1.658, 0.95: 1.980, 0.99: 2.617},
}

degrees = st.floats(1, 1e5)
distances = st.floats(0, 1e4)


@pytest.mark.parametrize("df", TABLE)
def test_quantiles_are_those_of_printed_tables(df):
    for confidence, expected in TABLE[df].items():
        assert quantile(df, confidence) == pytest.approx(expected, abs=5.1e-4)


@settings(deadline=None)
@given(distances)
def test_few_degrees_of_freedom_have_closed_forms(t):
    cauchy = 1 - 2 / math.pi * math.atan(t)
    assert two_sided(t, 1) == pytest.approx(cauchy, rel=1e-9, abs=1e-12)
    assert two_sided(t, 2) == pytest.approx(1 - t / math.hypot(t, math.sqrt(2)), abs=1e-12)


@settings(deadline=None)
@given(st.floats(0, 8))
def test_many_degrees_of_freedom_are_a_normal_distribution(t):
    assert two_sided(t, 1e8) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=1e-6)


@settings(deadline=None)
@given(distances, distances, degrees)
def test_what_is_further_off_is_less_likely(one, other, df):
    near, far = sorted((one, other))
    assert 0 <= two_sided(far, df) <= two_sided(near, df) + 1e-12 <= 1 + 1e-12
    assert two_sided(-far, df) == two_sided(far, df)


@settings(deadline=None)
@given(st.floats(1, 1e4), st.floats(0.01, 0.999))
def test_a_quantile_is_where_the_probability_is(df, confidence):
    assert two_sided(quantile(df, confidence), df) == pytest.approx(1 - confidence, rel=1e-6)


def test_the_ends():
    assert two_sided(math.inf, 3) == two_sided(1e200, 3) == 0.0
    assert two_sided(0.0, 3) == 1.0
