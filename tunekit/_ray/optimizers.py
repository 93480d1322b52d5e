"""The optimizers in a trial's process."""

from __future__ import annotations

import gc
import sys
from typing import Any

from ray.actor import ActorHandle
from ray.tune.experiment import Trial

from tunekit._ray.actors import actor_of

__all__ = ["ask_for_groups"]


def ask_for_groups(trial: Trial) -> Any:
    """Ask a trial's process for the numbers in the parameter groups of PyTorch's optimizers there.

    Returns:
        A reference to a list of dicts; None if the trial has no process of its own.
    """
    actor = actor_of(trial)
    return actor.__ray_call__.remote(_groups) if isinstance(actor, ActorHandle) else None


def _groups(trainable: Any) -> list[dict[str, float]]:
    module = sys.modules.get("torch.optim")
    if module is None:
        return []
    # isinstance would ask an object for its __class__, which a proxy may compute.
    found = (one for one in gc.get_objects() if issubclass(type(one), module.Optimizer))
    return [
        {key: value for key, value in group.items() if type(value) is float}
        for one in found
        for group in one.param_groups
    ]
