"""The cluster of this process: its resources, what waits for them, and the actors of trials."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow.fs
import ray
from ray._private import worker
from ray._private.state import state
from ray._private.worker import global_worker
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.exceptions import RayError, RayTaskError
from ray.tune.experiment import Trial
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunekit.core.shares import fits, matching
from tunekit.journal.paths import exists
from tunekit.messages.formatting import format_resources
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)

# The options of a task that decide on which nodes it may run.
_CHOOSE_NODES = {"scheduling_strategy", "placement_group", "label_selector"}
# How long a process on another node may take to start and to answer, in seconds.
_START_S = 10.0


def cannot_grow() -> bool:
    """Return whether this process has started the cluster with ``ray.init()``, on one machine.

    A cluster that this process joined may have an autoscaler or gain nodes.
    """
    node = worker._global_node
    return node is not None and bool(node.is_head())


def check_fits(
    what: str,
    need: Mapping[str, float],
    cluster: Mapping[str, float],
    advice: str,
    problems: Problems,
) -> None:
    """Report a trial or validation that cannot start unless the cluster grows.

    Args:
        what: Its name in the message, such as ``"trial"``.
        need: The resources that it needs, by name.
        cluster: The resources of the cluster, by name.
        advice: How to request less.
        problems: Receives the problem if the cluster cannot grow; otherwise it is logged.
    """
    lacking = [name for name, amount in need.items() if cluster.get(name, 0) < amount]
    has = {name: cluster.get(name, 0.0) for name in lacking}
    if lacking and cannot_grow():
        problems.add(
            f"each {what} needs {format_resources(need)} but this machine has "
            f"{format_resources(has)}: no {what} can start. {advice} Ray's count can be changed by "
            "ray.init(num_cpus=, num_gpus=, resources=); to use a cluster, call "
            "ray.init(address=...)."
        )
    elif lacking:
        logger.warning(
            "Each %s needs %s but the cluster has %s. No %s can start until it grows; the sweep "
            "would hang. %s",
            what,
            format_resources(need),
            format_resources(has),
            what,
            advice,
        )


def check_readable(
    folder: str,
    filesystem: pyarrow.fs.FileSystem,
    need: Mapping[str, float],
    options: Mapping[str, Any],
    problems: Problems,
) -> None:
    """Report the nodes that could run a validation but cannot read the checkpoints.

    Each node is asked in its own task; one that does not answer in time is assumed to be able to.

    Args:
        folder: The folder in the storage that has the checkpoints.
        filesystem: The storage.
        need: The resources of a validation, by name.
        options: ``ray_remote_kwargs``; nothing is checked if they choose the nodes.
        problems: Receives the problem if no node can; if only some cannot, it is logged.
    """
    if not ray.is_initialized() or _CHOOSE_NODES & options.keys():
        return
    nodes = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(name) for name in need)
    }
    own = {"runtime_env": options["runtime_env"]} if "runtime_env" in options else {}
    asked = {}
    for node in nodes.keys() - {ray.get_runtime_context().get_node_id()}:
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        ask = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=place, **own)(exists)
        asked[ask.remote(filesystem, folder)] = nodes[node]
    answers, _ = ray.wait([*asked], num_returns=len(asked), timeout=_START_S) if asked else ([], [])
    unable = sorted(asked[answer] for answer in answers if not _is_readable(answer))
    what = (
        f"{folder} cannot be read on {', '.join(unable)}, where validations would run. Pass "
        "RunConfig(storage_path=...) with a place that all nodes can reach, such as a mounted "
        "folder or s3://bucket/path, or keep validations on other nodes by ray_remote_kwargs."
    )
    if unable and len(unable) == len(nodes):
        problems.add(what)
    elif unable:
        logger.warning("%s", what)


def _is_readable(answer: Any) -> bool:
    """Return a node's answer; True if there is none, for example because the node has ended."""
    try:
        return bool(ray.get(answer))
    except RayTaskError:  # the storage's error
        return False
    except RayError:
        return True


def ending_groups() -> set[str]:
    """Return the IDs of the placement groups with a bundle on a node that Ray drains.

    Such a node ends when nothing runs on it, or at a deadline.
    """
    nodes = set(state.get_draining_nodes()) if ray.is_initialized() else set()
    groups = state.placement_group_table(None) if nodes else {}
    return {group for group, on in groups.items() if nodes & {*on["bundles_to_node_id"].values()}}


# How long to wait for an answer, in seconds; the sweep waits meanwhile.
_PATIENCE_S = 5.0
_ALL = 1_000_000


def unplaced_like(need: Mapping[str, float]) -> int:
    """Return how many tasks and actors that need certain resources wait for them in the cluster.

    Those that have their resources do not count, however long their processes take to start. Ray
    collects the number from the nodes once a second.

    Args:
        need: The exact resources of one, such as ``{"CPU": 1}``.
    """
    if not any(need.values()):
        return 0
    try:
        usage = global_worker.gcs_client.get_all_resource_usage(timeout=_PATIENCE_S)
        demands = usage.resource_usage_data.resource_load_by_shape.resource_demands
        found = [
            (
                dict(demand.shape),
                demand.num_ready_requests_queued + demand.num_infeasible_requests_queued,
            )
            for demand in demands
        ]
    except Exception:  # there is no answer; estimate it from the free resources
        return 0 if fits(ray.available_resources(), [], need) else _ALL
    return matching(found, need)


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
