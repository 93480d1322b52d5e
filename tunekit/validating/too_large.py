"""Check whether a trial or a validation needs more than the cluster has."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tunekit._ray.cluster import cannot_grow
from tunekit.core.problems import Problems
from tunekit.core.words import amounts

logger = logging.getLogger(__name__)


def say_what_is_too_much(
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
        problems: Where the problem is added if the cluster cannot grow; otherwise it is logged.
    """
    lacking = [name for name, amount in need.items() if cluster.get(name, 0) < amount]
    has = {name: cluster.get(name, 0.0) for name in lacking}
    if lacking and cannot_grow():
        problems.add(
            f"each {what} needs {amounts(need)} but this machine has {amounts(has)}: no {what} can "
            f"start. {advice} Ray's count can be changed by ray.init(num_cpus=, num_gpus=, "
            "resources=); to use a cluster, call ray.init(address=...)."
        )
    elif lacking:
        logger.warning(
            "Each %s needs %s but the cluster has %s. No %s can start until it grows; the sweep "
            "would hang. %s",
            what,
            amounts(need),
            amounts(has),
            what,
            advice,
        )
