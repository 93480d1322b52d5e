"""Tune's loggers, taught about scores that arrive late."""

from __future__ import annotations

from pathlib import Path

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback

__all__ = ["JsonLogger"]


class JsonLogger(JsonLoggerCallback):
    """Writes ``result.json`` as Tune's own logger, and keeps its rows when a trial resumes.

    On each start of a trial, Tune's logger copies the file that was last synced over the local
    one, and the rows in between are lost. Here the file in storage is only a stand-in for a local
    one that does not exist.
    """

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)
