"""Estimates of a metric before all examples are evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tunekit.core.problems import Problems, shown
from tunekit.core.values import admitted, number, singled

# Rounding of sums in single precision, as a share of the metric's range.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Estimate:
    """Estimate a metric by its mean over the examples evaluated so far.

    Pass Python numbers, numpy numbers or one-element tensors; they are stored as Python numbers.

    Args:
        mean: The mean over the ``n`` examples, in the metric's own unit.
        n: The number of examples evaluated since the validation began.
        variance: The mean squared deviation of these ``n`` values from their mean, that is, with
            the divisor ``n`` (``numpy.var(values)``, ``torch.var(values, correction=0)``), in the
            metric's unit squared.
        bounds: ``(low, high)``, the least and greatest value that a single example can have:
            ``(0, 1)`` for accuracy. They follow from the metric's definition, not from the values
            seen.

    Pass ``variance``, ``bounds`` or both. With bounds, the confidence interval of the mean is exact
    for any number of examples; with both, it is narrower if the values vary less than the bounds
    allow; with the variance alone, it is approximate. Single-precision rounding may move the mean
    out of its bounds, or the variance above what they allow, by a millionth of their width; such
    values are set to the limit.

    Raises:
        tunekit.errors.ConfigError: If ``mean``, ``variance`` or a bound is not a finite number,
            ``n`` is not a whole number of at least 1, ``variance`` is negative or larger than
            bounds and mean allow, the bounds are not in order or do not contain the mean, or
            ``variance`` and ``bounds`` are both missing. The message lists every mistake.

    Example:
        >>> Estimate(mean=0.81, n=400, bounds=(0, 1))
        Estimate(mean=0.81, n=400, variance=None, bounds=(0.0, 1.0))
        >>> Estimate(mean=float("nan"), n=0, variance=-1)
        Traceback (most recent call last):
        tunekit.errors.ConfigError: Estimate: 3 problems:
          - mean=nan must be a finite number. Pass the mean over the examples evaluated so far.
          - n=0 must be a whole number of at least 1. Pass how many examples were evaluated so far.
          - variance=-1 must be a finite number of at least 0. Pass the mean squared deviation.
    """

    mean: float
    n: int
    variance: float | None = None
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        problems = Problems("Estimate")
        mean, variance = _finite(self.mean), _finite(self.variance)
        n, bounds = _whole(self.n), _pair(self.bounds)
        if mean is None:
            problems.add(
                f"mean={shown(self.mean)} must be a finite number. "
                "Pass the mean over the examples evaluated so far."
            )
        if n is None or n < 1:
            problems.add(
                f"n={shown(self.n)} must be a whole number of at least 1. "
                "Pass how many examples were evaluated so far."
            )
        if self.variance is not None and (variance is None or variance < 0):
            problems.add(
                f"variance={shown(self.variance)} must be a finite number of at least 0. "
                "Pass the mean squared deviation."
            )
            variance = None
        if self.bounds is not None and bounds is None:
            problems.add(
                f"bounds={shown(self.bounds)} must be two finite numbers (low, high) with "
                "low < high. Pass (0, 1) for accuracy."
            )
        if self.variance is None and self.bounds is None:
            problems.add(
                "variance=None and bounds=None: one of them is needed to bound the error of the "
                "mean. Pass bounds=(0, 1) for a metric between 0 and 1, or the variance of the "
                "values."
            )
        if mean is not None and bounds is not None:
            low, high = bounds
            slack = (high - low) * _ROUNDING
            inside, mean = low - slack <= mean <= high + slack, min(max(mean, low), high)
            most = (mean - low) * (high - mean)
            if not inside:
                problems.add(
                    f"mean={shown(self.mean)} is outside bounds=({low:g}, {high:g}), but the mean "
                    "of values within them cannot be. Pass the bounds of the metric itself, in the "
                    "unit of the mean."
                )
            elif variance is not None and variance > most + (high - low) * slack:
                problems.add(
                    f"variance={shown(self.variance)} is more than (mean - low) * (high - mean) = "
                    f"{most:g}, the most that values between {low:g} and {high:g} with that mean "
                    "can have. Pass the mean squared deviation with the divisor n: "
                    "torch.var(values, correction=0)."
                )
            if variance is not None:
                variance = min(variance, most)
        problems.raise_any()
        for name, value in (("mean", mean), ("n", n), ("variance", variance), ("bounds", bounds)):
            object.__setattr__(self, name, value)


def _plain(value: Any) -> Any:
    return admitted(singled(value))


def _finite(value: Any) -> float | None:
    found = number(_plain(value))
    return found if found is not None and math.isfinite(found) else None


def _whole(value: Any) -> int | None:
    """Return a whole number, also from a float, such as the sum of a mask; None for others."""
    found = _plain(value)
    if isinstance(found, bool):
        return None
    if isinstance(found, int):
        return found
    return int(found) if isinstance(found, float) and found.is_integer() else None


def _pair(value: Any) -> tuple[float, float] | None:
    try:
        low, high = value
    except (TypeError, ValueError):
        return None
    low, high = _finite(low), _finite(high)
    wide = low is not None and high is not None and low < high and math.isfinite(high - low)
    return (low, high) if wide else None  # type: ignore[return-value]
