"""The size of a pickled function, or the part of it that cannot be pickled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ray import cloudpickle

#: Bytes above which Ray itself warns of a remote function (``FUNCTION_SIZE_WARN_THRESHOLD``).
LARGE = 10**7

# How deep to search in a function.
_DEPTH = 5


class _Counter:
    """A file that keeps only the size of its contents, which may be large."""

    size = 0

    def write(self, data: Any) -> None:
        self.size += memoryview(data).nbytes


def pickled_size(thing: Any) -> int | Exception:
    """Return the size of an object's pickle in bytes, or the exception if it has none.

    As in Ray, buffers are not copied into the pickle.

    Example:
        >>> pickled_size(bytes(10**6)) > 10**6
        True
    """
    file = _Counter()
    try:
        cloudpickle.CloudPickler(file, protocol=5, buffer_callback=file.write).dump(thing)
    except Exception as error:  # its parts may raise anything
        return error
    return file.size


def culprit_in(thing: Any, name: str) -> str:
    """Name the part of an object that cannot be pickled.

    Args:
        thing: A function, or anything else that has no pickle.
        name: Its name in the message.

    Example:
        >>> import threading
        >>> lock = threading.Lock()
        >>> def validate(checkpoint):
        ...     with lock:
        ...         return {"accuracy": 0.9}
        >>> culprit_in(validate, "fn")
        "variable 'lock' of fn is a lock"
    """
    path, culprit, seen = name, thing, {id(thing)}
    for _ in range(_DEPTH):
        parts = ((part, inner) for part, inner in _parts(culprit) if id(inner) not in seen)
        found = next((one for one in parts if isinstance(pickled_size(one[1]), Exception)), None)
        if found is None:
            break
        path, culprit = found[0].replace("{}", path), found[1]
        seen.add(id(culprit))
    return f"{path} is a {type(culprit).__name__}"


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part that is pickled with ``thing``, after its path; ``{}`` is ``thing``."""
    if isinstance(thing, functools.partial):
        yield "{}", thing.func
        for number, value in enumerate(thing.args):
            yield f"argument {number + 1} of {{}}", value
        yield from ((f"argument {name!r} of {{}}", v) for name, v in thing.keywords.items())
    elif inspect.ismethod(thing):
        yield "the object of {}", thing.__self__
    elif inspect.isfunction(thing):
        try:
            used = inspect.getclosurevars(thing)
        except ValueError:  # a variable without a value yet
            return
        for name, value in {**used.nonlocals, **used.globals}.items():
            yield f"variable {name!r} of {{}}", value
    elif isinstance(thing, Mapping):
        yield from ((f"{{}}[{name!r}]", value) for name, value in thing.items())
    else:
        known = getattr(thing, "__dict__", {})
        yield from ((f"{{}}.{name}", value) for name, value in known.items())
