"""Confidence sequences: what they promise, how wide they are, and what they do not take."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tunekit import Estimate
from tunekit.core.confidence import LEAST_UNBOUNDED, ConfidenceSequence, Interval
from tunekit.errors import ConfigError

pytestmark = pytest.mark.sampled(2)

PATHS = 2000
# When a validation yields: after batches that grow, from 8 examples to 5,000.
YIELDS = [round(8 * 1.25**k) for k in range(30)]
# No interval ends nearer to the estimate, in standard errors, unless it ends next to a bound.
NARROWEST = 2.0
EVERYTHING = Interval(-math.inf, math.inf)
UNIT = (0.0, 1.0)


@functools.cache
def interval_of(n, mean, variance=None, bounds=UNIT, confidence=0.95):
    """Return the interval after one estimate, with nothing before it."""
    return ConfidenceSequence(confidence).update(Estimate(mean, n, variance, bounds))


# What is promised, exactly ----------------------------------------------------------------------


def chance_of_a_miss(low, high, p, confidence, *, variance, examples=300):
    """Return how probable it is that any interval misses, if one looks after every example.

    The values are ``high`` with the probability p, else ``low``. The number of high ones says
    everything about a path, so its probabilities follow from one example to the next.
    """
    mean = low + (high - low) * p

    def interval(n, hits):
        share = hits / n
        seen = (high - low) ** 2 * share * (1 - share) if variance else None
        return interval_of(n, low + (high - low) * share, seen, UNIT, confidence)

    chance, missed = np.array([1.0]), 0.0
    above = below = 0  # so many hits, and the interval is above the mean, or not below it
    for n in range(1, examples):
        chance = np.append(chance * (1 - p), 0) + np.append(0, chance * p)
        while above <= n and not interval(n, above).low > mean:
            above += 1
        while above > 0 and interval(n, above - 1).low > mean:
            above -= 1
        while below <= n and interval(n, below).high < mean:
            below += 1
        while below > 0 and not interval(n, below - 1).high < mean:
            below -= 1
        missed += chance[above:].sum() + chance[:below].sum()
        chance[above:] = chance[:below] = 0
    interval_of.cache_clear()
    return missed


@pytest.mark.parametrize("confidence", [0.95, 0.5])
@pytest.mark.parametrize("p", [0.0, 0.02, 0.5, 0.9, 0.99])
def test_zeros_and_ones_are_missed_no_more_often_than_promised(p, confidence):
    assert chance_of_a_miss(0, 1, p, confidence, variance=False) <= 1 - confidence


@pytest.mark.parametrize("confidence", [0.95, 0.5])
@pytest.mark.parametrize(
    ("low", "high", "p"),
    [(0, 1, 0.5), (0, 1, 0.95), (0.3, 0.7, 0.5), (0.2, 1, 0.01), (0, 0.8, 0.99)],
)
def test_two_values_with_their_variance_are_too(low, high, p, confidence):
    assert chance_of_a_miss(low, high, p, confidence, variance=True) <= 1 - confidence


def wealth(m, n, mean, variance=None):
    """Return the wealth of a candidate mean, written down as the module explains it."""
    hits, k = n * mean, 20
    a, b = 0.5 + k * m, 0.5 + k * (1 - m)
    beta = math.lgamma(a + hits) + math.lgamma(b + n - hits) - math.lgamma(a + b + n)
    beta -= math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    parts = [(1.0, beta - hits * math.log(m) - (n - hits) * math.log(1 - m))]
    if variance is not None:
        parts = [(0.5, parts[0][1])]
        slopes = {2.0**power: (1 + abs(power + 0.5)) ** -2 for power in range(-10, 5)}
        deviations = n * (variance + (mean - m) ** 2)
        for slope, weight in slopes.items():
            weight /= 4 * sum(slopes.values())
            for sign, most in ((1, m), (-1, 1 - m)):
                if slope * most < 1:
                    psi = (-math.log(1 - slope * most) - slope * most) / most**2
                    parts.append((weight, sign * slope * n * (mean - m) - deviations * psi))
        # They start with 1 altogether, and those with too large a slope with nothing.
        assert math.fsum(weight for weight, _ in parts) <= 1 + 1e-12
    return math.fsum(weight * math.exp(min(growth, 700)) for weight, growth in parts)


@pytest.mark.parametrize("alpha", [0.05, 1e-3])
@pytest.mark.parametrize(
    ("n", "mean", "variance"),
    [
        *[(n, mean, None) for n in (30, 300, 3000) for mean in (0.02, 0.6, 0.9)],
        *[(n, 0.6, variance) for n in (200, 1000, 30000) for variance in (0.01, 0.05, 0.24)],
        *[(n, 0.95, variance) for n in (200, 1000, 30000) for variance in (0.001, 0.04)],
    ],
)
def test_an_interval_ends_where_the_wealth_reaches_its_limit(n, mean, variance, alpha):
    low, high = interval_of(n, mean, variance, UNIT, 1 - alpha)
    for end in (low, high):
        within = end + (mean - end) * 0.005
        assert wealth(end, n, mean, variance) >= (1 - 1e-9) / alpha
        assert wealth(within, n, mean, variance) < 1 / alpha


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 200), st.floats(0.01, 0.99), st.floats(0, 1), st.sampled_from([0.5, 0.05, 1e-4])
)
def test_every_candidate_outside_has_reached_the_limit(n, mean, share, alpha):
    for variance in (None, share**2 * mean * (1 - mean)):
        low, high = interval_of(n, mean, variance, UNIT, 1 - alpha)
        for candidate in (*np.linspace(0, low, 40)[1:], *np.linspace(high, 1, 40)[:-1]):
            if 1e-9 < candidate < 1 - 1e-9:
                assert wealth(candidate, n, mean, variance) >= (1 - 1e-6) / alpha


# What is promised, in simulations ---------------------------------------------------------------


def missing(draw, mean, bounds, *, variance, paths=PATHS, yields=YIELDS, confidence=0.95):
    """Return which intervals of which simulated validations miss the mean: (paths, yields)."""
    found = np.zeros((paths, len(yields)), dtype=bool)
    random, n = np.random.default_rng(7), np.array(yields)
    for first in range(0, paths, 200):
        values = draw(random, (200, yields[-1]))
        means = values.cumsum(axis=1)[:, n - 1] / n
        squares = (values**2).cumsum(axis=1)[:, n - 1] / n
        seen = np.maximum(squares - means**2, 0)
        if bounds:
            seen = np.minimum(seen, (means - bounds[0]) * (bounds[1] - means))
        # The others contain the mean: test_it_is_wider_than_for_a_fixed_number.
        looks = np.abs(means - mean) > NARROWEST * np.sqrt(seen / n)
        if bounds and not 0.05 <= (mean - bounds[0]) / (bounds[1] - bounds[0]) <= 0.95:
            looks[:] = True
        for path, k in zip(*np.nonzero(looks), strict=True):
            low, high = interval_of(
                yields[k],
                round(means[path, k], 12),
                round(seen[path, k], 12) if variance else None,
                bounds,
                confidence,
            )
            found[first + path, k] = not low <= mean <= high
    interval_of.cache_clear()
    return found


def noise(paths, probability):
    """Return three standard deviations of a share of so many paths."""
    return 3 * math.sqrt(probability * (1 - probability) / paths)


def zeros_and_ones(p):
    return lambda random, shape: (random.random(shape) < p).astype(float)


def truncated(random, shape):
    return np.minimum(random.standard_exponential(shape), 4)


BOUNDED = {
    "p=0": (zeros_and_ones(0.0), 0.0, UNIT),
    "p=0.5": (zeros_and_ones(0.5), 0.5, UNIT),
    "p=0.9": (zeros_and_ones(0.9), 0.9, UNIT),
    "p=0.99": (zeros_and_ones(0.99), 0.99, UNIT),
    "beta": (lambda random, shape: random.beta(8, 2, shape), 0.8, UNIT),
    "two": (lambda random, shape: np.where(random.random(shape) < 0.1, -3.0, 2.0), 1.5, (-3, 5)),
    "truncated": (truncated, 1 - math.exp(-4), (0, 4)),
}


@pytest.mark.parametrize("variance", [False, True], ids=["bounds", "variance"])
@pytest.mark.parametrize("kind", BOUNDED)
def test_bounded_values_are_missed_no_more_often_than_promised(kind, variance):
    missed = missing(*BOUNDED[kind], variance=variance)
    # Whenever one stops: where the interval excludes a threshold, where it is farthest off, or
    # after so many examples.
    assert missed.any(axis=1).mean() <= 0.05 + noise(PATHS, 0.05)


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_who_stops_when_the_interval_excludes_a_threshold_is_not_misled(p):
    """Asks whether the mean is above a threshold just above it, until the interval says so."""
    random, misled = np.random.default_rng(3), 0
    for values in zeros_and_ones(p)(random, (400, YIELDS[-1])):
        hits, sequence = values.cumsum(), ConfidenceSequence(0.8)
        for n in YIELDS:
            interval = sequence.update(Estimate(hits[n - 1] / n, n, bounds=UNIT))
            if not interval.low <= p + 0.002 <= interval.high:
                break
        misled += not interval.low <= p <= interval.high
    assert misled / 400 <= 0.2


@pytest.mark.parametrize("variance", [False, True], ids=["bounds", "variance"])
def test_the_mean_of_a_finite_set_in_random_order_is_missed_less_often(variance):
    whole = np.repeat([0.0, 1.0], [300, 1700])

    def shuffled(random, shape):
        return random.permuted(np.tile(whole, (shape[0], 1)), axis=1)

    yields = [n for n in YIELDS if n < len(whole)] + [len(whole)]
    missed = missing(shuffled, 0.85, UNIT, variance=variance, yields=yields)
    assert missed.any(axis=1).mean() <= 0.05
    assert not missed[:, -1].any()


UNBOUNDED = {
    "normal": (lambda random, shape: random.normal(3, 2, shape), 3.0, 0.05),
    "exponential": (lambda random, shape: random.standard_exponential(shape), 1.0, 0.05),
    "heavy tails": (lambda random, shape: random.standard_t(3, shape), 0.0, 0.05),
    "log-normal": (lambda random, shape: random.lognormal(0, 1, shape), math.exp(0.5), 0.07),
}


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_unbounded_values_are_missed_about_as_often_as_promised(kind):
    draw, mean, seen = UNBOUNDED[kind]
    missed = missing(draw, mean, None, variance=True)
    assert missed.any(axis=1).mean() <= seen


# How wide it is ---------------------------------------------------------------------------------


def half_of_fixed(n, variance):
    """Return half the width of the usual interval, which holds for one n that is fixed before."""
    return 1.96 * math.sqrt(variance / n)


@pytest.mark.parametrize("p", [0.5, 0.9])
@pytest.mark.parametrize(("n", "most"), [(100, 1.6), (1000, 1.65), (10000, 1.8)])
def test_it_is_not_much_wider_than_for_a_fixed_number(n, p, most):
    fixed = half_of_fixed(n, p * (1 - p))
    assert interval_of(n, p).width / 2 <= most * fixed
    assert interval_of(n, p, p * (1 - p)).width / 2 <= (most + 0.1) * fixed
    assert interval_of(n, p, p * (1 - p), None).width / 2 <= most * fixed


@pytest.mark.parametrize(("n", "most"), [(300, 2.2), (1000, 2.0), (10000, 2.1)])
def test_it_is_narrower_if_values_vary_less(n, most):
    assert interval_of(n, 0.7, 0.04).width / 2 <= most * half_of_fixed(n, 0.04)
    assert interval_of(n, 0.7, 0.04).width < 0.65 * interval_of(n, 0.7).width


def test_equal_values_within_bounds_are_soon_known_well():
    assert interval_of(1000, 0.7, 0.0).width < 0.02
    assert interval_of(1000, 0.0).high < 0.01
    assert interval_of(1000, 1.0, 0.0).low > 0.99


@settings(max_examples=200, deadline=None)
@given(st.integers(YIELDS[0], 10**6), st.floats(0, 1), st.floats(0, 1))
def test_it_is_wider_than_for_a_fixed_number(n, mean, share):
    variance = share * mean * (1 - mean)
    for seen, bounds in ((None, UNIT), (variance, UNIT), (variance, None)):
        low, high = interval_of(n, mean, seen, bounds)
        half = NARROWEST * math.sqrt(variance / n)
        assert low <= max(mean - half, 0.05)
        assert high >= min(mean + half, 0.95)


# The path ---------------------------------------------------------------------------------------


@st.composite
def paths(draw):
    """Draw the values of a validation, and when it yields."""
    values = draw(st.lists(st.floats(0, 1), min_size=2, max_size=60))
    cuts = draw(st.sets(st.integers(1, len(values)), min_size=1))
    return values, sorted(cuts)


def estimates(values, cuts, bounds=UNIT, *, variance):
    for n in cuts:
        seen = values[:n]
        mean = math.fsum(seen) / n
        spread = math.fsum((value - mean) ** 2 for value in seen) / n
        yield Estimate(mean, n, spread if variance else None, bounds)


@settings(max_examples=60, deadline=None)
@given(paths(), st.booleans())
def test_intervals_are_nested(path, variance):
    sequence, before = ConfidenceSequence(0.6), EVERYTHING
    for estimate in estimates(*path, variance=variance):
        now = sequence.update(estimate)
        assert now == sequence.interval
        if sequence.consistent:
            assert before.low <= now.low <= now.high <= before.high
        assert 0 <= now.low <= now.high <= 1
        before = now


@settings(max_examples=60, deadline=None)
@given(paths(), st.booleans(), st.data())
def test_more_yields_tell_no_less(path, variance, data):
    """Whoever yields more often gets the same intervals, cut by those in between."""
    values, cuts = path
    fewer = sorted({*data.draw(st.sets(st.sampled_from(cuts))), cuts[-1]})
    often, seldom = ConfidenceSequence(0.6), ConfidenceSequence(0.6)
    for estimate in estimates(values, cuts, variance=variance):
        narrow = often.update(estimate)
    for estimate in estimates(values, fewer, variance=variance):
        wide = seldom.update(estimate)
    assume(often.consistent)
    assert seldom.consistent
    assert wide.low <= narrow.low <= narrow.high <= wide.high


@settings(max_examples=60, deadline=None)
@given(paths(), st.booleans(), st.floats(-1000, 1000), st.floats(0.01, 1000))
def test_units_do_not_matter(path, variance, shift, scale):
    values, cuts = path
    moved = [shift + scale * value for value in values]
    bounds = (shift, shift + scale)
    one, other = ConfidenceSequence(), ConfidenceSequence()
    for a, b in zip(
        estimates(values, cuts, variance=variance),
        estimates(moved, cuts, bounds, variance=variance),
        strict=True,
    ):
        low, high = one.update(a)
        expected = (shift + scale * low, shift + scale * high)
        assert other.update(b) == pytest.approx(expected, rel=1e-5, abs=1e-5 * scale)


@settings(max_examples=30, deadline=None)
@given(paths(), st.booleans())
def test_a_loss_is_as_good_as_an_accuracy(path, variance):
    values, cuts = path
    one, other = ConfidenceSequence(), ConfidenceSequence()
    for a, b in zip(
        estimates(values, cuts, variance=variance),
        estimates([1 - value for value in values], cuts, variance=variance),
        strict=True,
    ):
        low, high = one.update(a)
        assert other.update(b) == pytest.approx((1 - high, 1 - low), abs=1e-5)


def test_examples_that_come_in_order_are_found_out():
    sequence = ConfidenceSequence()
    sequence.update(Estimate(1.0, 500, bounds=(0, 2)))
    assert sequence.consistent
    for n in (1000, 1500):
        mean = (500 * 1.0) / n
        interval = sequence.update(Estimate(mean, n, bounds=(0, 2)))
        assert not sequence.consistent and interval == (0, 2)
    assert sequence.update(Estimate(0.3, 2000, bounds=(0, 2))) == (0, 2)

    sequence = ConfidenceSequence()
    sequence.update(Estimate(1.0, 500, variance=0.01))
    assert sequence.update(Estimate(5.0, 1000, variance=17.0)) == EVERYTHING
    assert not sequence.consistent


def test_a_variance_alone_needs_many_values_that_are_not_all_equal():
    assert LEAST_UNBOUNDED == 100
    assert interval_of(99, 3.0, 4.0, None) == EVERYTHING
    assert interval_of(100, 3.0, 4.0, None).width < 2
    assert interval_of(10**6, 3.0, 0.0, None) == EVERYTHING
    assert interval_of(10**6, 0.1, 1e-18, None) == EVERYTHING  # rounding


def test_it_says_nothing_before_the_first_estimate():
    sequence = ConfidenceSequence(confidence=np.float64(0.9))
    assert sequence.interval == EVERYTHING and sequence.newest is None and sequence.consistent
    assert type(sequence.confidence) is float


def test_more_confidence_is_wider():
    widths = [interval_of(500, 0.8, 0.1, UNIT, c).width for c in (0.5, 0.9, 0.99, 0.999999)]
    assert widths == sorted(widths) and widths[0] < widths[1] < widths[2] < widths[3]


@pytest.mark.parametrize("confidence", [1e-20, 1e-3, 0.3, 0.39, 0.4, 1 - 1e-15])
def test_any_confidence_gives_an_interval_around_the_estimate(confidence):
    for variance, bounds in ((None, UNIT), (0.1, UNIT), (0.1, None)):
        low, high = interval_of(1000, 0.8, variance, bounds, confidence)
        assert 0.5 < low <= 0.8 <= high < 0.99


@pytest.mark.parametrize("n", [10**9, 10**12])
def test_very_many_examples_are_no_problem(n):
    low, high = interval_of(n, 0.9)
    assert low < 0.9 < high and high - low < 1e-4
    assert interval_of(n, 0.9, 0.01).width < 1.05 * (high - low)


# What is not taken ------------------------------------------------------------------------------


def after(first, then):
    """Return what is said of an estimate that comes after another; the sequence is unchanged."""
    sequence = ConfidenceSequence()
    sequence.update(first)
    before = dict(vars(sequence))
    with pytest.raises(ConfigError) as caught:
        sequence.update(then)
    assert vars(sequence) == before
    return caught.value.problems


@pytest.mark.parametrize("n", [400, 399, 1])
def test_n_grows(n):
    (problem,) = after(Estimate(0.8, 400, bounds=UNIT), Estimate(0.8, n, bounds=UNIT))
    assert problem.startswith(f"n={n} after n=400: ") and "not those of the newest batch" in problem


def test_bounds_stay():
    (problem,) = after(Estimate(0.8, 400, bounds=UNIT), Estimate(0.8, 500, bounds=(0, 2)))
    assert problem.startswith("bounds=(0.0, 2.0) after bounds=(0.0, 1.0)")


def test_a_variance_is_given_each_time_or_never():
    bounds, both = Estimate(0.8, 400, bounds=UNIT), Estimate(0.8, 500, 0.1, UNIT)
    (problem,) = after(bounds, both)
    assert problem.startswith("variance=0.1 after variance=None") and "Pass it each time" in problem
    (problem,) = after(both, Estimate(0.8, 600, bounds=UNIT))
    assert problem.startswith("variance=None after variance=0.1")


def test_the_examples_in_between_have_a_mean_within_the_bounds():
    (problem,) = after(Estimate(0.5, 1000, bounds=UNIT), Estimate(0.6, 1100, bounds=UNIT))
    assert "the 100 examples in between would have a mean of 1.6, outside bounds=(0, 1)" in problem
    (problem,) = after(Estimate(0.9, 1000, bounds=UNIT), Estimate(0.8, 1100, bounds=UNIT))
    assert "a mean of -0.2" in problem
    sequence = ConfidenceSequence()
    sequence.update(Estimate(0.5, 1000, bounds=UNIT))
    sequence.update(Estimate(600 / 1100, 1100, bounds=UNIT))
    sequence.update(Estimate(600 / 1200, 1200, bounds=UNIT))


def test_squared_deviations_add_up():
    (problem,) = after(Estimate(3, 1000, variance=4.0), Estimate(3, 1100, variance=3.0))
    assert problem.startswith("variance=3.0 of n=1100 after variance=4.0 of n=1000")
    assert "at least 4000 here, and n * variance is 3300" in problem
    (problem,) = after(Estimate(3, 1000, variance=4.0), Estimate(13, 1100, variance=4.0))
    assert problem.startswith("variance=4.0 of n=1100")
    sequence = ConfidenceSequence()
    sequence.update(Estimate(3, 1000, variance=4.0))
    sequence.update(Estimate(3, 1100, variance=4000 / 1100))


def test_sums_in_single_precision_are_taken():
    random = np.random.default_rng(0)
    for values, bounds in (
        (random.random(5000) < 0.999, UNIT),
        (random.normal(1000, 0.1, 5000), None),
        (np.full(5000, 0.1), UNIT),
    ):
        values = values.astype(np.float32)
        sequence = ConfidenceSequence()
        for n in itertools.chain(range(1, 50), range(50, 5001, 99)):
            mean, square = values[:n].mean(), (values[:n] ** 2).mean()
            variance = max(square - mean**2, np.float32(0))
            sequence.update(Estimate(mean, n, variance, bounds))


def test_all_mistakes_are_reported_together():
    found = after(Estimate(0.8, 400, bounds=UNIT), Estimate(0.8, 300, 0.1, (0, 2)))
    assert [problem.split("=")[0] for problem in found] == ["n", "bounds", "variance"]
