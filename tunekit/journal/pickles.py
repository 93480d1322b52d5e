"""Pickle user values, whose classes may run arbitrary code in the process."""

from __future__ import annotations

import base64
import io
import pickle
import pickletools
import sys
from typing import Any

import cloudpickle

from tunekit.core.values import format_value, is_array, safely

# The result of unpickling that raised; a value may be anything else.
_FAILED = object()


class _WithoutReferences(cloudpickle.CloudPickler):
    """Refuses references to objects of a Ray cluster, which are invalid in any other."""

    def reducer_override(self, obj: Any) -> Any:
        ray = sys.modules.get("ray")  # reading a sweep does not import it
        if ray is not None and isinstance(obj, ray.ObjectRef):
            raise pickle.PicklingError("a reference to an object of a Ray cluster")
        return super().reducer_override(obj)


def pack(value: Any) -> bytes | None:
    """Pickle a value; None if it cannot be pickled.

    Example:
        >>> pickle.loads(pack({1, 2}))
        {1, 2}
        >>> pack(x for x in "abc") is None
        True
    """
    packed: bytes | None = safely(_dumped, value)
    return packed


def _dumped(value: Any) -> bytes:
    stream = io.BytesIO()
    _WithoutReferences(stream).dump(value)
    return stream.getvalue()


def is_complete(data: bytes) -> bool:
    """Return whether a pickle is complete, without opening it.

    Example:
        >>> data = pack({"lr": 0.1})
        >>> is_complete(data), is_complete(data[:-1]), is_complete(b""), is_complete(bytes(9))
        (True, False, False, False)
    """
    try:
        for _ in pickletools.genops(data):
            pass
    except Exception:  # a damaged pickle can raise many kinds of errors
        return False
    return True


def to_text(value: Any, largest: int | None = None) -> str | None:
    """Pickle a value as text; None if that fails, or takes more than ``largest`` bytes.

    Example:
        >>> from_text(to_text({1, 2})), to_text(b"x" * 1000, largest=1000)
        ({1, 2}, None)
    """
    data = pack(value)
    if data is None or (largest is not None and len(data) > largest):
        return None
    return base64.b64encode(data).decode()


def from_text(packed: str) -> Any:
    """Unpickle the output of :func:`to_text`; this can run any code and raise any exception."""
    return pickle.loads(base64.b64decode(packed))


def survives_pickling(value: Any) -> bool:
    """Return whether a value can be pickled and unpickled, as when a sweep is saved and
    restored.

    Example:
        >>> survives_pickling({1, 2}), survives_pickling(x for x in "abc")
        (True, False)
    """
    data = pack(value)
    return data is not None and safely(pickle.loads, data, otherwise=_FAILED) is not _FAILED


def portable(value: Any) -> Any:
    """Return an object's representation in a sweep: itself if it can be pickled, else a text.

    Example:
        >>> portable({1}), portable(x for x in "abc")
        ({1}, '<generator object <genexpr> at 0x...>')
    """
    return value if is_array(value) or survives_pickling(value) else format_value(value)
