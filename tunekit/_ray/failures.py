"""Failures of trials that Tune would handle otherwise."""

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

__all__ = ["fail_alone", "fail_for_good"]

# Those that Tune knows, and those with which all of Ray is gone.
_THEIRS = (RayActorError, RayTaskError, RaySystemError, LocalRayletDiedError)


class _Final(Trial):
    """A trial that is not retried where each attempt would fail alike."""

    def handle_error(self, exc: Any = None) -> None:
        # Part of what Tune does not save.
        self.temporary_state.is_final = isinstance(getattr(exc, "cause", exc), NotResumedError)
        super().handle_error(exc)

    def should_recover(self) -> bool:
        final = getattr(self.temporary_state, "is_final", False)
        return not final and bool(super().should_recover())


def fail_for_good(trial: Trial) -> None:
    """Let a trial end with a failure that every retry would repeat.

    ``FailureConfig(max_failures=...)`` is about other failures; -1 would retry for ever.
    """
    if type(trial) is Trial:
        trial.__class__ = _Final


class _FailingAlone(RayActorManager):
    """Takes any way in which Ray loses an actor for a failure of that actor."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, _THEIRS):
            text = f"{type(exception).__name__}: {exception}"
            exception = RayActorError(tracked_actor_task._tracked_actor.actor_id, text)
        super()._actor_task_failed(tracked_actor_task, exception)


def fail_alone(actors: RayActorManager) -> None:
    """Let only the trial fail whose actor is lost, for example to Ray's memory monitor.

    Tune ends the sweep with any error but those of actors and of the code that runs in them, and
    an ``OutOfMemoryError`` of Ray's is neither.
    """
    if type(actors) is RayActorManager:
        actors.__class__ = _FailingAlone
