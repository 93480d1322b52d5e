"""Nested dictionaries of metrics: flat names, merging, hiding.

A metric has one name, the path of its keys joined by ``/``, as in Tune, however it was nested or
written: ``{"eval": {"loss": 1}}`` and ``{"eval/loss": 1}`` both have ``eval/loss``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tunekit.core.metric_names import REPORTED
from tunekit.core.values import key_name

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


def found(metrics: Mapping[str, Any], name: str) -> Any:
    """Return the metric of a flat name; None if there is none.

    Example:
        >>> found({"epoch": 3}, "epoch"), found({"eval": {"loss": 1}}, "eval/loss")
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
    of these names is another quantity, and must not appear in the validated column.

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
    slashes = ((name, at) for name in names for at, one in enumerate(name) if one == "/")
    return {name[: at + 1] for name, at in slashes}


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
    """Return a report with one value for each metric that is written in two ways.

    As for Tune's schedulers, the one that is nested deeper wins.

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
