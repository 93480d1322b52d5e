"""Hyperparameters as the journal has them, and the very values that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tunekit.core.values import PICKLED, SHOWN, Opaque, reader, safely, same, written
from tunekit.pickles import to_text_elsewhere

__all__ = ["odd_values", "resolve_opaque", "to_json", "unknown_to_json"]

# Bytes of the pickle of a hyperparameter that is written down.
_LARGEST_ODD = 64 * 1024


def unknown_to_json(value: Any) -> Any:
    """Return the number that a number of numpy's is, which many reports have.

    Raises:
        TypeError: If it is none: the rest is written another way.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        found = value.item()
        if type(found) in (bool, int, float, str):
            return found
    raise TypeError


_encoder = json.JSONEncoder(default=unknown_to_json)
_read_legible = reader(lambda packed, shown: Opaque(shown))


def to_json(value: Any) -> Any:
    """A value as it is written down for readers: with a text for what JSON does not know.

    References to objects of a Ray cluster, for example, mean nothing to the next one.

    Example:
        >>> to_json({"lr": 0.1, "sizes": (64, 32), "data": {1, 2}})
        {'lr': 0.1, 'sizes': [64, 32], 'data': {'shown': '{1, 2}'}}
    """
    return written(value, keys=False)


def _as_read(value: Any) -> Any:
    """A value as it is read of which :func:`to_json` was written."""
    return json.loads(_encoder.encode(to_json(value)), object_hook=_read_legible)


def resolve_opaque(
    recorded: Any, known: Sequence[Any], odd: Mapping[str, Any] | None = None
) -> Any:
    """Return what the journal has, with the very values where it has but a text of them.

    Args:
        recorded: A configuration, or a part of one.
        known: What it may be: what has the same text, else what was written down, else the first.
        odd: What was written down of values, by their texts.
    """
    for other in known:
        if not isinstance(other, Opaque) and same(_as_read(other), recorded):
            return other
    if isinstance(recorded, Mapping):
        return {
            name: resolve_opaque(
                value, [o[name] for o in known if isinstance(o, Mapping) and name in o], odd
            )
            for name, value in recorded.items()
        }
    parts = recorded if isinstance(recorded, list) else [recorded]
    texts = [part for part in parts if isinstance(part, Opaque)]
    if not texts:
        return recorded
    if odd and all(part in odd for part in texts):
        found = [odd[part] if isinstance(part, Opaque) else part for part in parts]
        return found if isinstance(recorded, list) else found[0]
    real = (other for other in known if not isinstance(other, Opaque))
    return next(real, known[0] if known else recorded)


def _odd_parts(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a configuration that JSON does not know: their texts, and their pickles.

    References to objects of a Ray cluster mean nothing to the next one, and what is large is not
    for a line of a journal.
    """
    if isinstance(value, (Mapping, list, tuple)):
        if not any(value is other for other in above):
            for below in value.values() if isinstance(value, Mapping) else value:
                yield from _odd_parts(below, (*above, value))
        return
    shown = to_json(value)
    packed = to_text_elsewhere(value, _LARGEST_ODD) if isinstance(shown, dict) else None
    if packed is not None:
        yield shown[SHOWN], {PICKLED: packed, **shown}


def odd_values(configs: Iterable[Any]) -> dict[str, Any]:
    """Return, by their texts, the values in configurations that JSON does not know, pickled."""
    parts = safely(lambda: dict(part for config in configs for part in _odd_parts(config)))
    return parts or {}
