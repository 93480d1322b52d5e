"""Encode user values in a journal's lines: as readable JSON, and exactly.

A report or a score contains numbers, texts, lists and dicts; any other object in it becomes
``{"__pickled__": ..., "__shown__": ...}``, or ``{"__shown__": ...}`` if it cannot be pickled. In
hyperparameters and keyword arguments, which must be read back exactly, so does any value that JSON
would change, such as a tuple. Reading opens no pickle unless requested.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.core.values import PICKLED, format_value, sanitize
from tunekit.journal.pickles import from_text, to_text

logger = logging.getLogger(__name__)

_SHOWN = "__shown__"

#: A line without this mark has only JSON values.
MARK = f'"{_SHOWN}"'

# Python does not parse integers of more than about 4,000 digits.
_MOST_BITS = 13_000
# The deepest nesting of dicts around a pickle, whose text may be as deep as a metric.
_DEEPEST = 40


class Opaque(str):
    """The text of a value that could not be pickled or unpickled."""


def legible(value: Any) -> Any:
    """Return a report or a score in the form in which it is written to the journal.

    Example:
        >>> legible({"lr": 0.1, "sizes": (64, 32), "seen": (n for n in "ab")})
        {'lr': 0.1, 'sizes': (64, 32), 'seen': {'__shown__': '<generator object ...>'}}
    """
    return sanitize(value, lambda part: _marked(to_text(part), format_value(part)))


def exact(value: Any, largest: int | None = None, depth: int = 0) -> Any:
    """Return a value in a form that is read as the same value, if it can be pickled.

    Args:
        value: Anything.
        largest: The largest pickle allowed in it, in bytes; None: no limit.
        depth: The number of dicts around it.

    Example:
        >>> exact({"lr": 0.1, "by": {1: 2}})
        {'lr': 0.1, 'by': {'__pickled__': '...', '__shown__': {'1': 2}}}
    """
    if _is_plain(value, depth):
        return value
    if _has_names(value) and depth < _DEEPEST:
        return {key: exact(part, largest, depth + 1) for key, part in value.items()}
    packed = to_text(value, largest)
    return _marked(packed, format_value(value) if packed is None else sanitize(value))


def _marked(packed: str | None, shown: Any) -> dict[str, Any]:
    return {_SHOWN: shown} if packed is None else {PICKLED: packed, _SHOWN: shown}


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether JSON preserves a value."""
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() < _MOST_BITS)
    if depth < _DEEPEST and (kind is list or _has_names(value)):
        parts = value if kind is list else value.values()
        return all(_is_plain(part, depth + 1) for part in parts)
    return value is None or kind in (bool, float, str)


def _has_names(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str and key != _SHOWN for key in value)


def read_shown(value: dict[str, Any]) -> Any:
    """Decode an object from a line, with texts for pickled values."""
    return value[_SHOWN] if _is_marked(value) else value


def read_opened(value: dict[str, Any]) -> Any:
    """Decode an object from a line; without a loadable pickle, return an :class:`Opaque`."""
    if not _is_marked(value):
        return value
    shown = value[_SHOWN]
    if PICKLED in value:
        try:
            return from_text(value[PICKLED])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # unpickling can raise anything: a module may be gone
            logger.warning("%s cannot be unpickled: %s", shown, format_value(error))
    return Opaque(shown)


def _is_marked(value: Mapping[str, Any]) -> bool:
    return _SHOWN in value and value.keys() <= {PICKLED, _SHOWN}


def resolve_opaque(recorded: Any, known: Sequence[Any]) -> Any:
    """Return hyperparameters with the original values where the journal has only their text.

    Args:
        recorded: The hyperparameters in the journal, or a part of them.
        known: The candidates: the one with the same text is used, otherwise the first with a value.

    Example:
        >>> resolve_opaque({"lr": 0.1, "data": Opaque("{1}")}, [{"data": {2}}, {"data": {1}}])
        {'lr': 0.1, 'data': {1}}
    """
    if isinstance(recorded, Mapping):
        return {
            name: resolve_opaque(value, [o[name] for o in known if _has(o, name)])
            for name, value in recorded.items()
        }
    if type(recorded) is not Opaque:
        return recorded
    real = [other for other in known if type(other) is not Opaque]
    return next((other for other in real if format_value(other) == recorded), [*real, recorded][0])


def _has(known: Any, name: str) -> bool:
    return isinstance(known, Mapping) and name in known
