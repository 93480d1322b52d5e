"""A sweep in short: its state, who drives it, and where its time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.room import slots
from tunekit.core.timeline import Timeline
from tunekit.driver_lock import Driver

__all__ = [
    "busy",
    "driver_in_short",
    "lag_in_short",
    "later_in_short",
    "slots_of",
    "stages_in_short",
    "state_of",
]

_RAYS_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}  # of options, and of resources


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


def driver_in_short(driver: Driver | None) -> dict[str, Any] | None:
    """Return who drives a sweep, in types that JSON has; None if nobody is known to."""
    if driver is None:
        return None
    return {name: getattr(driver, name) for name in ("host", "pid", "since", "heard")}


def slots_of(session: Mapping[str, Any], trial: Mapping[str, float]) -> tuple[int, int] | None:
    """Return how many trials, and how many validations besides, fit on a cluster at once.

    Args:
        session: What the journal says of how the sweep was run.
        trial: What one trial takes.

    Returns:
        None if the cluster is not recorded, or if a validation takes more than a trial gives back.
    """
    cluster = (session.get("cluster") or {}).get("resources")
    if not cluster:
        return None
    options = {"CPU": 1.0, **session.get("validation", {}).get("resources", {})}
    asked = {_RAYS_NAMES.get(name, name): amount for name, amount in options.items()}
    return slots(cluster, trial, asked)


def busy(
    timeline: Timeline, places: tuple[int, int] | None, trained_s: float, validated_s: float
) -> dict[str, float | None]:
    """Return the shares of the time in which the slots for trials trained, and validated."""
    began, last, whole = timeline.first, timeline.last, 0.0
    if began is not None and last is not None and places is not None:
        whole = (last - began) * places[0]
    shares = {"training_busy": trained_s, "validation_busy": validated_s}
    return {name: seconds / whole if whole else None for name, seconds in shares.items()}


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


def stages_in_short(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many validations of each further stage there are of each status, by its name.

    Example:
        >>> rows = [("", "failed"), ("full", "running"), ("full", "running")]
        >>> stages_in_short([{"stage": stage, "status": status} for stage, status in rows])
        {'full': {'running': 2}}
    """
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["stage"]:
            counts = found.setdefault(row["stage"], {})
            counts[row["status"]] = counts.get(row["status"], 0) + 1
    return found


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
