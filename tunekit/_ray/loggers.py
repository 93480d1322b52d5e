"""Adapt Tune's own loggers."""

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

logger = logging.getLogger(__name__)

# The attributes of a new TensorBoard logger of Tune.
_NEEDED = ("_trial_result", "_trial_writer")


class Writing(TBXLoggerCallback):
    """Log to TensorBoard as Tune does, through writers that are passed in.

    Raises:
        tunekit.errors.UnsupportedRayError: If the logger of this Ray stores its writers otherwise.

    Example:
        >>> Writing().forget("a trial without a writer")
    """

    def __init__(self) -> None:
        with _no_torch(), suppress(ImportError):  # super() reports that tensorboardX is missing
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

    tensorboardX imports it for a type hint, which would cost the driver a second of CPU time before
    the first trial begins.
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
        """Write a report as a whole line, with text for values that JSON does not support."""
        if trial not in self._trial_files:
            self.log_trial_start(trial)
        try:
            line = json.dumps(result, cls=SafeFallbackEncoder)
        except Exception:  # whatever its values raise
            line = as_json(result)
        self._trial_files[trial].write(f"{line}\n")
        self._trial_files[trial].flush()

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        """Write hyperparameters, with text for values that cannot be written."""
        try:
            super().update_config(trial, config)
        except OSError:
            raise
        except Exception as error:  # whatever its values raise
            logger.warning(
                "Some hyperparameters of trial %s are stored as text in %s: %s",
                trial,
                EXPR_PARAM_FILE,
                described(error).reason,
            )
            Path(trial.local_path, EXPR_PARAM_FILE).write_text(as_json(config, indent=2))

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)


_ACTOR = "_logger_actor_cls"

# The consequences of a logger that is not adapted.
_WANDB = (
    "Weights & Biases drops a trial's validated metrics that come after its next report. The "
    "results, the journal and TensorBoard have them."
)
_MLFLOW = (
    "MLflow refuses hyperparameters that change. A sweep whose trials are overwritten, by "
    "population based training, ends with its error."
)


def adapt(callback: Any) -> None:
    """Adapt a logger to late rows and changing hyperparameters.

    - Ray's logger for Weights & Biases logs each row at the step ``training_iteration``. Weights &
      Biases drops a row whose step is below the newest, and so validated metrics that come after
      the next report. Here, steps count rows, and ``training_iteration`` is the axis of all
      charts, which may go back.
    - Ray's logger for MLflow logs all parameters whenever a trial starts. MLflow raises an error if
      one has changed, as in population based training, and the sweep would end. Here, each is
      logged once; rows contain its current value, as ``config/<name>``.

    If the logger of this Ray cannot be adapted, a warning names the consequence.

    Args:
        callback: A logger, before its ``setup``; all other loggers are left as they are.
    """
    module: Any = sys.modules.get("ray.air.integrations.wandb")
    if module is not None and isinstance(callback, module.WandbLoggerCallback):
        _count_rows(callback, module)
    module = sys.modules.get("ray.air.integrations.mlflow")
    if module is not None and isinstance(callback, module.MLflowLoggerCallback):
        _log_parameters_once(callback)


def _log_parameters_once(callback: Any) -> None:
    util: Any = getattr(callback, "mlflow_util", None)
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


def _count_rows(callback: Any, module: Any) -> None:
    stock, own = getattr(module, "_WandbLoggingActor", None), getattr(callback, _ACTOR, None)
    if stock is None or own is None:
        gone = "_WandbLoggingActor" if stock is None else f"WandbLoggerCallback.{_ACTOR}"
        _warn(f"ray.air.integrations.wandb.{gone}", _WANDB)
        return
    if own is not stock:  # a class of the user
        return

    class AnyOrder(stock):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **known: Any):
            super().__init__(*args, **known)
            wandb = vars(self).get("_wandb")
            if wandb is None:
                _warn("ray.air.integrations.wandb._WandbLoggingActor()._wandb", _WANDB)
                return
            self._wandb: Any = _Counting(wandb, TRAINING_ITERATION)

    setattr(callback, _ACTOR, AnyOrder)


def _warn(name: str, follows: str) -> None:
    logger.warning("%s. Until then: %s", lacks([name]), follows)


class _Counting:
    """The ``wandb`` module with its own row counter.

    Args:
        wandb: The module.
        axis: The metric on the horizontal axis of all charts.
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
