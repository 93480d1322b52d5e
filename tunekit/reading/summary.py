"""Parts of a sweep's summary: its state, its slots, how late scores were, what came later."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.journal.lock import Driver

__all__ = ["count", "lag_in_short", "later_in_short", "state_of"]


def state_of(end: str | None, driver: Driver | None) -> str:
    """Return what a sweep is doing, as :meth:`tunekit.Sweep.summary` says.

    Args:
        end: How its newest session ended, if it has.
        driver: The driver that its lock names.

    Example:
        >>> state_of("finished", None), state_of(None, None)
        ('finished', 'open')
    """
    if driver is None:
        return end or "open"
    if driver.alive and end != "finished":  # an interrupted sweep may have been restored
        return "running"
    return end or "killed"


def lag_in_short(validations: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return how late scores arrived, in seconds; None without any.

    Example:
        >>> lag_in_short([{"lag_s": 1.0}, {"lag_s": None}, {"lag_s": 3.0}])
        {'median': 2.0, 'p90': 3.0}
    """
    lags = sorted(row["lag_s"] for row in validations if row["lag_s"] is not None)
    if not lags:
        return None
    at = max(0, math.ceil(0.9 * len(lags)) - 1)
    return {"median": statistics.median(lags), "p90": lags[at]}


def later_in_short(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what was validated later: the function, metrics and numbers by status, by name."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = found.setdefault(
            row["name"], {"function": row["function"], "metrics": [], "validations": {}}
        )
        names = flatten({row["name"]: row["metrics"]}) if row["metrics"] else {}
        own["metrics"] += [name for name in names if name not in own["metrics"]]
        counts = own["validations"]
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return found


def count(names: Iterable[str]) -> dict[str, int]:
    """Return how many there are of each name, in order of appearance."""
    return dict(Counter(names))
