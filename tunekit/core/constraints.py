"""Constraints on validated metrics: whether a score is feasible, and its violation.

The rule is that of Deb, 2000 (https://doi.org/10.1016/S0045-7825(99)00389-8): a feasible score is
better than an infeasible one; of two infeasible ones, the one with the smaller violation; of two
feasible ones, the one with the better objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunekit.core.values import finite_number, format_value, safely
from tunekit.errors import ConfigError

# Worse than any expected score. The sum of a hundred million such values is still finite, as
# schedulers that compute means and percentiles require.
_INFEASIBLE = 1e299


@dataclass(frozen=True)
class Constraint:
    """Require a validated metric to be at most, or at least, a number.

    Feasible scores, which satisfy all constraints, rank before infeasible ones, for every scheduler
    and searcher; infeasible ones rank by how far they violate them.

    Args:
        text: The constraint: the metric's flat name, ``<=`` or ``>=``, and a number.

    Raises:
        tunekit.errors.ConfigError: If ``text`` is not of this form.

    Example:
        >>> limit = Constraint("latency_ms <= 20")
        >>> limit.metric, limit.violation(15), limit.violation(25)
        ('latency_ms', 0.0, 0.25)
        >>> Constraint("latency_ms < 20")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: Constraint: text='latency_ms < 20' is not of the form...
    """

    text: str

    def __post_init__(self) -> None:
        """Check the text."""
        _ = self._parts

    @cached_property  # read at each score
    def _parts(self) -> tuple[str, str, float]:
        for sign in ("<=", ">=") if isinstance(self.text, str) else ():
            metric, _, number = self.text.rpartition(sign)
            bound = safely(float, number)
            if metric.strip() and bound is not None and math.isfinite(bound):
                return metric.strip(), sign, bound
        raise ConfigError(
            "Constraint",
            [
                f"text={format_value(self.text)} is not of the form: a metric, <= or >=, and a "
                "number. Pass one such as 'latency_ms <= 20'."
            ],
        )

    @property
    def metric(self) -> str:
        """Return the metric, by flat name."""
        return self._parts[0]

    def violation(self, value: float) -> float:
        """Return a value's violation, in units of the bound; 0 if it satisfies the constraint.

        If the bound is 0, it is in units of the metric. NaN gives infinity.
        """
        _, sign, bound = self._parts
        if math.isnan(value):
            return math.inf
        excess = value - bound if sign == "<=" else bound - value
        return max(0.0, excess / (abs(bound) or 1.0))


def violation(metrics: Mapping[str, Any], constraints: Iterable[Constraint]) -> float:
    """Return the total violation of constraints by flat metrics; 0 if they satisfy all.

    A metric that is missing or not a number gives infinity.

    Example:
        >>> limits = [Constraint("latency_ms <= 20"), Constraint("recall >= 0.5")]
        >>> violation({"latency_ms": 25, "recall": 0.25}, limits)
        0.75
        >>> violation({"latency_ms": 19}, limits)
        inf
    """
    total = 0.0
    for one in constraints:
        value = finite_number(metrics.get(one.metric))
        total += math.inf if value is None else one.violation(value)
    return total


def penalized_value(value: float, mode: str | None, by: float) -> float:
    """Return the objective's value that schedulers and searchers get for an infeasible score.

    It is worse than any feasible value, and gets worse as the violation grows. So schedulers and
    searchers that ignore constraints still follow the rule above.

    Args:
        value: The objective's own value.
        mode: Which values are better, ``"min"`` or ``"max"``; None means ``"max"``.
        by: The total violation.

    Example:
        >>> penalized_value(0.9, "max", by=0)
        0.9
        >>> penalized_value(0.9, "max", by=2) < penalized_value(0.9, "max", by=0.5) < -1e298
        True
    """
    if by == 0:
        return value
    # From 1 to 2; beyond the precision of a float, all violations count the same.
    share = 2.0 if math.isinf(by) else 1.0 + by / (1.0 + by)
    return _INFEASIBLE * (share if mode == "min" else -share)


def penalize(
    result: Mapping[str, Any],
    objectives: Mapping[str, str | None],
    constraints: Iterable[Constraint],
) -> dict[str, Any]:
    """Return a flat result for a component that ranks by objectives and ignores constraints.

    Args:
        result: The result.
        objectives: The metrics it ranks by, each with its mode.
        constraints: The constraints.

    Example:
        >>> limits = [Constraint("latency_ms <= 20")]
        >>> penalize({"accuracy": 0.9, "latency_ms": 15}, {"accuracy": "max"}, limits)
        {'accuracy': 0.9, 'latency_ms': 15}
        >>> penalize({"accuracy": 0.9, "latency_ms": 25}, {"accuracy": "max"}, limits)
        {'accuracy': -1.2e+299, 'latency_ms': 25}
    """
    by = violation(result, constraints)
    passed = dict(result)
    for name, mode in objectives.items() if by else ():
        value = finite_number(result.get(name))
        if value is not None:
            passed[name] = penalized_value(value, mode, by)
    return passed
