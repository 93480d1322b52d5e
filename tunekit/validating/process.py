"""Run in the process of a validation, and send its events to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayTaskError, TaskCancelledError

from tunekit._ray.process_state import ProcessDamaged, release_gpu_memory, undisturbed
from tunekit._ray.worker_errors import ends_the_process
from tunekit.core.executor import AttemptEvent, Began, Failed, Returned
from tunekit.core.metrics import deduplicate
from tunekit.core.signatures import needs_instance
from tunekit.core.values import (
    Raised,
    as_array,
    describe_error,
    format_value,
    limit_sizes,
    message_of,
    safely,
    sanitize,
    unwrap_single,
)
from tunekit.validating.context import ValidationContext, validating_in


@dataclass(frozen=True)
class Call:
    """A call to the validation function, to be made in some process.

    Attributes:
        attempt_id: The attempt.
        fn_ref: A reference to the function. Ray does not fetch it before :meth:`run` does, because
            it is inside an argument of the task.
        checkpoint: The checkpoint.
        kwargs: The keyword arguments.
        context: The checkpoint's context.
    """

    attempt_id: str
    fn_ref: Any
    checkpoint: Any
    kwargs: dict[str, Any]
    context: ValidationContext

    def run(self) -> Any:
        """Fetch the function and call it."""
        return ray.get(self.fn_ref)(self.checkpoint, **self.kwargs)


# Where it runs ---------------------------------------------------------------------------------


def validate_in_task(call: Call) -> Iterator[AttemptEvent]:
    """Validate, and yield the events; the function is fetched after the first one."""
    yield Began(call.attempt_id)
    with validating_in(call.context):
        yield result_of(call.attempt_id, call.run)


def validate_in_trial(trainable: Any, call: Call) -> Iterator[AttemptEvent]:
    """Validate in the process of a waiting trial, as in a task."""
    yield Began(call.attempt_id)
    yield as_event(call.attempt_id, outcome_beside(call.run, call.context))


class Evaluator:
    """An actor that builds the validation function once, and calls it for many checkpoints.

    Args:
        first_bundle: The first bundle of its placement group that is for the function's own
            workers; None if it has none.
    """

    def __init__(self, first_bundle: int | None = None):
        self._first_bundle = first_bundle
        self._evaluate: Any = None

    def evaluate(self, call: Call) -> Iterator[AttemptEvent]:
        """Validate, as :func:`validate_in_task` does."""
        yield Began(call.attempt_id)
        failed = outcome_of(lambda: self._build(call.fn_ref)) if self._evaluate is None else None
        if failed is not None:
            why = f"could not build its evaluator, which {failed.reason}"
            yield Failed(call.attempt_id, why, failed.trace)
            return

        def run() -> Any:
            return self._evaluate(call.checkpoint, **call.kwargs)

        with validating_in(call.context):
            yield result_of(call.attempt_id, run)

    def _build(self, fn_ref: Any) -> None:
        fn = ray.get(fn_ref)
        with validating_in(None, building=True):
            built = fn() if needs_instance(fn) else fn
        if self._first_bundle is not None:
            built.placed(self._first_bundle)
        self._evaluate = built

    def release(self) -> None:
        """Free unused GPU memory."""
        release_gpu_memory()


# The events ------------------------------------------------------------------------------------


def result_of(attempt_id: str, call: Callable[[], Any]) -> Returned | Failed:
    """Call the validation function, and return its result or failure as an event.

    Args:
        attempt_id: The attempt.
        call: Calls the function.

    Example:
        >>> result_of("a", lambda: {"accuracy": 0.9})
        Returned(attempt_id='a', value={'accuracy': 0.9})
    """
    return as_event(attempt_id, outcome_of(lambda: pack_result(call())))


def as_event(attempt_id: str, found: Any) -> Returned | Failed:
    """Return a packed result, or the description of an exception, as an event."""
    if isinstance(found, Raised):
        return Failed(attempt_id, found.reason, found.trace, found.kind, found.fatal)
    return Returned(attempt_id, found)


def outcome_beside(call: Callable[[], Any], context: ValidationContext | None) -> Any:
    """Call a validation function in a process that trains, and then restore the process's state.

    Args:
        call: Calls the function.
        context: The checkpoint's context.

    Returns:
        The packed result, or a description of the exception. It is fatal if the validation has
        damaged the process.
    """
    found: Any = None
    try:
        with undisturbed(), validating_in(context):
            found = outcome_of(lambda: pack_result(call()))
    except ProcessDamaged as error:
        if not isinstance(found, Raised):
            found = replace(describe_error(error), kind="")
        return replace(found, fatal=True)
    return found


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return a call's result, or a description of its exception, which need not be picklable.

    Example:
        >>> outcome_of(lambda: 1 / 0).reason
        'raised ZeroDivisionError: division by zero'
    """
    try:
        return call()
    except TaskCancelledError:
        raise
    except RayTaskError as error:  # of a task that the function started
        return replace(describe_error(error.cause or error), trace=message_of(error))
    except BaseException as error:  # anything that the user's function can raise
        if ends_the_process(error):
            raise
        return describe_error(error)


def pack_result(value: Any) -> Any:
    """Return a validation function's result as plain data, so that no process needs its classes.

    Tensors become arrays, arrays of one element numbers, and other objects texts, as do values that
    are too large. A metric that is written in two ways keeps one value.

    Example:
        >>> import numpy
        >>> pack_result({"accuracy": numpy.float32(0.5), "by_class": {"7": numpy.array([1])}})
        {'accuracy': 0.5, 'by_class': {'7': 1}}
        >>> pack_result({"accuracy": 0.5, "seen": {3}})
        {'accuracy': 0.5, 'seen': '{3}'}
    """
    own = limit_sizes(sanitize(value, _plain))
    return deduplicate(own) if isinstance(own, dict) else own


def _plain(value: Any) -> Any:
    """Return the number, array or text that replaces an object."""
    single = safely(unwrap_single, value, otherwise=value)
    if single is not value:
        return sanitize(single, _plain)
    array = safely(as_array, value)
    return format_value(value) if array is None else array
