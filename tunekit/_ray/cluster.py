"""The cluster of this process: whether it can grow, and which node is where."""

from __future__ import annotations

from typing import Any

import ray
from ray._private import worker
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.tune.experiment import Trial

__all__ = ["cannot_grow", "has_died", "node_of"]


def cannot_grow() -> bool:
    """Return whether this process has started the cluster, by ``ray.init()``: it is one machine.

    A cluster that was joined may have an autoscaler, or nodes to come.
    """
    node = worker._global_node
    return node is not None and bool(node.is_head())


def has_died(actor: Any) -> bool:
    """Return whether an actor that has been called before is known to be gone."""
    return bool(actor._get_local_state() == ActorTableData.DEAD)


def node_of(trial: Trial) -> str | None:
    """Return the id of the node that a trial runs on, or has run on last; None if it is not known.

    Args:
        trial: The trial.
    """
    address = trial.node_ip
    found = (
        node for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == address
    )
    return next((str(node["NodeID"]) for node in found), None)
