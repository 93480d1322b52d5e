"""Files of an experiment and its trials, where they are kept and where the driver writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.fs
from ray.train._internal.storage import get_fs_and_path
from ray.tune.experiment import Trial

__all__ = ["TUNER_FILE", "absolute", "exists", "storage_at", "trial_file"]

#: What Tune writes first into an experiment's folder.
TUNER_FILE = "tuner.pkl"


def absolute(path: str, filesystem: pyarrow.fs.FileSystem | None = None) -> str:
    """A local path from the root; a URI, or a path in a filesystem of one's own, as it is.

    Example:
        >>> absolute("s3://bucket/digits"), absolute("/results/../digits")
        ('s3://bucket/digits', '/digits')
    """
    if filesystem is not None or ":/" in path:
        return path
    return os.path.abspath(os.path.expanduser(path))


def storage_at(
    path: str, filesystem: pyarrow.fs.FileSystem | None
) -> tuple[pyarrow.fs.FileSystem, str]:
    """The storage that a path or URI is in, and the path there; local ones may be relative."""
    found, below = get_fs_and_path(absolute(path, filesystem), filesystem)
    return found, below


def exists(filesystem: pyarrow.fs.FileSystem, path: str) -> bool:
    """Whether there is a file or a folder at a path of a storage."""
    return bool(filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound)


def trial_file(trial: Trial, name: str) -> Path:
    """The driver's copy of a file of a trial.

    If there is none, as after a restore on another machine, what the storage has is fetched.
    """
    return _fetched(trial, f"{trial.storage.trial_fs_path}/{name}", Path(trial.local_path, name))


def _fetched(trial: Trial, stored: str, local: Path) -> Path:
    filesystem = trial.storage.storage_filesystem
    if not local.exists() and filesystem.get_file_info(stored).type == pyarrow.fs.FileType.File:
        local.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.fs.copy_files(stored, str(local), source_filesystem=filesystem)
    return local
