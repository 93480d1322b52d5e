"""Read from a trainable's code what it reports and requests, without running it."""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

# Keywords of calls, and any names, by which a function reports a checkpoint, or asks to be saved.
_ASKING_KEYWORDS = frozenset({"checkpoint", "validation"})
_ASKING_NAMES = frozenset({"should_checkpoint", "tunekit_validation"})
# Packages whose code says nothing about the user's.
_FRAMEWORKS = frozenset({"ray", "tunekit"})
# The most functions whose code is read.
_MOST = 200


def saves_only_when_asked(function: Any) -> bool:
    """Return whether a function registers how to save, and never reports or asks for a checkpoint.

    It reads names in the code of the function and of the functions that it calls, as far as these
    can be found without running anything; so it can be wrong in both directions.

    Args:
        function: The function.

    Example:
        >>> def train(config):
        ...     checkpoint_with(lambda folder: None)
        ...     report({"loss": 1.0})
        >>> def asks(config):
        ...     checkpoint_with(lambda folder: None)
        ...     report({"loss": 1.0}, validation=True)
        >>> saves_only_when_asked(train), saves_only_when_asked(asks)
        (True, False)
    """
    codes = list(_codes(function))
    names = {name for code in codes for name in _names(code)}
    keywords = {name for code in codes for name in _keywords(code)}
    asks = not (names.isdisjoint(_ASKING_NAMES) and keywords.isdisjoint(_ASKING_KEYWORDS))
    return "checkpoint_with" in names and not asks


def asks_itself(cls: type) -> bool:
    """Return whether the reports of a class trainable request checkpoints, judging by its code.

    Example:
        >>> class Net:
        ...     def step(self):
        ...         return {"loss": 1.0, "should_checkpoint": True}
        >>> Net.__module__ = "users"
        >>> asks_itself(Net)
        True
    """
    names = {name for code in _codes(cls) for name in _names(code)}
    return not names.isdisjoint({"should_checkpoint", "SHOULD_CHECKPOINT"})


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names, attributes, keywords and short strings in a code object."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):  # keywords of calls
            yield from (name for name in constant if isinstance(name, str))


def _keywords(code: CodeType) -> Iterator[str]:
    """Yield the keywords of a code object's calls; dict keys and strings are left out."""
    steps = list(dis.get_instructions(code))
    for step, after in pairwise(steps):
        if step.opname == "KW_NAMES":  # Python 3.11 and 3.12
            yield from code.co_consts[step.arg or 0]
        elif after.opname in ("CALL_FUNCTION_KW", "CALL_KW"):
            yield from step.argval


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, of its nested functions, and of functions that it may call."""
    queue: deque[Any] = deque([function])
    seen: set[FunctionType] = set()
    while queue and len(seen) < _MOST:
        for found in _functions(queue.popleft()):
            if found in seen:
                continue
            seen.add(found)
            nested = [found.__code__]
            for code in nested:
                yield code
                nested += [part for part in code.co_consts if isinstance(part, CodeType)]
                queue += _called(code, found)


def _functions(thing: Any) -> Iterator[FunctionType]:
    """Yield the functions that run when an object is called, or may run."""
    if isinstance(thing, partial):
        yield from _functions(thing.func)
    elif isinstance(thing, MethodType):
        yield from _functions(thing.__func__)
        yield from _functions(type(thing.__self__))
    elif isinstance(thing, FunctionType):
        yield thing
        yield from _functions(getattr(thing, "__wrapped__", None))
    elif isinstance(thing, type):
        for cls in thing.__mro__:
            if not _is_foreign(cls):
                parts = list(vars(cls).values())
                yield from (part for part in parts if isinstance(part, FunctionType))
                wrapped = [p.__func__ for p in parts if isinstance(p, (staticmethod, classmethod))]
                yield from (part for part in wrapped if isinstance(part, FunctionType))
    elif thing is not None and callable(thing) and not _is_foreign(type(thing)):
        yield from _functions(type(thing))


def _called(code: CodeType, function: FunctionType) -> Iterator[Any]:
    """Yield what a code object may call: its function's closure and globals."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in code.co_names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType):
            if _root(found.__name__) not in _FRAMEWORKS:
                parts = (vars(found).get(attribute) for attribute in code.co_names)
                yield from (part for part in parts if not _is_foreign(part))
        elif not _is_foreign(found):
            yield found


def _is_foreign(thing: Any) -> bool:
    """Return whether an object's code is Ray's, tunekit's or Python's own."""
    module = getattr(thing, "__module__", None)
    return thing is None or _root(str(module)) in _FRAMEWORKS | {"builtins"}


def _root(module: str) -> str:
    return module.split(".")[0]
