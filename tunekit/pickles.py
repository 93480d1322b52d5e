"""Pickles of values of the user's, whose classes may do anything when they are pickled."""

from __future__ import annotations

import base64
import io
import pickle
import pickletools
from typing import Any

import cloudpickle
import ray

__all__ = ["from_text", "is_whole", "pack", "to_text", "to_text_elsewhere", "travels", "unpack"]


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


def is_whole(data: bytes) -> bool:
    """Return whether a pickle has all its parts, down to the last; it is not opened.

    Example:
        >>> data = pack({"lr": 0.1})
        >>> is_whole(data), is_whole(data[:-1]), is_whole(b""), is_whole(bytes(9))
        (True, False, False, False)
    """
    try:
        for _ in pickletools.genops(data):
            pass
    except Exception:  # of its many kinds of parts, each complains in its own way
        return False
    return True


def to_text(value: Any) -> str | None:
    """The same as :func:`pack`, as text."""
    data = pack(value)
    return None if data is None else base64.b64encode(data).decode()


class _WithoutReferences(cloudpickle.CloudPickler):
    """Refuses what holds a reference to an object of a Ray cluster."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ray.ObjectRef):
            raise pickle.PicklingError("a reference to an object of a Ray cluster")
        return super().reducer_override(obj)


def to_text_elsewhere(value: Any, largest: int) -> str | None:
    """Pickle a value for another Ray cluster, as text; None if it has no pickle or a large one.

    Args:
        value: Anything.
        largest: How large the pickle may be, in bytes.

    Example:
        >>> from_text(to_text_elsewhere({1, 2}, 1000)), to_text_elsewhere(b"x" * 1000, 1000)
        ({1, 2}, None)
    """
    stream = io.BytesIO()
    try:
        _WithoutReferences(stream).dump(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever its parts raise
        return None
    return None if stream.tell() > largest else base64.b64encode(stream.getvalue()).decode()


def from_text(packed: str) -> Any:
    """Open what :func:`to_text` has made."""
    return unpack(base64.b64decode(packed))


def travels(value: Any) -> bool:
    """Return whether a value can be pickled and opened again, as when a sweep is saved and
    restored.

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
