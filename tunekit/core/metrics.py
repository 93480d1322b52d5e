"""Nested dictionaries of metrics: flat names, merging, hiding.

A name is the path of keys joined by ``/``, as in Tune: ``{"eval": {"loss": 1}}`` has the name
``eval/loss``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["REPORTED", "flatten", "hide", "leaves", "merge"]

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


def hide(row: dict[str, Any], names: Collection[str]) -> None:
    """Move metrics called ``names`` out of a row, in place, to ``row["reported"]``.

    A sweep's validations own their metrics' names: what training reported under such a name is
    another quantity and must not stand in the validated column. It is kept, elsewhere.

    Example:
        >>> row = {"accuracy": 0.99, "loss": 0.1}
        >>> hide(row, {"accuracy"})
        >>> row
        {'loss': 0.1, 'reported': {'accuracy': 0.99}}
    """
    for name in names:
        *parents, last = name.split("/")
        level: Any = row
        for parent in parents:
            level = level.get(parent) if isinstance(level, dict) else None
        if isinstance(level, dict) and last in level:
            row.setdefault(REPORTED, {})[name] = level.pop(last)
