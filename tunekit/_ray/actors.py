"""The actors of trials: whether one has ended, and calls of functions in its process."""

from __future__ import annotations

from typing import Any

from ray.core.generated.gcs_pb2 import ActorTableData
from ray.tune.experiment import Trial


def has_died(actor: Any) -> bool:
    """Return whether an actor that has been called is known to have ended."""
    return bool(actor._get_local_state() == ActorTableData.DEAD)


def actor_of(trial: Trial) -> Any:
    """Return the actor in which a trial runs; None if it has none."""
    return trial.temporary_state.ray_actor


def generator_in(actor: Any, name: str) -> Any:
    """Return a function that runs a generator in a trial's process, as a task of its actor.

    It takes the generator function, whose first argument is the trainable, and the other arguments,
    and returns the stream of the generator's values.

    Args:
        actor: The trial's actor.
        name: The task's name.
    """
    call = actor.__ray_call__
    call._is_generator = True  # the called function returns a generator, which Ray cannot see
    return call.options(num_returns="streaming", name=name).remote
