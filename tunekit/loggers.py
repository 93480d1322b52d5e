"""Tune's loggers, taught about scores that arrive late."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.result import TIMESTEPS_TOTAL, TRAINING_ITERATION

from tunekit.core.metrics import REPORTED, flatten, without

__all__ = ["JsonLogger", "TensorBoardLogger"]


class JsonLogger(JsonLoggerCallback):
    """Writes ``result.json`` as Tune's own logger, and keeps its rows when a trial resumes.

    On each start of a trial, Tune's logger copies the file that was last synced over the local
    one, and the rows in between are lost. Here the file in storage is only a stand-in for a local
    one that does not exist.

    Example:
        >>> from ray import tune
        >>> run_config = tune.RunConfig(callbacks=[JsonLogger()])
    """

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)


class TensorBoardLogger(TBXLoggerCallback):
    """Writes TensorBoard files as Tune's own logger, with validated scalars at their own step.

    A trial's file stays open until its last validation has ended; the hyperparameters are then
    written with its newest validated metrics.

    Args:
        undecided: Returns the names of metrics that may be training's or validation's: it is not
            known before the first validation has ended. Until then, training's values under such
            names are held back; a curve must not begin with another quantity.

    Example:
        >>> from ray import tune
        >>> run_config = tune.RunConfig(callbacks=[TensorBoardLogger()])
    """

    def __init__(self, undecided: Callable[[], Collection[str]] = frozenset) -> None:
        super().__init__()
        self._undecided = undecided
        self._held: dict[Trial, list[tuple[str, float, int]]] = {}
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
        names = flatten(metrics)
        for held in list(self._held):
            self._write_held(held, hidden=names)
        for name, value in names.items():
            if isinstance(value, numbers.Real):
                self._write(trial, name, float(value), _step(report))
        self._trial_writer[trial].flush()

    def log_trial_start(self, trial: Trial) -> None:
        """Open the trial's file, unless it is open: a trial that resumes goes on in it.

        (A file is named by the second in which it is opened; another one could overwrite it.)
        """
        if trial not in self._trial_writer:
            super().log_trial_start(trial)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report's scalars."""
        undecided = self._undecided()
        for name, value in flatten(result).items():
            if name in undecided and isinstance(value, numbers.Real):
                self._held.setdefault(trial, []).append((name, float(value), _step(result)))
        known = self._trial_result.get(trial, {})
        super().log_trial_result(iteration, trial, without(result, undecided))
        self._trial_result[trial] = {**known, **self._trial_result[trial]}

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Remember that the trial has ended; its scores may not have arrived."""
        self._ending[trial] = failed

    def on_trial_settled(self, trial: Trial) -> None:
        """The trial's last validation has ended: write its hyperparameters and close its file."""
        self._write_held(trial)
        super().log_trial_end(trial, self._ending.pop(trial, False))

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close what is still open: the sweep was interrupted."""
        for trial in list(self._trial_writer):
            self.on_trial_settled(trial)

    def _write(self, trial: Trial, name: str, value: float, step: int) -> None:
        self.log_trial_start(trial)
        self._trial_writer[trial].add_scalar(f"ray/tune/{name}", value, global_step=step)
        self._trial_result[trial][f"ray/tune/{name}"] = value

    def _write_held(self, trial: Trial, hidden: Collection[str] = ()) -> None:
        for name, value, step in self._held.pop(trial, []):
            shown = f"{REPORTED}/{name}" if name in hidden else name
            self._write(trial, shown, value, step)


def _step(report: Mapping[str, Any]) -> int:
    """Where Tune's logger puts a report on the axis."""
    return int(report.get(TIMESTEPS_TOTAL) or report[TRAINING_ITERATION])
