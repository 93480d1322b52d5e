"""A sweep in short: its state, who drives it, where its time went, and what is the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tunekit.core.confirmation import Confirmed
from tunekit.core.metrics import flatten
from tunekit.core.room import slots
from tunekit.core.seeds import Configuration
from tunekit.core.timeline import Timeline
from tunekit.core.words import confirmation_in_words
from tunekit.journal.lock import Driver
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.tables import MEANS

__all__ = [
    "best_in_short",
    "busy",
    "configuration_in_short",
    "confirmation_in_short",
    "driver_in_short",
    "lag_in_short",
    "later_in_short",
    "slots_of",
    "stages_in_short",
    "state_of",
    "work_in_short",
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


def work_in_short(
    timeline: Timeline,
    later: Sequence[Mapping[str, Any]],
    places: tuple[int, int] | None,
    exploits: int,
) -> dict[str, Any]:
    """Return what was done, and what it took: the numbers of :meth:`tunekit.Sweep.summary`.

    Args:
        timeline: What became of the sweep.
        later: The rows of later validations.
        places: As of :func:`slots_of`.
        exploits: How many trials were overwritten.
    """
    trials, validations = list(timeline.trials.values()), timeline.validations
    trained_s = sum(story.trained_s for story in trials)
    validated_s = sum(row["ran_s"] or 0.0 for row in timeline.of_all_stages)
    return {
        "trials": _count(story.status for story in trials),
        "validations": _count(row["status"] for row in validations),
        "stages": stages_in_short(timeline.of_all_stages),
        "exploits": exploits,
        "later": later_in_short(later),
        "trained_s": trained_s,
        "trials_waited_s": sum(story.waited_s for story in trials),
        "validations_ran_s": validated_s,
        "iterations": timeline.iterations,
        "iterations_after_stop": timeline.iterations_after_stop,
        **busy(timeline, places, trained_s, validated_s),
        "lag_s": lag_in_short(validations),
    }


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


def best_in_short(best: BestCheckpoint) -> dict[str, Any]:
    """Return which checkpoint is the best, in types that JSON has."""
    return {
        "trial_id": best.trial_id,
        "generation": best.generation,
        "iteration": best.iteration,
        "score": best.score,
        "checkpoint": best.path,
        "kept": best.checkpoint is not None,
        "config": dict(best.config),
    }


def configuration_in_short(best: Configuration) -> dict[str, Any] | None:
    """Return the best configuration over its seeds; None if it has no score.

    Example:
        >>> from tunekit.core.seeds import Repeat, configurations_of
        >>> repeats = [Repeat("a", {"lr": 0.1, "seed": 0}, 0.5)]
        >>> configuration_in_short(configurations_of(repeats, "seed", "max")[0])
        {'config': {'lr': 0.1}, 'seeds': 1, 'mean': 0.5, 'std': None, 'low': None, 'high': None}
    """
    if best.estimate is None:
        return None
    estimate = {name: getattr(best.estimate, name) for name in MEANS}
    known = {name: value for name, value in estimate.items() if not math.isnan(value)}
    return {
        "config": dict(best.hyperparameters),
        "seeds": best.seeds,
        **dict.fromkeys(MEANS),
        **known,
    }


def confirmation_in_short(found: Confirmed | None) -> dict[str, Any] | None:
    """Return what a confirmation of the winner has come to; None without one."""
    if found is None:
        return None
    return {**asdict(found), "in_words": confirmation_in_words(found)}


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts
