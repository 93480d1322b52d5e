"""Ray's loggers of experiment trackers, where they cannot take what comes."""

from __future__ import annotations

import logging
import sys
from typing import Any

from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.compat import lacks
from tunekit.core.metrics import flatten

__all__ = ["adapt"]

_log = logging.getLogger(__name__)


_ACTOR = "_logger_actor_cls"

# What follows from a logger that remains as it is.
_WANDB = (
    "Weights & Biases drops a trial's validated metrics that come after its next report. The "
    "results, the journal and TensorBoard have them."
)
_MLFLOW = (
    "MLflow refuses hyperparameters that change. A sweep whose trials are overwritten, by "
    "population based training, ends with its error."
)


def adapt(logger: Any) -> None:
    """Let a logger take rows that come late, and hyperparameters that change.

    - Ray's logger of Weights & Biases logs a row as that of the step ``training_iteration``.
      Weights & Biases drops a row whose step is below the newest, and so validated metrics that
      come after the next report. Here rows are counted, and ``training_iteration`` is the axis of
      all charts, which may go back.
    - Ray's logger of MLflow logs all parameters whenever a trial starts. MLflow raises an error if
      one has changed, as in population based training, and the sweep would end. Here each is
      logged once; rows say what it is now, as ``config/<name>``.

    If this Ray's logger lacks what that needs, it remains as it is. A warning says what follows.

    Args:
        logger: Any logger, before its ``setup``; others are left as they are.
    """
    module: Any = sys.modules.get("ray.air.integrations.wandb")
    if module is not None and isinstance(logger, module.WandbLoggerCallback):
        _count_rows(logger, module)
    module = sys.modules.get("ray.air.integrations.mlflow")
    if module is not None and isinstance(logger, module.MLflowLoggerCallback):
        _log_parameters_once(logger)


def _log_parameters_once(logger: Any) -> None:
    util: Any = getattr(logger, "mlflow_util", None)
    if not hasattr(util, "log_params"):
        gone = "mlflow_util" if util is None else "mlflow_util.log_params"
        _warn(f"ray.air.integrations.mlflow.MLflowLoggerCallback().{gone}", _MLFLOW)
        return
    stock = util.log_params
    logged: dict[Any, set[str]] = {}

    def log_params(params_to_log: dict[str, Any], run_id: str | None = None) -> None:
        known, flat = logged.setdefault(run_id, set()), flatten(params_to_log)
        stock({name: flat[name] for name in flat if name not in known}, run_id)
        known.update(flat)

    util.log_params = log_params


def _count_rows(logger: Any, module: Any) -> None:
    stock, own = getattr(module, "_WandbLoggingActor", None), getattr(logger, _ACTOR, None)
    if stock is None or own is None:
        gone = "_WandbLoggingActor" if stock is None else f"WandbLoggerCallback.{_ACTOR}"
        _warn(f"ray.air.integrations.wandb.{gone}", _WANDB)
        return
    if own is not stock:  # a user's
        return

    class AnyOrder(stock):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **known: Any):
            super().__init__(*args, **known)
            wandb = vars(self).get("_wandb")
            if wandb is None:
                _warn("ray.air.integrations.wandb._WandbLoggingActor()._wandb", _WANDB)
                return
            self._wandb: Any = _Counting(wandb, TRAINING_ITERATION)

    setattr(logger, _ACTOR, AnyOrder)


def _warn(name: str, follows: str) -> None:
    _log.warning("%s. Until then: %s", lacks([name]), follows)


class _Counting:
    """The ``wandb`` module, but that it counts the rows itself.

    Args:
        wandb: It.
        axis: The metric over which all others are shown.
    """

    def __init__(self, wandb: Any, axis: str):
        self._wandb, self._axis = wandb, axis

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wandb, name)

    def init(self, *args: Any, **known: Any) -> Any:
        run = self._wandb.init(*args, **known)
        run.define_metric(self._axis)
        run.define_metric("*", step_metric=self._axis)
        return run

    def log(self, row: dict[str, Any], step: int | None = None) -> None:
        self._wandb.log(row)
