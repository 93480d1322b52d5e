"""Files of an experiment and its trials, where they are kept and where the driver writes them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs
from ray.tune.experiment import Trial

__all__ = ["experiment_file", "trial_file"]


def experiment_file(trial: Trial, name: str) -> Path:
    """The driver's copy of a file of the trial's experiment.

    If there is none, as after a restore on another machine, what the storage has is fetched.
    """
    local = Path(trial.local_experiment_path, name)
    return _fetched(trial, f"{trial.storage.experiment_fs_path}/{name}", local)


def trial_file(trial: Trial, name: str) -> Path:
    """The driver's copy of a file of a trial, fetched likewise."""
    return _fetched(trial, f"{trial.storage.trial_fs_path}/{name}", Path(trial.local_path, name))


def _fetched(trial: Trial, stored: str, local: Path) -> Path:
    filesystem = trial.storage.storage_filesystem
    if not local.exists() and filesystem.get_file_info(stored).type == pyarrow.fs.FileType.File:
        local.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.fs.copy_files(stored, str(local), source_filesystem=filesystem)
    return local
