"""Tune's loggers, taught about scores that arrive late."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.result import TIMESTEPS_TOTAL, TRAINING_ITERATION

from tunekit.core.metrics import flatten

__all__ = ["JsonLogger", "TensorBoardLogger"]


class JsonLogger(JsonLoggerCallback):
    """Writes ``result.json`` as Tune's own logger, and keeps its rows when a trial resumes.

    On each start of a trial, Tune's logger copies the file that was last synced over the local
    one, and the rows in between are lost. Here the file in storage is only a stand-in for a local
    one that does not exist.
    """

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)


class TensorBoardLogger(TBXLoggerCallback):
    """Writes TensorBoard files as Tune's own logger, with validated scalars at their own step.

    A trial's file stays open until its last validation has ended; the hyperparameters are then
    written with its newest validated metrics.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ending: dict[Trial, bool] = {}

    def on_trial_validated(
        self, trial: Trial, report: Mapping[str, Any], metrics: Mapping[str, Any]
    ) -> None:
        """Write the validated scalars of a checkpoint.

        Args:
            trial: The trial.
            report: The report of the iteration at which the checkpoint was saved.
            metrics: Its validated metrics.
        """
        if trial not in self._trial_writer:
            self.log_trial_start(trial)
        step = report.get(TIMESTEPS_TOTAL) or report[TRAINING_ITERATION]
        writer = self._trial_writer[trial]
        for name, value in flatten(metrics).items():
            if isinstance(value, numbers.Real):
                writer.add_scalar(f"ray/tune/{name}", float(value), global_step=step)
                self._trial_result[trial][f"ray/tune/{name}"] = float(value)
        writer.flush()

    def log_trial_start(self, trial: Trial) -> None:
        """Open the trial's file; what was logged before a pause still counts."""
        kept = self._trial_result.get(trial, {})
        super().log_trial_start(trial)
        self._trial_result[trial] = dict(kept)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report's scalars."""
        kept = dict(self._trial_result.get(trial, {}))
        super().log_trial_result(iteration, trial, result)
        self._trial_result[trial] = {**kept, **self._trial_result[trial]}

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Remember that the trial has ended; its scores may not have arrived."""
        self._ending[trial] = failed

    def on_trial_settled(self, trial: Trial) -> None:
        """The trial's last validation has ended: write its hyperparameters and close its file."""
        super().log_trial_end(trial, self._ending.pop(trial, False))

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close what is still open: the sweep was interrupted."""
        for trial in list(self._ending):
            self.on_trial_settled(trial)
