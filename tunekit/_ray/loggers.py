"""Adapts Tune's own loggers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.result import EXPR_PARAM_FILE, TRAINING_ITERATION
from ray.tune.utils.util import SafeFallbackEncoder

from tunekit._ray.compat import lacks
from tunekit.core.metrics import flatten
from tunekit.core.values import as_json, described

__all__ = ["LocalFirst", "Writing", "adapt"]

logger = logging.getLogger(__name__)

# What Tune's logger of TensorBoard sets in itself when it is made.
_NEEDED = ("_trial_result", "_trial_writer")


class Writing(TBXLoggerCallback):
    """Log to TensorBoard as Tune does, through writers that are passed in.

    Raises:
        tunekit.errors.UnsupportedRayError: If this Ray's logger keeps its writers in another way.

    Example:
        >>> Writing().forget("a trial that has none")
    """

    def __init__(self) -> None:
        with _no_torch(), suppress(ImportError):  # super() says that tensorboardX is missing
            import tensorboardX  # noqa: F401
        super().__init__()
        gone = [name for name in _NEEDED if not hasattr(self, name)]
        if gone:
            raise lacks(f"ray.tune.logger.TBXLoggerCallback().{name}" for name in gone)

    def write_with(self, trial: Trial, writer: Any) -> None:
        """Set the writer of a trial."""
        self._trial_writer[trial] = writer

    def forget(self, trial: Trial) -> None:
        """Forget a trial's writer without closing it."""
        self._trial_writer.pop(trial, None)
        self._trial_result.pop(trial, None)


@contextmanager
def _no_torch() -> Iterator[None]:
    """Import without torch, unless it is already imported.

    tensorboardX wants it for a type hint, and that would take the driver a second of CPU before the
    first trial begins.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


class LocalFirst(JsonLoggerCallback):
    """Log ``result.json`` as Tune does, but never replace a local file by a stored one."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report as a line; not a part of one, if it has what JSON does not know."""
        if trial not in self._trial_files:
            self.log_trial_start(trial)
        try:
            line = json.dumps(result, cls=SafeFallbackEncoder)
        except Exception:  # whatever its values raise
            line = as_json(result)
        self._trial_files[trial].write(f"{line}\n")
        self._trial_files[trial].flush()

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        """Write hyperparameters, with texts for values that cannot be written."""
        try:
            super().update_config(trial, config)
        except OSError:
            raise
        except Exception as error:  # whatever its values raise
            logger.warning(
                "The hyperparameters of trial %s are not all kept as they are in %s: %s",
                trial,
                EXPR_PARAM_FILE,
                described(error).reason,
            )
            Path(trial.local_path, EXPR_PARAM_FILE).write_text(as_json(config, indent=2))

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)


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
    """Adapt a logger to late rows and changing hyperparameters.

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
    """The ``wandb`` module with its own row counter.

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
