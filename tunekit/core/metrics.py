"""Nested dictionaries of metrics: flat names, merging, hiding.

A name is the path of keys joined by ``/``, as in Tune: ``{"eval": {"loss": 1}}`` has the name
``eval/loss``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["REPORTED", "flatten", "hide", "leaves", "merge", "plain", "without"]

#: Where a row keeps a training metric whose name a validation also produces.
REPORTED = "reported"


def leaves(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(name, value)`` for every value that is not itself a non-empty mapping."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{name}/")
        else:
            yield name, value


def flatten(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics by flat name.

    Example:
        >>> flatten({"loss": 1, "eval": {"accuracy": 0.5}})
        {'loss': 1, 'eval/accuracy': 0.5}
    """
    return dict(leaves(metrics))


def merge(report: Mapping[str, Any], validated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``report`` with ``validated`` laid over it, level by level.

    A validated metric replaces a reported one of the same name; neither argument is changed.

    Example:
        >>> merge({"loss": 2, "eval": {"n": 1}}, {"eval": {"accuracy": 0.5}, "loss": 1})
        {'loss': 1, 'eval': {'n': 1, 'accuracy': 0.5}}
    """
    merged = dict(report)
    for key, value in validated.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def hide(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy of a row with the metrics called ``names`` moved to ``row["reported"]``.

    A sweep's validations own their metrics' names: what training reported under such a name is
    another quantity and must not stand in the validated column. It is kept, elsewhere.

    Example:
        >>> hide({"accuracy": 0.99, "loss": 0.1}, {"accuracy"})
        {'loss': 0.1, 'reported': {'accuracy': 0.99}}
    """
    hidden: dict[str, Any] = {}
    rest = dict(row)
    for name in names:
        value, rest = _take(rest, name.split("/"))
        if value is not _ABSENT:
            hidden[name] = value
    if hidden:
        rest[REPORTED] = {**rest.get(REPORTED, {}), **hidden}
    return rest


def without(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy of a row without the metrics called ``names``.

    Example:
        >>> without({"accuracy": 0.99, "eval": {"loss": 1, "n": 2}}, {"accuracy", "eval/loss"})
        {'eval': {'n': 2}}
    """
    rest = dict(row)
    for name in names:
        _, rest = _take(rest, name.split("/"))
    return rest


def plain(value: Any) -> Any:
    """The same in what every reader of JSON knows: no NaN, no infinity.

    Example:
        >>> plain({"loss": float("nan"), "widths": (4, 8)})
        {'loss': None, 'widths': [4, 8]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_ABSENT = object()


def _take(level: dict[str, Any], path: list[str]) -> tuple[Any, dict[str, Any]]:
    """Take out the value at a path: the value (or ``_ABSENT``), and the level without it."""
    key, *below = path
    if key not in level:
        return _ABSENT, level
    if not below:
        return level[key], {other: value for other, value in level.items() if other != key}
    if not isinstance(level[key], dict):
        return _ABSENT, level
    value, rest = _take(level[key], below)
    return value, level if value is _ABSENT else {**level, key: rest}
