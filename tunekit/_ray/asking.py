"""Ask the driver for a trial's checkpoints and their scores, in the trial's process.

A loop that asks is suspended, as in a report, until the driver has answered: a function passes an
:class:`~tunekit.core.inquiry.Inquiry` to the driver instead of a result, and a trainer's worker
passes it to its trial. A class cannot be suspended in its ``step``, so it is told before each one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import ray
from ray.train._internal.session import _TrainingResult, get_session
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.trainable import Trainable
from ray.tune.trainable.function_trainable import FunctionTrainable

from tunekit.core.inquiry import Inquiry

#: The key of an inquiry in what is not a report, although a trial returns it as one.
INQUIRY = "tunekit_inquiry"

_NAME = "get_all_reported_checkpoints"
# How many decorators of a function are looked through.
_DECORATORS = 9


class CannotAsk(Exception):
    """The driver has no answer for this process."""


class CannotWait(Exception):
    """The trial of this process cannot wait in the middle of a step."""


class _Process:
    """How this process's trial asks, and what the driver has told it."""

    way: Callable[[Inquiry], list[Any]] | None = None
    told: list[Any] | None = None
    passes_on: Callable[[list[Any]], None] | None = None


def ask(inquiry: Inquiry) -> list[Any]:
    """Return the ``ReportedCheckpoint`` objects of this process's trial; none outside a trial.

    Raises:
        CannotAsk: If the trial's sweep does not validate, or if the driver does not know that its
            class asks.
        CannotWait: If the trial is a class, and the inquiry blocks.
    """
    if _Process.way is not None:
        return _Process.way(inquiry)
    if _Process.told is not None:
        if inquiry.blocks:
            raise CannotWait
        return list(_Process.told)
    if get_session() is not None or _is_actor():
        raise CannotAsk
    return []


def _is_actor() -> bool:
    return ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def ask_by(way: Callable[[Inquiry], list[Any]] | None) -> None:
    """Set how the loop of this process asks."""
    _Process.way = way


def ask_by_report(inquiry: Inquiry) -> list[Any]:
    """Ask as a function does: block as in a report, until the driver lets the trial train on."""
    _Process.told = None
    asks = {INQUIRY: inquiry, RESULT_DUPLICATE: True}  # Tune counts no iteration
    get_session()._report_training_result(_TrainingResult(checkpoint=None, metrics=asks))
    told, _Process.told = _Process.told, None
    return told or []


def pass_on_by(passes_on: Callable[[list[Any]], None]) -> None:
    """Set what gets the driver's answers in this process, instead of its own loop."""
    _Process.passes_on = passes_on


def tell(trainable: Any, reported: list[Any]) -> None:
    """Tell a trial what it has reported; called by the driver in the trial's process."""
    if _Process.passes_on is not None:
        _Process.passes_on(reported)
    else:
        _Process.told = reported


def asks(cls: Any) -> bool:
    """Return whether a class asks: in a method, or in a function that its module knows.

    Example:
        >>> class Net(Trainable):
        ...     def step(self):
        ...         return {"seen": len(tunekit.get_all_reported_checkpoints())}
        >>> asks(Net), asks(Trainable)
        (True, False)
    """
    if issubclass(cls, FunctionTrainable):
        return False
    own = [one for one in cls.__mro__ if one not in Trainable.__mro__]
    places = [dict(vars(one)) for one in own]
    places += [vars(sys.modules[one.__module__]) for one in own if one.__module__ in sys.modules]
    functions = (one for place in places for value in list(place.values()) for one in _of(value))
    return any(one.__name__ == _NAME or _names(one.__code__) for one in functions)


def _of(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in a value of a class or a module, without calling anything of it."""
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    elif type(value) is property:
        value = value.fget
    for _ in range(_DECORATORS):
        if type(value) is not FunctionType:
            return
        yield value
        value = vars(value).get("__wrapped__")


def _names(code: CodeType) -> bool:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return _NAME in code.co_names or any(map(_names, inner))
