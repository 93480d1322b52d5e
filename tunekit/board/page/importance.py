"""How much each hyperparameter matters, by Optuna's evaluator."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Sequence
from typing import Any

from tunekit.board.page.figures import Axis
from tunekit.extras import extra

with extra("report"):
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

__all__ = ["LEAST", "importance"]

logger = logging.getLogger(__name__)

#: So many trials with a score it takes to say anything.
LEAST = 10


def importance(axes: Sequence[Axis], score: Axis, mode: str) -> dict[str, float]:
    """Return how much each hyperparameter has to do with being among the best tenth of the trials.

    The evaluator is PED-ANOVA (Watanabe, Bansal and Hutter, 2023, https://arxiv.org/abs/2304.10255),
    as Optuna has it.

    Args:
        axes: The hyperparameters, with each trial's value.
        score: Each trial's score.
        mode: ``"min"`` or ``"max"``.

    Returns:
        Shares that add up to 1, the largest first; empty with fewer than :data:`LEAST` trials, or
        if nothing can be told from them.
    """
    if len(score.values) < LEAST or not axes:
        return {}
    distributions = {axis.name: _distribution(axis) for axis in axes}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
        for trial, value in score.values.items():
            study.add_trial(
                optuna.trial.create_trial(
                    params={axis.name: _param(axis, axis.values[trial]) for axis in axes},
                    distributions=distributions,
                    value=value,
                )
            )
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError) as error:
        logger.warning("The importance of hyperparameters could not be told: %s", error)
        return {}
    finally:
        optuna.logging.set_verbosity(before)
    return {name: float(share) for name, share in found.items()} if sum(found.values()) else {}


def _distribution(axis: Axis) -> BaseDistribution:
    values = list(axis.values.values())
    if axis.kind == "choice":
        return CategoricalDistribution(sorted({str(value) for value in values}))
    if all(isinstance(value, numbers.Integral) for value in values):
        return IntDistribution(int(min(values)), int(max(values)), log=axis.kind == "log")
    return FloatDistribution(float(min(values)), float(max(values)), log=axis.kind == "log")


def _param(axis: Axis, value: Any) -> Any:
    return str(value) if axis.kind == "choice" else value
