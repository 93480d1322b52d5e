"""Which part of a function keeps it from being sent to another process, or makes it large."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray import cloudpickle

__all__ = ["LARGE", "why_large", "why_not_picklable"]

#: Bytes above which Ray itself warns of a remote function (``FUNCTION_SIZE_WARN_THRESHOLD``).
LARGE = 10**7

# So deep into what a function uses.
_DEPTH = 5


def why_not_picklable(thing: Any, name: str = "it") -> str | None:
    """Name what cannot be pickled in a function, and why; None if all can be.

    Args:
        thing: A function, or anything else.
        name: What to call it.

    Example:
        >>> import threading
        >>> lock = threading.Lock()
        >>> def validate(checkpoint):
        ...     with lock:
        ...         return {"accuracy": 0.9}
        >>> why_not_picklable(validate, "fn")
        "variable 'lock' of fn is a lock (TypeError: cannot pickle '_thread.lock' object)"
        >>> why_not_picklable(3)
    """
    error = _pickled(thing)
    if isinstance(error, int):
        return None
    path, culprit = _innermost(thing, name, lambda part: not isinstance(_pickled(part), int))
    kind = "cannot be pickled" if culprit is thing else f"is a {type(culprit).__name__}"
    error = _pickled(culprit) if culprit is not thing else error
    return f"{path} {kind} ({type(error).__name__}: {error})"


def why_large(thing: Any, name: str = "it", limit: int = LARGE) -> str | None:
    """Name what makes a function large, and its size; None if it is not, or cannot be pickled.

    Args:
        thing: A function, or anything else.
        name: What to call it.
        limit: How large it may be, in bytes.

    Example:
        >>> why_large({"weights": bytes(2 * LARGE), "classes": 10}, "fn_kwargs")
        "fn_kwargs['weights'] takes 20 MB"
    """

    def is_large(part: Any) -> bool:
        size = _pickled(part)
        return isinstance(size, int) and size > limit

    if not is_large(thing):
        return None
    path, culprit = _innermost(thing, name, is_large)
    return f"{path} takes {int(_pickled(culprit)) // 10**6:,} MB"  # type: ignore[arg-type]


def _innermost(thing: Any, name: str, holds: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return the innermost part of a thing for which something holds, and how it is reached."""
    path, culprit = name, thing
    seen = {id(thing)}
    for _ in range(_DEPTH):
        parts = ((part, inner) for part, inner in _parts(culprit) if id(inner) not in seen)
        found = next((one for one in parts if holds(one[1])), None)
        if found is None:
            break
        path, culprit = found[0].replace("{}", path), found[1]
        seen.add(id(culprit))
    return path, culprit


class _Counter:
    """A file that keeps only the size of what is written: what a function holds may be large."""

    size = 0

    def write(self, data: Any) -> None:
        self.size += memoryview(data).nbytes


def _pickled(thing: Any) -> int | Exception:
    """Return the size of a thing's pickle, in bytes, or why it has none.

    As in Ray, buffers are not copied into the pickle.
    """
    file = _Counter()
    try:
        cloudpickle.CloudPickler(file, protocol=5, buffer_callback=file.write).dump(thing)
    except Exception as error:  # whatever its parts raise
        return error
    return file.size


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing is pickled with, each with how it is reached; ``{}`` is the thing."""
    if isinstance(thing, functools.partial):
        yield "{}", thing.func
        for number, value in enumerate(thing.args):
            yield f"argument {number + 1} of {{}}", value
        for name, value in thing.keywords.items():
            yield f"argument {name!r} of {{}}", value
    elif inspect.ismethod(thing):
        yield "the object of {}", thing.__self__
    elif inspect.isfunction(thing):
        try:
            used = inspect.getclosurevars(thing)
        except ValueError:  # a variable that has no value yet
            return
        for name, value in {**used.nonlocals, **used.globals}.items():
            yield f"variable {name!r} of {{}}", value
        for number, value in enumerate(thing.__defaults__ or ()):
            yield f"default {number + 1} of {{}}", value
        for name, value in (thing.__kwdefaults__ or {}).items():
            yield f"the default of {name!r} of {{}}", value
    elif isinstance(thing, Mapping):
        for name, value in thing.items():
            yield f"{{}}[{name!r}]", value
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for number, value in enumerate(thing):
            yield f"{{}}[{number}]", value
    elif isinstance(thing, type):
        for name, value in vars(thing).items():
            if not name.startswith("__") or inspect.isfunction(value):
                yield f"{{}}.{name}", value
    elif hasattr(thing, "__dict__"):
        for name, value in vars(thing).items():
            yield f"{{}}.{name}", value
        yield "the class of {}", type(thing)
