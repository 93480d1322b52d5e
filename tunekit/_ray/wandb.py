"""Ray's logger of Weights & Biases, with rows that come in any order."""

from __future__ import annotations

import sys
from typing import Any

from ray.tune.result import TRAINING_ITERATION

__all__ = ["let_rows_come_in_any_order"]


def let_rows_come_in_any_order(logger: Any) -> None:
    """Let a logger of Weights & Biases log each row as one more, over its training iteration.

    Ray's logs a row as that of the step ``training_iteration``. Weights & Biases drops a row whose
    step is below the newest, and so validated metrics that come after the next report. Here rows
    are counted, and ``training_iteration`` is the axis of all charts, which may go back.

    Args:
        logger: Any logger; others, and those with a class of their own for what logs, are left
            as they are.
    """
    module: Any = sys.modules.get("ray.air.integrations.wandb")
    if module is None or not isinstance(logger, module.WandbLoggerCallback):
        return
    stock = getattr(module, "_WandbLoggingActor", None)
    if stock is None or getattr(logger, "_logger_actor_cls", None) is not stock:
        return

    class AnyOrder(stock):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **known: Any):
            super().__init__(*args, **known)
            self._wandb: Any = _Counting(vars(self)["_wandb"], TRAINING_ITERATION)

    logger._logger_actor_cls = AnyOrder


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
