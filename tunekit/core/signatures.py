"""Users' functions: their names, and which arguments a validation function takes and lacks.

A checkpoint's report may add keyword arguments. So a parameter without a value is an error only
when a checkpoint is to be validated; a value without a parameter is an error from the start.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

#: A function that validates a checkpoint, and returns a dict of metrics.
ValidationFunction = Callable[..., Mapping[str, Any]]

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def needs_instance(fn: Any) -> bool:
    """Return whether a function has to be instantiated first: a class, or a partial of one.

    Example:
        >>> class Evaluator: ...
        >>> [needs_instance(fn) for fn in (Evaluator, functools.partial(Evaluator, 3), len)]
        [True, True, False]
    """
    return isinstance(fn.func if isinstance(fn, functools.partial) else fn, type)


def call_of(built: Any) -> Callable[..., Any] | None:
    """Return the ``__call__`` of a class, or of a partial of one; None without one."""
    kind: Any = built.func if isinstance(built, functools.partial) else built
    return next((vars(c)["__call__"] for c in kind.__mro__ if "__call__" in vars(c)), None)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of the call that validates a checkpoint; None if unknown.

    Example:
        >>> class Evaluator:
        ...     def __call__(self, checkpoint, epoch): ...
        >>> print(signature_of(Evaluator))
        (checkpoint, epoch)
    """
    called: Any = fn
    if needs_instance(fn):
        call = call_of(fn)
        if call is None:
            return None
        called = functools.partial(call, None)
    try:
        return inspect.signature(called)
    except (TypeError, ValueError):
        return None  # a builtin: the call itself will show


def call_problem(signature: inspect.Signature | None, kwargs: Mapping[str, Any]) -> str | None:
    """Return why a call would fail whatever arguments are added; None if it might succeed.

    Args:
        signature: The function's signature, if known.
        kwargs: The keyword arguments that each call gets.

    Example:
        >>> signature = inspect.signature(lambda checkpoint, epoch: {})
        >>> call_problem(signature, {})
        >>> call_problem(signature, {"epochs": 3})
        "got an unexpected keyword argument 'epochs'"
    """
    if signature is None:
        return None
    try:
        signature.bind_partial(None, **kwargs)
    except TypeError as error:
        return str(error)
    for name, parameter in _arguments(signature).items():
        if parameter.kind is _BY_PLACE and parameter.default is parameter.empty:
            return f"{name!r} is positional-only, but arguments are passed by name"
    return None


def _arguments(signature: inspect.Signature | None) -> dict[str, inspect.Parameter]:
    """Return the parameters of a validation function after its first, the checkpoint."""
    return {} if signature is None else dict(list(signature.parameters.items())[1:])


def missing_arguments(signature: inspect.Signature | None, kwargs: Collection[str]) -> list[str]:
    """Return the parameters that a call with these keyword arguments lacks.

    Example:
        >>> missing_arguments(inspect.signature(lambda checkpoint, epoch, batch=1: {}), {})
        ['epoch']
    """
    return [
        name
        for name, parameter in _arguments(signature).items()
        if parameter.default is parameter.empty
        and parameter.kind not in _VARIABLE
        and name not in kwargs
    ]


def deferred_kind(fn: Callable[..., Any]) -> str | None:
    """Return the kind of a function that a call does not run to completion; None if it does.

    Example:
        >>> async def validate(checkpoint): ...
        >>> deferred_kind(validate), deferred_kind(len)
        ('a coroutine function', None)
    """
    called = _called(fn)
    if any(map(inspect.isasyncgenfunction, called)):
        return "an asynchronous generator function"
    if any(map(inspect.isgeneratorfunction, called)):
        return "a generator function"
    return "a coroutine function" if any(map(inspect.iscoroutinefunction, called)) else None


def _called(fn: Any) -> tuple[Any, Any]:
    """Return the callable for each checkpoint, and its ``__call__`` if it is an object."""
    called: Any = call_of(fn) if needs_instance(fn) else fn
    while isinstance(called, functools.partial):
        called = called.func
    return called, call_of(type(called))


def function_name(fn: Any) -> str:
    """Return a function's name, without arguments bound to it, which may be secrets.

    Example:
        >>> import functools
        >>> function_name(functools.partial(function_name, "token"))
        'function_name'
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def import_path(thing: Any) -> str | None:
    """Return the import path of a function or class; None if it cannot be imported.

    Example:
        >>> import_path(import_path)
        'tunekit.core.signatures:import_path'
        >>> import_path(lambda config: None) is None
        True
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    return f"{module}:{name}"
