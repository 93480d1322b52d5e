"""Tune's own loggers, where they are to write otherwise, or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

from tunekit._ray.compat import lacks

__all__ = ["LocalFirst", "Writing"]

# What Tune's logger of TensorBoard sets in itself when it is made.
_NEEDED = ("_summary_writer_cls", "_trial_result", "_trial_writer")


class Writing(TBXLoggerCallback):
    """Tune's logger of TensorBoard, but that it writes into what it is given.

    Raises:
        tunekit.UnsupportedRayError: If this Ray's logger keeps its writers in another way.

    Example:
        >>> Writing().forget("a trial that has none")
    """

    def __init__(self) -> None:
        super().__init__()
        gone = [name for name in _NEEDED if not hasattr(self, name)]
        if gone:
            raise lacks(f"ray.tune.logger.TBXLoggerCallback().{name}" for name in gone)

    def writer_at(self, folder: Path, **options: Any) -> Any:
        """A writer of a new file in a folder; the options are those of tensorboardX."""
        return self._summary_writer_cls(str(folder), **options)

    def write_with(self, trial: Trial, writer: Any) -> None:
        """Let what is logged of a trial from now on go to a writer."""
        self._trial_writer[trial] = writer

    def forget(self, trial: Trial) -> None:
        """Let go of a trial's writer, which is not closed here."""
        self._trial_writer.pop(trial, None)
        self._trial_result.pop(trial, None)


class LocalFirst(JsonLoggerCallback):
    """Tune's logger of ``result.json``, but that storage does not replace a local file."""

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)
