"""Which part of a function keeps it from being sent to another process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ray import cloudpickle

__all__ = ["why_not_picklable"]

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
    error = _error(thing)
    if error is None:
        return None
    path, culprit = name, thing
    seen = {id(thing)}
    for _ in range(_DEPTH):
        found = next(
            (
                (part, inner)
                for part, inner in _parts(culprit)
                if id(inner) not in seen and _error(inner) is not None
            ),
            None,
        )
        if found is None:
            break
        path, culprit = found[0].replace("{}", path), found[1]
        seen.add(id(culprit))
    error = _error(culprit) or error
    kind = "cannot be pickled" if culprit is thing else f"is a {type(culprit).__name__}"
    return f"{path} {kind} ({type(error).__name__}: {error})"


class _Nowhere:
    """A file that keeps nothing: what a function holds may be large."""

    def write(self, data: Any) -> int:
        return len(data)


def _error(thing: Any) -> Exception | None:
    try:
        cloudpickle.CloudPickler(_Nowhere(), protocol=5).dump(thing)
    except Exception as error:  # whatever its parts raise
        return error
    return None


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
