"""Ray's actors: whether one is gone, which one a trial has, and how it runs a generator."""

from __future__ import annotations

from typing import Any

from ray.core.generated.gcs_pb2 import ActorTableData
from ray.tune.experiment import Trial

__all__ = ["actor_of", "generator_in", "has_died"]


def has_died(actor: Any) -> bool:
    """Return whether an actor that has been called before is known to be gone."""
    return bool(actor._get_local_state() == ActorTableData.DEAD)


def actor_of(trial: Trial) -> Any:
    """Return the actor in which a trial runs; None if it has none."""
    return trial.temporary_state.ray_actor


def generator_in(actor: Any, name: str) -> Any:
    """Return what runs a generator in a trial's process, as a task of its actor with this name.

    It takes the generator function, whose first argument is the trainable, and the other arguments,
    and returns the stream of what it yields.

    Args:
        actor: The trial's actor.
        name: The task's name.
    """
    call = actor.__ray_call__
    call._is_generator = True  # it returns what the function returns, which Ray does not look at
    return call.options(num_returns="streaming", name=name).remote
