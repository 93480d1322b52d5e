"""Metrics: their names, and the nested dictionaries that contain them, above all reports.

A metric has one name, the path of its keys joined by ``/``, as in Tune, however it was nested or
written: ``{"eval": {"loss": 1}}`` and ``{"eval/loss": 1}`` both name the metric
``eval/loss``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tunekit.core.values import finite_number, key_name, sanitize

# Names --------------------------------------------------------------------------------------------

#: The key, in a report, of the number of times its trial had been overwritten with other weights.
GENERATION = "generation"
#: The key, in a report, of the iteration it belongs to (Tune's ``training_iteration``).
ITERATION = "training_iteration"
#: The key, in a trial's newest result, of the iteration whose checkpoint the score belongs to.
VALIDATED_ITERATION = "validated_iteration"
#: The key, in a row, of the name of its checkpoint's folder, which ``Result.from_path`` reads.
CHECKPOINT = "checkpoint_dir_name"
#: The key, in a row, of the number of times the iteration was run.
RUNS = "iteration_runs"
#: The numbers in a row that are not metrics.
COUNTS = (GENERATION, RUNS)
#: Where a row keeps a training metric whose name a validation also produces.
REPORTED = "reported"

#: The key in a result that says whether, and how, to validate the checkpoint of that result:
#: True, False, or a ``ray.train.ValidationTaskConfig``. A class trainable returns it from
#: ``step()``; a function passes ``validation=`` to :func:`tunekit.report` instead. It is removed
#: from the result before anything is logged.
VALIDATION_KEY = "tunekit_validation"

#: Names of a row that Tune or tunekit fill in themselves; a validation must not overwrite them.
RESERVED = frozenset(
    {
        *(GENERATION, ITERATION, REPORTED, RUNS, VALIDATED_ITERATION),
        "config",
        "done",
        "should_checkpoint",
        "time_total_s",
        "timestamp",
        "trial_id",
    }
)
#: The names that Tune and tunekit add to every report.
FILLED_IN = RESERVED | {
    CHECKPOINT,
    "date",
    "episodes_this_iter",
    "episodes_total",
    "experiment_id",
    "experiment_tag",
    "hostname",
    "iterations_since_restore",
    "node_ip",
    "pid",
    "reported_at",
    "time_since_restore",
    "time_this_iter_s",
    "timesteps_since_restore",
    "timesteps_this_iter",
    "timesteps_total",
    "trainable_name",
}


def user_metrics(names: Iterable[str]) -> list[str]:
    """Return the names that are not filled in by Tune or tunekit, sorted.

    Example:
        >>> user_metrics(["pid", "loss", "config/lr", "training_iteration", "config", "eval/acc"])
        ['eval/acc', 'loss']
    """
    return sorted(n for n in names if n not in FILLED_IN and not n.startswith("config/"))


def closest_name(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably intended; None if none is similar.

    Example:
        >>> closest_name("acuracy", ["loss", "accuracy"]), closest_name("f1", ["loss", "accuracy"])
        ('accuracy', None)
        >>> closest_name("accuracy", ["loss", "eval/accuracy"])
        'eval/accuracy'
    """
    known = sorted(names)
    near = difflib.get_close_matches(wanted, known, n=1)
    if near:
        return near[0]
    last = wanted.rsplit("/", 1)[-1]
    return next((name for name in known if name.rsplit("/", 1)[-1] == last), None)


def format_names(names: Iterable[str], wanted: Iterable[str] = ()) -> str:
    """Return names as a list for messages, with those similar to ``wanted`` first.

    Example:
        >>> format_names(["a", "loss", "accuracy"], ["acuracy"]), format_names([])
        ("'accuracy', 'a', 'loss'", 'nothing')
    """
    known = sorted(names)
    near = [name for one in wanted for name in difflib.get_close_matches(one, known, n=3)]
    return ", ".join(map(repr, dict.fromkeys([*near, *known]))) or "nothing"


# Nested dictionaries -----------------------------------------------------------------------------

# The types of most values; checking whether a value is a mapping takes ten times as long.
_SINGLE = frozenset({bool, float, int, str, type(None)})


