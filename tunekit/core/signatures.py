"""Which arguments a validation function takes: at the start, and when a checkpoint is due.

A checkpoint's report may bring keyword arguments of its own. So a parameter without a value is a
mistake only when a checkpoint is to be validated; a value without a parameter is one at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

__all__ = [
    "ValidationFunction",
    "call_of",
    "is_built",
    "is_generator",
    "kind_of",
    "name_of",
    "never_takes",
    "signature_of",
    "still_lacks",
    "takes_resume",
    "takes_seed",
]

#: What validates a checkpoint: it returns a dict of metrics, or yields dicts with estimates.
ValidationFunction = Callable[..., Mapping[str, Any] | Iterator[Mapping[str, Any]]]

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_built(fn: Any) -> bool:
    """Return whether a function is made by calling it first: a class, or a partial of one.

    Example:
        >>> class Evaluator: ...
        >>> is_built(Evaluator), is_built(functools.partial(Evaluator, 3)), is_built(len)
        (True, True, False)
    """
    return isinstance(fn.func if isinstance(fn, functools.partial) else fn, type)


def call_of(built: Any) -> Callable[..., Any] | None:
    """Return the ``__call__`` of a class, or of a partial of one; None without one."""
    kind: Any = built.func if isinstance(built, functools.partial) else built
    return next((vars(c)["__call__"] for c in kind.__mro__ if "__call__" in vars(c)), None)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature by which a checkpoint is validated; None if it cannot be known.

    Example:
        >>> class Evaluator:
        ...     def __call__(self, checkpoint, epoch): ...
        >>> print(signature_of(Evaluator))
        (checkpoint, epoch)
    """
    called: Any = fn
    if is_built(fn):
        call = call_of(fn)
        if call is None:
            return None
        called = functools.partial(call, None)
    try:
        return inspect.signature(called)
    except (TypeError, ValueError):
        return None  # a builtin: the call will tell


def never_takes(signature: inspect.Signature | None, kwargs: Mapping[str, Any]) -> str | None:
    """Return why no later argument can make a call right; None if it may become so.

    Args:
        signature: The function's, if it is known.
        kwargs: The keyword arguments that each call gets.

    Example:
        >>> signature = inspect.signature(lambda checkpoint, epoch: {})
        >>> never_takes(signature, {})
        >>> never_takes(signature, {"epochs": 3})
        "got an unexpected keyword argument 'epochs'"
    """
    if signature is None:
        return None
    try:
        signature.bind_partial(None, **kwargs)
    except TypeError as error:
        return str(error)
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is _BY_PLACE and parameter.default is parameter.empty:
            return (
                f"{parameter.name!r} can only be given by its place, and arguments are given by "
                "name"
            )
    return None


def still_lacks(signature: inspect.Signature | None, kwargs: Collection[str]) -> list[str]:
    """Return the parameters that a call with these keyword arguments has no value for.

    Example:
        >>> still_lacks(inspect.signature(lambda checkpoint, epoch, batch=1: {}), {})
        ['epoch']
    """
    if signature is None:
        return []
    return [
        name
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.default is parameter.empty
        and parameter.kind not in _VARIABLE
        and name not in kwargs
    ]


def takes_resume(fn: Callable[..., Any]) -> bool:
    """Return whether a validation function can go on from what an earlier attempt has yielded.

    Example:
        >>> takes_resume(lambda checkpoint, resume=None: {}), takes_resume(lambda checkpoint: {})
        (True, False)
    """
    signature = signature_of(fn)
    return signature is not None and "resume" in list(signature.parameters)[1:]


def takes_seed(fn: Callable[..., Any], kwargs: Collection[str] = ()) -> bool:
    """Return whether a validation function can be called again with another ``seed``.

    Args:
        fn: The function; it has to name the parameter.
        kwargs: The keyword arguments that it gets anyway: a seed among them is the only one.

    Example:
        >>> takes_seed(lambda checkpoint, seed=0: {}), takes_seed(lambda checkpoint, **more: {})
        (True, False)
        >>> takes_seed(lambda checkpoint, seed=0: {}, kwargs=["seed"])
        False
    """
    signature = signature_of(fn)
    named = {} if signature is None else dict(list(signature.parameters.items())[1:])
    return "seed" in named and named["seed"].kind not in _VARIABLE and "seed" not in kwargs


def is_generator(fn: Callable[..., Any]) -> bool:
    """Return whether a validation function yields what it knows so far, as far as can be seen.

    Example:
        >>> def validate(checkpoint):
        ...     yield {}
        >>> is_generator(validate), is_generator(functools.partial(validate, None))
        (True, True)
        >>> is_generator(lambda checkpoint: validate(checkpoint))
        False
    """
    return any(map(inspect.isgeneratorfunction, _called(fn)))


def kind_of(fn: Callable[..., Any]) -> str | None:
    """Return what a function is whose call does not run it to its end; None if it does.

    Example:
        >>> async def validate(checkpoint): ...
        >>> kind_of(validate), kind_of(len)
        ('a coroutine function', None)
    """
    called = _called(fn)
    if any(map(inspect.isasyncgenfunction, called)):
        return "an asynchronous generator function"
    return "a coroutine function" if any(map(inspect.iscoroutinefunction, called)) else None


def _called(fn: Any) -> tuple[Any, Any]:
    """Return what is called for each checkpoint, and the method behind that, if it is an object."""
    called: Any = call_of(fn) if is_built(fn) else fn
    while isinstance(called, functools.partial):
        called = called.func
    return called, call_of(type(called))


def name_of(fn: Any) -> str:
    """Return a function's name; what is bound to it may be a secret.

    Example:
        >>> import functools
        >>> name_of(functools.partial(name_of, "token"))
        'name_of'
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)
