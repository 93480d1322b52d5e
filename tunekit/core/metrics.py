"""Nested dictionaries of metrics: flat names, merging, hiding.

A metric has one name, the path of its keys joined by ``/``, as in Tune, whichever way it was nested
or written: ``{"eval": {"loss": 1}}`` and ``{"eval/loss": 1}`` both have ``eval/loss``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tunekit.core.values import named

__all__ = ["REPORTED", "distinct", "flatten", "hide", "leaves", "merge", "plain", "without"]

#: Where a row keeps a training metric whose name a validation also produces.
REPORTED = "reported"

# What most values are; whether something else is a mapping takes ten times as long to say.
_SINGLE = frozenset({bool, float, int, str, type(None)})


def leaves(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(name, value)`` for every value that is not itself a non-empty mapping."""
    for key, value in metrics.items():
        name = f"{prefix}{key}" if type(key) is str else f"{prefix}{named(key)}"
        if type(value) not in _SINGLE and isinstance(value, Mapping) and value:
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
    """Return a copy of ``report`` with ``validated`` laid over it.

    A validated metric replaces a reported one of the same name, in whatever way either is written;
    all others stay. Neither argument is changed.

    Example:
        >>> merge({"loss": 2, "eval": {"n": 1}}, {"eval": {"accuracy": 0.5}, "loss": 1})
        {'eval': {'n': 1, 'accuracy': 0.5}, 'loss': 1}
        >>> merge({"eval/accuracy": 0.9, "eval/n": 1}, {"eval": {"accuracy": 0.5}})
        {'eval/n': 1, 'eval': {'accuracy': 0.5}}
    """
    return _laid_over(without(report, flatten(validated)), validated)


def _laid_over(report: Mapping[str, Any], validated: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two that have no name in common."""
    merged = dict(report)
    for key, value in validated.items():
        below = merged.get(key)
        above = isinstance(value, Mapping) and bool(value)
        if above and isinstance(below, Mapping):
            merged[key] = _laid_over(below, value)
        elif above and key in merged:  # {"eval": 1} and {"eval": {"loss": 2}}
            for name, leaf in leaves(value, f"{key}/"):
                _put(merged, name, leaf)
        elif above:
            merged[key] = value
        else:
            _put(merged, key, value)
    return merged


def _put(level: dict[str, Any], key: str, leaf: Any) -> None:
    """Write a value beside those whose names begin with its own."""
    below = level.get(key)
    level[key] = leaf
    if isinstance(below, Mapping):
        for name, value in leaves(below, f"{key}/"):
            _put(level, name, value)


def hide(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a copy of a row with the metrics called ``names`` moved to ``row["reported"]``.

    A sweep's validations own their metrics' names: what training reported under such a name is
    another quantity and must not stand in the validated column. It is kept, elsewhere.

    Example:
        >>> hide({"accuracy": 0.99, "loss": 0.1}, {"accuracy"})
        {'loss': 0.1, 'reported': {'accuracy': 0.99}}
        >>> hide({"eval": {"accuracy": 0.99, "n": 1}}, {"eval/accuracy"})
        {'eval': {'n': 1}, 'reported': {'eval/accuracy': 0.99}}
    """
    hidden, rest = _parted(row, names)
    if hidden:
        own = rest.get(REPORTED, {})
        rest[REPORTED] = {**(own if isinstance(own, Mapping) else {REPORTED: own}), **hidden}
    return rest


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
    """Part a level from the metrics called ``names``: these by name, and what is left."""
    return _part(level, frozenset(names), _above(names), "")


def _above(names: Iterable[str]) -> set[str]:
    """All that names begin with, up to any of their slashes.

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
        name = f"{prefix}{key}" if type(key) is str else f"{prefix}{named(key)}"
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


def distinct(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave one value of each metric that is written in two ways in one report.

    As for Tune's schedulers, that is the one that is nested deeper.

    Example:
        >>> distinct({"eval": {"loss": 1, "n": 2}, "eval/loss": 3})
        {'eval': {'loss': 1, 'n': 2}}
    """
    if not any("/" in key or _has_slash(value) for key, value in report.items()):
        return report
    deepest: dict[str, tuple[int, tuple[str, ...]]] = {}
    places = list(_places(report))
    for name, path in places:
        deepest[name] = max((len(path), path), deepest.get(name, (0, ())), key=lambda one: one[0])
    if len(deepest) == len(places):
        return report
    return _only(report, {path for _, path in deepest.values()}, ())


def _has_slash(value: Any) -> bool:
    nested = type(value) not in _SINGLE and isinstance(value, Mapping)
    return nested and any("/" in named(key) or _has_slash(below) for key, below in value.items())


def _places(
    level: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for key, value in level.items():
        path = (*above, key)
        if isinstance(value, Mapping) and value:
            yield from _places(value, path)
        else:
            yield "/".join(map(named, path)), path


def _only(
    level: Mapping[str, Any], paths: Collection[tuple[str, ...]], above: tuple[str, ...]
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in level.items():
        path = (*above, key)
        if isinstance(value, Mapping) and value:
            below = _only(value, paths, path)
            if below:
                kept[key] = below
        elif path in paths:
            kept[key] = value
    return kept


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
