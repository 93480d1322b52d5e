"""TensorBoard files with validated scalars at the step of their checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import (
    AUTO_RESULT_KEYS,
    DONE,
    SHOULD_CHECKPOINT,
    TIMESTAMP,
    TIMESTEPS_TOTAL,
    TRAINING_ITERATION,
)

from tunekit._ray.loggers import Writing
from tunekit.core.commands import Told
from tunekit.core.history import GENERATION
from tunekit.core.metrics import REPORTED
from tunekit.core.values import described, number
from tunekit.results.event_file import EventFile

logger = logging.getLogger(__name__)

# The tags for which a warning was logged.
_WARNED: set[str] = set()

# The prefix of the tags that Tune's logger writes.
_STOCK = "ray/tune/"


class TensorBoardLogger(Writing):
    """Write TensorBoard files during training, in place of Tune's own logger.

    - ``training/``: metrics that training reports.
    - ``validation/``: validated metrics, at the step of their checkpoint.
    - ``tune/``: values that Tune adds, such as times.

    When population based training overwrites a trial, the trial continues in a new run below the
    first, ``generation_1`` and so on. A run's file stays open until its last validation has ended.

    Raises:
        tunekit.errors.UnsupportedRayError: If this Ray's logger lacks something that it needs.

    Example:
        >>> logger = TensorBoardLogger()
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[Trial, dict[int, _Run]] = {}
        # The step of the last report of each run that has begun in this session, open or not.
        self._steps: dict[tuple[str, int], int] = {}
        self._restored: set[str] = set()

    # Called by Tune ----------------------------------------------------------------------------

    def log_trial_start(self, trial: Trial) -> None:
        """Begin the trial's first run; a trial that resumes continues in its last one."""
        if trial.trial_id not in self._restored and (trial.trial_id, 0) not in self._steps:
            self._run(trial, 0)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report."""
        generation, step = result.get(GENERATION, 0), _step(result)
        run, place = self._run(trial, generation), (trial.trial_id, generation)
        if step <= self._steps[place]:  # the trial repeats iterations
            run.begin_again(step)
        self._steps[place] = step
        run.group = None
        written = {
            k: v for k, v in result.items() if k not in (DONE, SHOULD_CHECKPOINT, GENERATION)
        }
        super().log_trial_result(iteration, trial, written)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Keep the files open: scores may still arrive."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Close the files that are still open: the sweep was interrupted."""
        for trial in list(self._runs):
            self._close(trial)

    # Called by tunekit -------------------------------------------------------------------------

    def on_trial_validated(
        self, trial: Trial, report: Mapping[str, Any], metrics: Mapping[str, Any]
    ) -> None:
        """Write the validated metrics of a checkpoint.

        Args:
            trial: The trial.
            report: The report of the iteration at which the checkpoint was saved.
            metrics: Its validated metrics.
        """
        generation, step = report.get(GENERATION, 0), _step(report)
        self._close(trial, before=generation)
        run = self._run(trial, generation)
        run.group = "validation"
        row = {**metrics, TRAINING_ITERATION: step, TIMESTEPS_TOTAL: None}
        super().log_trial_result(0, trial, row)

    def on_trial_settled(self, trial: Trial) -> None:
        """Close the files of a trial whose last validation has ended."""
        self._close(trial)

    def on_trial_restored(self, trial: Trial, told: Sequence[Told]) -> None:
        """Write all events again: the files of a killed driver may be gone or incomplete.

        Readers discard the events in older files of a run.

        Args:
            trial: A trial of a restored sweep.
            told: Its reports and validated results, in the order in which they arrived.
        """
        self._restored.add(trial.trial_id)
        for one in told:
            generation = one.report.get(GENERATION, 0)
            run = self._run(trial, generation)
            run.walltime = one.report.get(TIMESTAMP)
            if one.metrics is None:
                self.log_trial_result(0, trial, dict(one.report))
            else:
                self.on_trial_validated(trial, one.report, one.metrics)
            run.walltime = None
        if trial.is_finished():
            self._close(trial)

    # Runs --------------------------------------------------------------------------------------

    def _run(self, trial: Trial, generation: int) -> _Run:
        """Return the run of a generation, opened if necessary; Tune's logger writes into it."""
        runs = self._runs.setdefault(trial, {})
        if generation not in runs:
            runs[generation] = self._opened(trial, generation)
        self.write_with(trial, runs[generation])
        return runs[generation]

    def _opened(self, trial: Trial, generation: int) -> _Run:
        trial.init_local_path()
        place = (trial.trial_id, generation)
        again = place not in self._steps and trial.trial_id in self._restored
        self._steps.setdefault(place, -1)
        folder = Path(trial.local_path, f"generation_{generation}" if generation else "")
        return _Run(folder, 0 if again else None)

    def _close(self, trial: Trial, *, before: int | None = None) -> None:
        """Close a trial's runs, or only those of generations earlier than ``before``."""
        runs = self._runs.get(trial, {})
        for generation in [g for g in runs if before is None or g < before]:
            runs.pop(generation).close()
        if not runs:
            self._runs.pop(trial, None)
            self.forget(trial)


class _Run(EventFile):
    """The file of a TensorBoard run, to which Tune's logger writes.

    Args:
        folder: The folder for the file.
        purge: As ``purge_step`` of :class:`EventFile`.
    """

    def __init__(self, folder: Path, purge: int | None):
        # Files are read in the order of their names, which begin with the time in seconds.
        super().__init__(folder, suffix=f".{time.time_ns()}", purge_step=purge)
        #: The prefix of all names; None: ``training/`` for reports, ``tune/`` for Tune's values.
        self.group: str | None = None
        #: The time of events, in seconds since the epoch; None: the current time.
        self.walltime: float | None = None

    def add(self, kind: str, tag: str, value: Any, **known: Any) -> None:
        """Add a value under a readable name; warn if that is not possible."""
        try:
            super().add(kind, self._named(tag), value, **{"walltime": self.walltime, **known})
        except OSError:
            raise
        except Exception as error:  # an array of an unsupported shape, for example
            if tag not in _WARNED:
                _WARNED.add(tag)
                reason = described(error).reason
                logger.warning("TensorBoard does not show %s: it %s", tag, reason)

    def _named(self, tag: str) -> str:
        if not tag.startswith(_STOCK):
            return tag
        name = tag.removeprefix(_STOCK)
        if self.group is not None:
            return f"{self.group}/{name}"
        if name in AUTO_RESULT_KEYS:
            return f"tune/{name}"
        return f"training/{name.removeprefix(f'{REPORTED}/')}"


def _step(report: Mapping[str, Any]) -> int:
    """Return the step at which Tune's logger writes a report."""
    return int(number(report.get(TIMESTEPS_TOTAL)) or report[TRAINING_ITERATION])