def flat_items(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(name, value)`` for every value that is not itself a non-empty mapping."""
    for key, value in metrics.items():
        name = f"{prefix}{key}" if type(key) is str else f"{prefix}{key_name(key)}"
        if type(value) not in _SINGLE and isinstance(value, Mapping) and value:
            yield from flat_items(value, f"{name}/")
        else:
            yield name, value


def flatten(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics by flat name.

    Example:
        >>> flatten({"loss": 1, "eval": {"accuracy": 0.5}})
        {'loss': 1, 'eval/accuracy': 0.5}
    """
    return dict(flat_items(metrics))


def metric_of(metrics: Mapping[str, Any], name: str) -> Any:
    """Return the metric of a flat name; None if there is none.

    Example:
        >>> metric_of({"epoch": 3}, "epoch"), metric_of({"eval": {"loss": 1}}, "eval/loss")
        (3, 1)
    """
    value = metrics.get(name)
    return value if type(value) in (int, float) else flatten(metrics).get(name)


def merge(report: Mapping[str, Any], validated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``report`` with the metrics in ``validated`` merged into it.

    A validated metric replaces a reported one of the same name, however either is written; all
    others stay. Neither argument is changed.

    Example:
        >>> merge({"loss": 2, "eval": {"n": 1}}, {"eval": {"accuracy": 0.5}, "loss": 1})
        {'eval': {'n': 1, 'accuracy': 0.5}, 'loss': 1}
        >>> merge({"eval/accuracy": 0.9, "eval/n": 1}, {"eval": {"accuracy": 0.5}})
        {'eval/n': 1, 'eval': {'accuracy': 0.5}}
    """
    names = flatten(validated)
    rest = without(report, names)
    merged = _laid_over(rest, validated)
    if merged is None:  # {"eval": 1} and {"eval": {"loss": 2}}
        own = {key: value for key, value in rest.items() if key == "config"}
        merged = {**flatten({k: v for k, v in rest.items() if k not in own}), **names, **own}
    return merged


def _laid_over(report: Mapping[str, Any], validated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge two mappings without common names; None if a name is also a prefix of others."""
    merged: dict[str, Any] = dict(report)
    for key, value in validated.items():
        if key in merged:
            below = merged[key]
            if not (isinstance(value, Mapping) and isinstance(below, Mapping)):
                return None
            value = _laid_over(below, value)
            if value is None:
                return None
        merged[key] = value
    return merged


def move_to_reported(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy of a row with the metrics called ``names`` moved to ``row["reported"]``.

    A sweep's validations own the names of their metrics. A value that training reported under one
    of these names is a different quantity, and must not appear in the validated column.

    Example:
        >>> move_to_reported({"accuracy": 0.99, "loss": 0.1}, {"accuracy"})
        {'loss': 0.1, 'reported': {'accuracy': 0.99}}
        >>> move_to_reported({"eval": {"accuracy": 0.99, "n": 1}}, {"eval/accuracy"})
        {'eval': {'n': 1}, 'reported': {'eval/accuracy': 0.99}}
    """
    hidden, rest = _parted(row, names)
    return add_reported(rest, hidden) if hidden else rest


def add_reported(row: Mapping[str, Any], moved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a row with metrics added to ``row["reported"]``.

    Example:
        >>> add_reported({"loss": 0.1, "reported": 3}, {"accuracy": 0.99})
        {'loss': 0.1, 'reported': {'reported': 3, 'accuracy': 0.99}}
    """
    own = row.get(REPORTED, {})
    return {**row, REPORTED: {**(own if isinstance(own, Mapping) else {REPORTED: own}), **moved}}


def without(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy of a row without the metrics called ``names``.

    Example:
        >>> without({"accuracy": 0.99, "eval": {"loss": 1, "n": 2}}, {"accuracy", "eval/loss"})
        {'eval': {'n': 2}}
    """
    return _parted(row, names)[1]


def _parted(
    level: Mapping[str, Any], names: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split one level of a result into the metrics with the flat names ``names``, and the rest."""
    return _part(level, frozenset(names), _above(names), "")


def _above(names: Iterable[str]) -> set[str]:
    """Return all prefixes of names, up to each of their slashes.

    Example:
        >>> sorted(_above(["loss", "eval/test/loss"]))
        ['eval/', 'eval/test/']
    """
    nested = (name for name in names if "/" in name)
    return {name[: at + 1] for name in nested for at, one in enumerate(name) if one == "/"}


def _part(
    level: Mapping[str, Any], names: Collection[str], above: Collection[str], prefix: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    taken: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in level.items():
        name = f"{prefix}{key}" if type(key) is str else f"{prefix}{key_name(key)}"
        if type(value) not in _SINGLE and isinstance(value, Mapping) and value:
            below = f"{name}/"
            if below in above:
                own, left = _part(value, names, above, below)
                taken.update(own)
                if left:
                    rest[key] = left
            else:
                rest[key] = value
        elif name in names:
            taken[name] = value
        else:
            rest[key] = value
    return taken, rest


def deduplicate(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a report that keeps one value of each metric that is written in two ways.

    As for Tune's schedulers, the more deeply nested one wins.

    Example:
        >>> deduplicate({"eval": {"loss": 1, "n": 2}, "eval/loss": 3})
        {'eval/loss': 1, 'eval/n': 2}
    """
    if not any("/" in key or _has_slash(value) for key, value in report.items()):
        return report
    found: dict[str, tuple[int, Any]] = {}
    count = 0
    for name, depth, value in _depths(report):
        count += 1
        if depth >= found.get(name, (0,))[0]:
            found[name] = (depth, value)
    if count == len(found):
        return report
    return {name: value for name, (_, value) in found.items()}


def _has_slash(value: Any) -> bool:
    nested = type(value) not in _SINGLE and isinstance(value, Mapping)
    return nested and any("/" in key_name(key) or _has_slash(below) for key, below in value.items())


def _depths(
    level: Mapping[str, Any], prefix: str = "", depth: int = 1
) -> Iterator[tuple[str, int, Any]]:
    for key, value in level.items():
        name = f"{prefix}{key_name(key)}"
        if isinstance(value, Mapping) and value:
            yield from _depths(value, f"{name}/", depth + 1)
        else:
            yield name, depth, value


def finite_json(value: Any) -> Any:
    """Return a value in standard JSON: NaN and infinity become None.

    Example:
        >>> finite_json({"loss": float("nan"), "widths": (4, 8)})
        {'loss': None, 'widths': [4, 8]}
    """
    if isinstance(value, Mapping):
        return {str(name): finite_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Reports -----------------------------------------------------------------------------------------

# The names that tunekit adds to a row.
_OURS = (GENERATION, RUNS, VALIDATED_ITERATION)


def _is_number(value: Any) -> bool:
    return finite_number(value) is not None


def _is_flag(value: Any) -> bool:
    return value is None or type(value) in (bool, int)


# The names that Tune fills in and calculates with, each with a check of its value.
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
    ways keeps one value; a value of the wrong type under a name that Tune calculates with moves to
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
    """Return a report with only training's names; other names move to ``reported/``.

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
    return move_to_reported(report, validated) if validated else report


def _moved(report: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy with some keys and their values moved into ``report["reported"]``."""
    moved = {name: report[name] for name in names}
    return add_reported({name: v for name, v in report.items() if name not in moved}, moved)
