"""Adapt Tune's own loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import LoggerCallback

from tunekit._ray.storage import exists


def keep_local(logger: LoggerCallback) -> None:
    """Make a logger fetch the synced file of a trial only if there is one, and no local one.

    Whenever a trial starts, Tune's logger for ``result.json`` overwrites the local file with the
    synced one, and loses the rows in between.
    """
    restore = type(logger)._restore_from_remote
    own: Any = logger

    def restore_if_lacking(file_name: str, trial: Trial) -> None:
        stored = f"{trial.storage.trial_fs_path}/{file_name}"
        there = Path(trial.local_path, file_name).exists()
        if not there and exists(trial.storage.storage_filesystem, stored):
            restore(logger, file_name, trial)

    own._restore_from_remote = restore_if_lacking
