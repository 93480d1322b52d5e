"""Sanitize a trial's report: values of any kind, and names that Tune and tunekit use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tunekit.core.metric_names import (
    GENERATION,
    ITERATION,
    REPORTED,
    RUNS,
    VALIDATED_ITERATION,
)
from tunekit.core.metrics import add_reported, deduplicate, flat_items, move_to_reported
from tunekit.core.values import finite_number, sanitize

# The names that tunekit adds to a row.
_OURS = (GENERATION, RUNS, VALIDATED_ITERATION)


def _is_number(value: Any) -> bool:
    return finite_number(value) is not None


def _is_flag(value: Any) -> bool:
    return value is None or type(value) in (bool, int)


# The names that Tune fills in and computes with, each with a check of its value.
_TUNES: dict[str, Callable[[Any], bool]] = {
    ITERATION: lambda value: type(value) is int,
    "config": lambda value: isinstance(value, Mapping),
    "done": _is_flag,
    "should_checkpoint": _is_flag,
    "time_since_restore": _is_number,
    "time_this_iter_s": _is_number,
    "time_total_s": _is_number,
    "timestamp": _is_number,
    "timesteps_total": lambda value: value is None or _is_number(value),
}


def sanitize_report(
    report: Mapping[str, Any],
    iteration: int,
    objects: Callable[[Any], Any],
    keep: Collection[str] = ("config",),
) -> Mapping[str, Any]:
    """Return a report that Tune, loggers and the journal can handle, whatever its values are.

    Values are converted by :func:`~tunekit.core.values.sanitize`; a metric that is written in two
    ways keeps one value; a value of the wrong type under a name that Tune computes with moves to
    ``reported/``. A report that needs no change is returned itself.

    Args:
        report: A trial's report; it is not changed.
        iteration: The number of the report, if it does not contain one.
        objects: Returns what represents an object: itself, or a text.
        keep: Keys that are not metrics, and are left unchanged.

    Example:
        >>> sanitize_report({"training_iteration": 3, "loss": 0.5, 7: (1, 2)}, 3, str)
        {'training_iteration': 3, 'loss': 0.5, '7': (1, 2)}
        >>> sanitize_report({"training_iteration": 3, "timestamp": "noon"}, 3, str)
        {'training_iteration': 3, 'reported': {'timestamp': 'noon'}}
    """
    if not isinstance(report.get("config", {}), Mapping):
        keep = [name for name in keep if name != "config"]
    kept = {name: report[name] for name in keep if name in report}
    own = {key: value for key, value in report.items() if type(key) is not str or key not in kept}
    clean = deduplicate(sanitize(own, objects))
    odd = [name for name, fits in _TUNES.items() if name in clean and not fits(clean[name])]
    if odd:
        clean = _moved(clean, odd)
    if ITERATION not in clean:
        clean = {**clean, ITERATION: iteration}
    return report if clean is own else {**clean, **kept}


def own_names(report: Mapping[str, Any], validated: Collection[str]) -> Mapping[str, Any]:
    """Return a report whose names are training's; other names move to ``reported/``.

    Args:
        report: A trial's report.
        validated: The metrics that validation produces.

    Example:
        >>> own_names({"loss": 0.5, "accuracy": 0.99, "reported": 1}, ["accuracy"])
        {'loss': 0.5, 'reported': {'reported': 1, 'accuracy': 0.99}}
    """
    ours = [name for name in _OURS if name in report]
    if ours:
        report = _moved(report, ours)
    if not isinstance(report.get(REPORTED, {}), Mapping):
        report = add_reported(report, {})
    if validated and not _has_none(report, validated):
        report = move_to_reported(report, validated)
    return report


def _has_none(report: Mapping[str, Any], validated: Collection[str]) -> bool:
    """Return whether a report has none of the metrics that validation produces."""
    own = {key: value for key, value in report.items() if key != "config"}
    return set(validated).isdisjoint(name for name, _ in flat_items(own))


def _moved(report: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy with some keys and their values moved into ``report["reported"]``."""
    moved = {name: report[name] for name in names}
    return add_reported({name: v for name, v in report.items() if name not in moved}, moved)
