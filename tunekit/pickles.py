"""Pickles of values of the user's, whose classes may do anything when they are pickled."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import cloudpickle

__all__ = ["from_text", "pack", "to_text", "travels", "unpack"]


def pack(value: Any) -> bytes | None:
    """Pickle a value; None if it cannot be pickled.

    Example:
        >>> unpack(pack({1, 2}))
        {1, 2}
        >>> pack(x for x in "abc") is None
        True
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever its parts raise
        return None
    return data


def unpack(data: bytes) -> Any:
    """Open a pickle, which can run any code, and raise anything."""
    return pickle.loads(data)


def to_text(value: Any) -> str | None:
    """The same as :func:`pack`, as text."""
    data = pack(value)
    return None if data is None else base64.b64encode(data).decode()


def from_text(packed: str) -> Any:
    """Open what :func:`to_text` has made."""
    return unpack(base64.b64decode(packed))


def travels(value: Any) -> bool:
    """Whether a value can be pickled and opened again, as when a sweep is saved and restored.

    Example:
        >>> travels({1, 2}), travels(x for x in "abc")
        (True, False)
    """
    data = pack(value)
    try:
        return data is not None and (unpack(data), True)[1]
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever its parts raise
        return False
