"""Whether Ray's own services are there, without asking Ray: that could wait with them."""

from __future__ import annotations

import socket

import ray
from ray.exceptions import RaySystemError

__all__ = ["Address", "answers", "lost", "services"]

Address = tuple[str, int]

_TIMEOUT_S = 3.0


def services() -> dict[str, Address]:
    """Return where the services listen without which the driver cannot go on.

    These are the cluster's GCS, and the raylet of the driver's own node; none without a cluster.
    """
    if not ray.is_initialized():
        return {}
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    found = {"GCS": (host.strip("[]"), int(port))}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            found["raylet"] = (node["NodeManagerAddress"], int(node["NodeManagerPort"]))
    return found


def answers(address: Address) -> bool:
    """Return whether somebody listens there."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def lost(name: str, address: Address) -> RaySystemError:
    """Return the error that says that a service is gone."""
    host, port = address
    return RaySystemError(f"Ray's {name} at {host}:{port} does not answer")
