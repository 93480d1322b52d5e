"""Errors in worker processes: which end a trial, which are retried, and how they are sent."""

from __future__ import annotations

from typing import Any

import ray
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import (
    LocalRayletDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)
from ray.tune.experiment import Trial

from tunekit._ray.compat import become, in_worker
from tunekit.core.values import Raised, describe_error
from tunekit.errors import NotResumedError
from tunekit.journal.pickles import survives_pickling

# Errors that Tune handles, and errors after which Ray itself is gone.
_THEIRS = (RayActorError, RayTaskError, RaySystemError, LocalRayletDiedError)


def is_final(error: Any) -> bool:
    """Return whether every retry after a failure would fail in the same way."""
    return isinstance(getattr(error, "cause", error), NotResumedError)


class _Final(Trial):
    """A trial that is not retried if every attempt would fail in the same way."""

    def handle_error(self, exc: Any = None) -> None:
        # Tune does not save the temporary state.
        self.temporary_state.is_final = is_final(exc)
        super().handle_error(exc)

    def should_recover(self) -> bool:
        final = getattr(self.temporary_state, "is_final", False)
        return not final and bool(super().should_recover())


def fail_for_good(trial: Trial) -> None:
    """Do not retry a trial after a failure that every retry would repeat.

    ``FailureConfig(max_failures=...)`` is for other failures; -1 would retry forever.
    """
    become(trial, _Final)


class _FailingAlone(RayActorManager):
    """Treat every loss of an actor as a failure of that actor."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, _THEIRS):
            text = f"{type(exception).__name__}: {exception}"
            exception = RayActorError(tracked_actor_task._tracked_actor.actor_id, text)
        super()._actor_task_failed(tracked_actor_task, exception)


def fail_alone(actors: RayActorManager) -> None:
    """Fail only the trial of an actor that is lost, for example to Ray's memory monitor.

    Tune ends the sweep on any error that comes from neither an actor nor its code, such as Ray's
    ``OutOfMemoryError``.
    """
    become(actors, _FailingAlone)


def ends_the_process(error: BaseException) -> bool:
    """Return whether an exception means that this process or task is being ended.

    A function may raise the same exceptions. In a worker, an interrupt comes from the driver only
    if the task was cancelled, and an exit comes from Ray only if it has Ray's message.

    Example:
        >>> ends_the_process(KeyboardInterrupt()), ends_the_process(ValueError())
        (True, False)
    """
    if not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return False
    if not in_worker():
        return True
    if isinstance(error, SystemExit):
        return hasattr(error, "ray_terminate_msg")
    return isinstance(error, KeyboardInterrupt) and bool(ray.get_runtime_context().is_canceled())


class LoopError(Exception):
    """An exception from a user's loop as text, which any process can read.

    Args:
        raised: The exception.

    Example:
        >>> print(LoopError(Raised("ValueError", "no such class", "Traceback ...")))
        ValueError: no such class
    """

    def __init__(self, raised: Raised):
        super().__init__(raised)
        self.tunekit_raised = raised

    def __str__(self) -> str:
        return self.tunekit_raised.reason.removeprefix("raised ")


def legible_error(error: BaseException) -> BaseException:
    """Return the exception itself if another process can read it; otherwise, its text.

    Example:
        >>> legible_error(ValueError(3))
        ValueError(3)
        >>> class Odd(Exception):
        ...     def __init__(self, code, text):
        ...         super().__init__(text)
        >>> print(legible_error(Odd(7, "no such class")))
        Odd: no such class
    """
    return error if survives_pickling(error) else LoopError(describe_error(error))
