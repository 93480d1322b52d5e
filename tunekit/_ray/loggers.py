"""Tune's own loggers, where they are to write otherwise, or elsewhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.result import EXPR_PARAM_FILE
from ray.tune.utils.util import SafeFallbackEncoder

from tunekit._ray.compat import lacks
from tunekit.core.values import as_json, described

__all__ = ["LocalFirst", "Writing"]

logger = logging.getLogger(__name__)

# What Tune's logger of TensorBoard sets in itself when it is made.
_NEEDED = ("_trial_result", "_trial_writer")


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

    def write_with(self, trial: Trial, writer: Any) -> None:
        """Let what is logged of a trial from now on go to a writer."""
        self._trial_writer[trial] = writer

    def forget(self, trial: Trial) -> None:
        """Let go of a trial's writer, which is not closed here."""
        self._trial_writer.pop(trial, None)
        self._trial_result.pop(trial, None)


class LocalFirst(JsonLoggerCallback):
    """Tune's logger of ``result.json``, but that storage does not replace a local file."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report as a line; not a part of one, if it has what JSON does not know."""
        if trial not in self._trial_files:
            self.log_trial_start(trial)
        try:
            line = json.dumps(result, cls=SafeFallbackEncoder)
        except Exception:  # whatever its values raise
            line = as_json(result)
        self._trial_files[trial].write(f"{line}\n")
        self._trial_files[trial].flush()

    def update_config(self, trial: Trial, config: dict[str, Any]) -> None:
        """Write hyperparameters, with texts for what cannot be written."""
        try:
            super().update_config(trial, config)
        except OSError:
            raise
        except Exception as error:  # whatever its values raise
            logger.warning(
                "The hyperparameters of trial %s are not all kept as they are in %s: %s",
                trial,
                EXPR_PARAM_FILE,
                described(error).reason,
            )
            Path(trial.local_path, EXPR_PARAM_FILE).write_text(as_json(config, indent=2))

    def _restore_from_remote(self, file_name: str, trial: Trial) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)
