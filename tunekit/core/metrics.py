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

from tunekit.core.values import MOST, LeftOut, finite_number, key_name, sanitize

# Names --------------------------------------------------------------------------------------------

# The first part of the names that tunekit adds to a row. Whatever else a trial reports is its own.
_OWN = "tunekit"
#: The key, in a row, of the number of times its trial had been overwritten with other weights.
GENERATION = f"{_OWN}/generation"
#: The key, in a row, of the number of times the iteration was run.
RUNS = f"{_OWN}/runs"
#: The key, in a trial's newest result, of the iteration whose checkpoint the score belongs to.
VALIDATED_AT = f"{_OWN}/validated_at"
#: The key, in a row that is read, of the time at which the driver got the report.
REPORT_TIME = f"{_OWN}/time"
#: Below this name, a row keeps training metrics whose names validation or tunekit use.
REPORTED = f"{_OWN}/reported"
#: The numbers in a row that are not metrics.
COUNTS = (GENERATION, RUNS)
#: The key, in a report, of the iteration it belongs to.
ITERATION = "training_iteration"
#: The key, in a row, of the name of its checkpoint's folder, which ``Result.from_path`` reads.
CHECKPOINT = "checkpoint_dir_name"

#: The key in a result that says whether, and how, to validate the checkpoint of that result:
#: True, False, or a ``ray.train.ValidationTaskConfig``. A class trainable returns it from
#: ``step()``; a function passes ``validation=`` to :func:`tunekit.report` instead. It is removed
#: from the result before anything is logged.
VALIDATION_KEY = "tunekit_validation"


def _is_number(value: Any) -> bool:
    return finite_number(value) is not None


def _is_flag(value: Any) -> bool:
    return value is None or type(value) in (bool, int)


# The names that Tune gives a meaning; where it calculates with the value, with a check of it.
_TUNES: dict[str, Callable[[Any], bool] | None] = {
    "__duplicate__": None,
    "config": lambda value: isinstance(value, Mapping),
    CHECKPOINT: None,
    "date": None,
    "done": _is_flag,
    "episodes_this_iter": None,
    "episodes_total": None,
    "experiment_id": None,
    "experiment_tag": None,
    "hostname": None,
    "iterations_since_restore": None,
    "node_ip": None,
    "pid": None,
    "should_checkpoint": _is_flag,
    "time_since_restore": _is_number,
    "time_this_iter_s": _is_number,
    "time_total_s": _is_number,
    "timestamp": _is_number,
    "timesteps_since_restore": None,
    "timesteps_this_iter": None,
    "timesteps_total": lambda value: value is None or _is_number(value),
    "trainable_name": None,
    ITERATION: lambda value: type(value) is int and 0 <= value <= MOST,
    "trial_id": None,
}


def is_reserved(name: str) -> bool:
    """Return whether a metric's name has a meaning for Tune or tunekit; a score must not have it.

    Args:
        name: The metric's flat name.

    Example:
        >>> [is_reserved(name) for name in ("loss", "pid", "config/lr", "tunekit/generation")]
        [False, True, True, True]
    """
    first = name.partition("/")[0]
    return first == _OWN or first in _TUNES


def user_metrics(names: Iterable[str]) -> list[str]:
    """Return the names that are not filled in by Tune or tunekit, sorted.

    Example:
        >>> user_metrics(["pid", "loss", "config/lr", "training_iteration", "config", "eval/acc"])
        ['eval/acc', 'loss']
    """
    return sorted(name for name in names if not is_reserved(name))


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


def left_out_of(value: Any) -> list[str]:
    """Return the flat names of the metrics that :func:`limit_sizes` has left out.

    Example:
        >>> from tunekit.core.values import limit_sizes
        >>> left_out_of(limit_sizes({"loss": 0.5, "by": {"class": "x" * 100}}, largest=50))
        ['by/class']
    """
    parts = flat_items(value) if isinstance(value, Mapping) else ()
    return [name for name, part in parts if type(part) is LeftOut]


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
    """Return a copy of a row with the metrics called ``names`` moved below :data:`REPORTED`.

    A sweep's validations own the names of their metrics. A value that training reported under one
    of these names is a different quantity, and must not appear in the validated column.

    Example:
        >>> move_to_reported({"accuracy": 0.99, "loss": 0.1}, {"accuracy"})
        {'loss': 0.1, 'tunekit/reported/accuracy': 0.99}
        >>> move_to_reported({"eval": {"accuracy": 0.99, "n": 1}}, {"eval/accuracy"})
        {'eval': {'n': 1}, 'tunekit/reported/eval/accuracy': 0.99}
    """
    hidden, rest = _parted(row, names)
    return _with_reported(rest, hidden)


def _with_reported(row: Mapping[str, Any], moved: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{f"{REPORTED}/{name}": value for name, value in moved.items()}}


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
    above = _above(names)
    if not above and set(map(type, level)) <= {str} and not level.keys() & names:
        return {}, dict(level)  # as usual
    return _part(level, frozenset(names), above, "")


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


def sanitize_report(
    report: Mapping[str, Any],
    iteration: int,
    objects: Callable[[Any], Any],
    keep: Collection[str] = ("config",),
) -> Mapping[str, Any]:
    """Return a report that Tune, loggers and the journal can handle, whatever its values are.

    Values are converted by :func:`~tunekit.core.values.sanitize`; a metric that is written in two
    ways keeps one value; a metric with a name of tunekit's, or a value of the wrong type under a
    name that Tune calculates with, moves below :data:`REPORTED`. A report that needs no change is
    returned itself.

    Args:
        report: A trial's report; it is not changed.
        iteration: The number of the report, if it does not contain one.
        objects: Returns what represents an object: itself, or a text.
        keep: Keys that are not metrics, and are left unchanged.

    Example:
        >>> sanitize_report({"training_iteration": 3, "loss": 0.5, 7: (1, 2)}, 3, str)
        {'training_iteration': 3, 'loss': 0.5, '7': (1, 2)}
        >>> sanitize_report({"training_iteration": 3, "timestamp": "noon"}, 3, str)
        {'training_iteration': 3, 'tunekit/reported/timestamp': 'noon'}
    """
    if not isinstance(report.get("config", {}), Mapping):
        keep = [name for name in keep if name != "config"]
    kept = {name: report[name] for name in keep if name in report}
    own = {key: value for key, value in report.items() if type(key) is not str or key not in kept}
    clean = deduplicate(sanitize(own, objects))
    odd = [
        name
        for name, value in clean.items()
        if name.partition("/")[0] == _OWN
        or ((fits := _TUNES.get(name)) is not None and not fits(value))
    ]
    if odd:
        moved = flatten({name: clean[name] for name in odd})
        clean = _with_reported({n: v for n, v in clean.items() if n not in odd}, moved)
    if ITERATION not in clean:
        clean = {**clean, ITERATION: iteration}
    return report if clean is own else {**clean, **kept}
