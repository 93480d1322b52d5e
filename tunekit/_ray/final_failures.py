"""Failures of a trial that every retry would repeat, and those of single processes."""

from __future__ import annotations

from typing import Any

from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import (
    LocalRayletDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)
from ray.tune.experiment import Trial

from tunekit.errors import NotResumedError

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
    if type(trial) is Trial:
        trial.__class__ = _Final


class _FailingAlone(RayActorManager):
    """Treat every loss of an actor as a failure of that actor."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, _THEIRS):
            text = f"{type(exception).__name__}: {exception}"
            exception = RayActorError(tracked_actor_task._tracked_actor.actor_id, text)
        super()._actor_task_failed(tracked_actor_task, exception)


def fail_alone(actors: RayActorManager) -> None:
    """Fail only the trial of an actor that is lost, for example to Ray's memory monitor.

    Tune ends the sweep with any error that is not of an actor or of its code, such as Ray's
    ``OutOfMemoryError``.
    """
    if type(actors) is RayActorManager:
        actors.__class__ = _FailingAlone
