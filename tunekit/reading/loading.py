"""Loads a sweep from its folder: where reading one begins."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs

from tunekit.reading.folder import read_sweep
from tunekit.reading.sweep import Sweep

__all__ = ["load"]


def load(
    path: str | Path,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    seed: str | None = None,
) -> Sweep:
    """Read what became of a sweep, whether it is running, has ended or has crashed.

    This reads the journal in the experiment's folder. It starts nothing, runs none of the sweep's
    code and changes nothing. A running sweep is read as it is at that moment.

    Args:
        path: The experiment's folder, ``results.experiment_path``, or its URI, such as
            ``s3://bucket/digits``.
        storage_filesystem: The filesystem of ``path``, ``results.filesystem``, if it is one of your
            own.
        metric: The validated metric to rank by, as a flat name (``"eval/accuracy"``); by default
            the one that the sweep is judged by.
        mode: ``"min"`` or ``"max"``; by default the sweep's.
        seed: The hyperparameter that is the random seed, as a flat name
            (``"train_loop_config/seed"``); by default the one that the sweep was started with:
            ``ValidationConfig(seed=...)``, or the index of a ``Repeater``.

    Raises:
        tunekit.ConfigError: If an argument is wrong, if the folder has no journal, or if no trial
            has the hyperparameter ``seed``.
        tunekit.JournalError: If the journal is damaged or of another version.
        OSError: If the storage fails.

    Example:
        >>> load("/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.load: path='/no/such/folder' does not exist...
    """
    return read_sweep(Sweep, path, storage_filesystem, metric=metric, mode=mode, seed=seed)
