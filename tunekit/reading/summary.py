"""A sweep in short, in types that JSON has: what :meth:`tunekit.Sweep.summary` returns."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunekit.core.confirmation import Confirmed
from tunekit.core.metrics import flatten
from tunekit.core.seeds import Configuration
from tunekit.core.timeline import Timeline
from tunekit.core.words import confirmation_in_words
from tunekit.journal.lock import Driver
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.tables import MEANS

__all__ = [
    "best_in_short",
    "configuration_in_short",
    "confirmation_in_short",
    "lag_in_short",
    "later_in_short",
    "state_of",
    "summary_of",
]


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


def summary_of(timeline: Timeline, driver: Driver | None) -> dict[str, Any]:
    """Summarize what became of trials and validations, whatever they are ranked by."""
    trials = list(timeline.trials.values())
    stages = dict.fromkeys(row["stage"] for row in timeline.of_all_stages if row["stage"])
    return {
        "state": state_of(timeline.end, driver),
        "driver": driver
        and {name: getattr(driver, name) for name in ("host", "pid", "since", "heard")},
        "began": timeline.first,
        "last": timeline.last,
        "trials": dict(Counter(trial.status for trial in trials)),
        "validations": dict(Counter(row["status"] for row in timeline.validations)),
        "stages": {
            name: dict(Counter(r["status"] for r in timeline.of_all_stages if r["stage"] == name))
            for name in stages
        },
        "trained_s": sum(trial.trained_s for trial in trials),
        "trials_waited_s": sum(trial.waited_s for trial in trials),
        "validations_ran_s": sum(row["ran_s"] or 0.0 for row in timeline.of_all_stages),
        "iterations": timeline.iterations,
        "iterations_after_stop": timeline.iterations_after_stop,
        "lag_s": lag_in_short(timeline.validations),
    }


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


def best_in_short(best: BestCheckpoint) -> dict[str, Any]:
    """Return the best checkpoint: where it is, its score and its hyperparameters."""
    return {
        "trial_id": best.trial_id,
        "generation": best.generation,
        "iteration": best.iteration,
        "score": best.score,
        "checkpoint": best.path,
        "kept": best.checkpoint is not None,
        "config": dict(best.config),
    }


def configuration_in_short(one: Configuration) -> dict[str, Any] | None:
    """Return a configuration and its mean over seeds; None if it has no score."""
    if one.estimate is None:
        return None
    estimate = {name: getattr(one.estimate, name) for name in MEANS}
    return {
        "config": dict(one.hyperparameters),
        "seeds": one.seeds,
        **{name: None if math.isnan(value) else value for name, value in estimate.items()},
    }


def confirmation_in_short(confirmed: Confirmed) -> dict[str, Any]:
    """Return a confirmation's result, and the same in words."""
    return {**asdict(confirmed), "in_words": confirmation_in_words(confirmed)}
