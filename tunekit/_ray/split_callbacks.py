"""The callbacks and loggers of a sweep: which get reports, and which get validated results."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from ray.tune.callback import Callback, CallbackList
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback, LoggerCallback
from ray.tune.result import EXPR_PROGRESS_FILE

from tunekit.core.metrics import flatten
from tunekit.core.sweep import Sweep
from tunekit.journal.paths import exists

logger = logging.getLogger(__name__)


class SplitCallbacks(CallbackList):
    """The callbacks of a sweep, the first of which get each report when it arrives.

    Args:
        callbacks: The callbacks, in order.
        first: The number of those.
        sweep: Knows the names of the validated metrics.
    """

    def __init__(self, callbacks: list[Callback], first: int, sweep: Sweep):
        super().__init__(callbacks)
        self._first, self._sweep = first, sweep
        # The trials whose start they have been notified of in this session.
        self._begun: set[Trial] = set()
        for callback in callbacks:
            if isinstance(callback, LoggerCallback):
                _keep_local(callback)
            if isinstance(callback, CSVLoggerCallback):
                _keep_columns(callback)

    def on_trial_report(
        self, iteration: int, trials: list[Trial], trial: Trial, report: dict[str, Any]
    ) -> None:
        """Pass on a report as training made it."""
        for callback in self._callbacks[: self._first]:
            callback.on_trial_result(iteration=iteration, trials=trials, trial=trial, result=report)

    def on_trial_start(self, *, trial: Trial, **info: Any) -> None:
        """Notify the callbacks that a trial's process has started."""
        self._begun.add(trial)
        super().on_trial_start(trial=trial, **info)

    def on_trial_result(self, *, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        """Pass on a result that Tune processes.

        Tune's CSV logger writes the columns that a trial's first result has, so it gets NaN for
        each missing validated metric; others would show NaN as the newest value. In a restored
        sweep, a trial may have results before it starts; loggers such as MLflow's must be notified
        of it first.
        """
        if trial not in self._begun:
            self._begun.add(trial)
            for callback in self._callbacks[self._first + 1 :]:
                callback.on_trial_start(trial=trial, **info)
        for callback in self._callbacks[self._first :]:
            table = isinstance(callback, CSVLoggerCallback)
            row = with_columns(result, self._sweep.names) if table else result
            callback.on_trial_result(trial=trial, result=row, **info)


def with_columns(result: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Return a result with NaN for each metric that it lacks."""
    if names <= result.keys():
        return dict(result)
    return {**dict.fromkeys(sorted(names - flatten(result).keys()), math.nan), **result}


def _keep_local(of_tune: LoggerCallback) -> None:
    """Make a logger fetch the synced file of a trial only if there is one, and no local one.

    Whenever a trial starts, Tune's logger for ``result.json`` overwrites the local file with the
    synced one, and loses the rows in between.
    """
    restore = type(of_tune)._restore_from_remote
    own: Any = of_tune

    def restore_if_lacking(file_name: str, trial: Trial) -> None:
        if trial.checkpoint is None or Path(trial.local_path, file_name).exists():
            return  # without a checkpoint, Tune restores nothing
        path = f"{trial.storage.trial_fs_path}/{file_name}"
        try:
            if exists(trial.storage.storage_filesystem, path):
                restore(of_tune, file_name, trial)
        except OSError as error:  # an outage; what a restore has written is there anyway
            logger.warning("%s cannot be read: %s. A logger begins it again.", path, error)

    own._restore_from_remote = restore_if_lacking


def _keep_columns(of_tune: CSVLoggerCallback) -> None:
    """Make a logger continue a table with the columns that it has.

    In a restored sweep, Tune's logger takes the columns from a trial's next result. It may have
    others than the first one, or in another order: a score comes last, a missing one first.
    """
    own: Any = of_tune
    set_up = own._setup_trial

    def set_up_with_columns(trial: Trial) -> None:
        set_up(trial)
        if own._trial_continue[trial]:
            with Path(trial.local_path, EXPR_PROGRESS_FILE).open(newline="") as file:
                columns = next(csv.reader(file), [])
            own._trial_csv[trial] = csv.DictWriter(own._trial_files[trial], columns)

    own._setup_trial = set_up_with_columns
