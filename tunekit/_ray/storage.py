"""Files of an experiment, where it keeps them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs
from ray.tune.experiment import Trial

__all__ = ["fetch_from_experiment"]


def fetch_from_experiment(trial: Trial, name: str, to: Path) -> None:
    """Copy a file of the trial's experiment from its storage, if it is there."""
    storage = trial.storage
    path = f"{storage.experiment_fs_path}/{name}"
    found = storage.storage_filesystem.get_file_info(path)
    if found.type == pyarrow.fs.FileType.File and found.path != str(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.fs.copy_files(path, str(to), source_filesystem=storage.storage_filesystem)
