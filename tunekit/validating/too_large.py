"""Whether a trial or a validation asks for more than the cluster has."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tunekit._ray.cluster import cannot_grow
from tunekit.core.problems import Problems
from tunekit.core.words import amounts

__all__ = ["say_what_is_too_much"]

logger = logging.getLogger(__name__)


def say_what_is_too_much(
    what: str,
    need: Mapping[str, float],
    cluster: Mapping[str, float],
    advice: str,
    problems: Problems,
) -> None:
    """Say that something could never start, or not before the cluster grows.

    Args:
        what: What it is called: ``"trial"``, for example.
        need: What it takes, by name of the resource.
        cluster: What the cluster has.
        advice: How to ask for less.
        problems: Gets the problem, if the cluster is this machine alone. Otherwise, a warning does.
    """
    lacking = [name for name, amount in need.items() if cluster.get(name, 0) < amount]
    has = {name: cluster.get(name, 0.0) for name in lacking}
    if lacking and cannot_grow():
        problems.add(
            f"a {what} needs {amounts(need)}, and this machine has {amounts(has)}: no {what} could "
            f"ever start. {advice} What Ray counts is what ray.init(num_cpus=, num_gpus=, "
            "resources=) says; to use a cluster, ray.init(address=...)."
        )
    elif lacking:
        logger.warning(
            "A %s needs %s, and the cluster has %s: unless it grows, no %s will ever start, and "
            "nothing ends the wait for it. %s",
            what,
            amounts(need),
            amounts(has),
            what,
            advice,
        )
