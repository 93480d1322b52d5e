"""The cluster of this process: whether it can grow, which node is where, and what waits there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray._private import worker
from ray._private.worker import global_worker
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.tune.experiment import Trial

from tunekit.core.room import fits, queued

__all__ = ["actor_of", "cannot_grow", "generator_in", "has_died", "waiting_for"]


def cannot_grow() -> bool:
    """Return whether this process has started the cluster, by ``ray.init()``: it is one machine.

    A cluster that was joined may have an autoscaler, or nodes to come.
    """
    node = worker._global_node
    return node is not None and bool(node.is_head())


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


# For how long to wait for an answer; the sweep waits meanwhile.
_PATIENCE_S = 5.0
_ALL = 1_000_000


def waiting_for(need: Mapping[str, float]) -> int:
    """Return how many tasks and actors that take exactly that wait for resources, in the whole
    cluster.

    One that has its resources does not, however long its process takes to start. Ray collects it
    from the nodes once a second.

    Args:
        need: What one takes, such as ``{"CPU": 1}``.
    """
    if not any(need.values()):
        return 0
    try:
        usage = global_worker.gcs_client.get_all_resource_usage(timeout=_PATIENCE_S)
        demands = usage.resource_usage_data.resource_load_by_shape.resource_demands
        waiting = [
            (
                dict(demand.shape),
                demand.num_ready_requests_queued + demand.num_infeasible_requests_queued,
            )
            for demand in demands
        ]
    except Exception:  # it has no answer now; what is free tells, too, if not as exactly
        return 0 if fits(ray.available_resources(), [], need) else _ALL
    return queued(waiting, need)
