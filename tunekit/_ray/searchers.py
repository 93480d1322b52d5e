"""What Tune's searchers do not offer: Optuna's own constraints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tunekit._ray.compat import its

__all__ = ["CONSTRAINTS", "constrain"]

#: The attribute of an Optuna trial that has by how much each constraint is broken; 0 if it is not.
CONSTRAINTS = "constraints"


def constrain(searcher: Any, trial_id: str, broken: Sequence[float]) -> bool:
    """Give a trial's constraints to a searcher whose sampler asks for them: Optuna's.

    Args:
        searcher: Any searcher.
        trial_id: The trial.
        broken: By how much it violates each constraint; 0 if it satisfies it.

    Returns:
        Whether the searcher has taken them; otherwise it knows nothing of constraints.

    Example:
        >>> from ray.tune.search.basic_variant import BasicVariantGenerator
        >>> constrain(BasicVariantGenerator(), "a", [0.5])
        False
    """
    optuna = sys.modules.get("ray.tune.search.optuna.optuna_search")  # it is slow to import
    if optuna is None or type(searcher) is not optuna.OptunaSearch:
        return False
    study = its(searcher, "_ot_study")
    if getattr(study.sampler, "_constraints_func", None) is None:
        return False
    its(searcher, "_ot_trials")[trial_id].set_user_attr(CONSTRAINTS, list(broken))
    return True
