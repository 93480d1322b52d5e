"""Whether the cluster of this process can grow."""

from __future__ import annotations

from ray._private import worker

__all__ = ["cannot_grow"]


def cannot_grow() -> bool:
    """Return whether this process has started the cluster, by ``ray.init()``: it is one machine.

    A cluster that was joined may have an autoscaler, or nodes to come.
    """
    node = worker._global_node
    return node is not None and bool(node.is_head())
