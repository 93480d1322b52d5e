"""TensorBoard files with validated scalars at the step of their checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
from tunekit.core.metrics import REPORTED, flatten, merge
from tunekit.core.values import admitted, described, number
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
    - ``best/`` and ``last/``: the sweep's objective, from validated results only. HParams shows
      these as the run's metrics, next to its hyperparameters.

    When population based training overwrites a trial, the trial continues in a new run below the
    first, ``generation_1`` and so on, with its new hyperparameters. A run's file stays open until
    its last validation has ended.

    Args:
        goal: Returns the objectives, and ``"min"`` or ``"max"``, or None if that is not known.
            Without an objective, HParams shows all validated metrics.
        searched: Returns the flat names of the hyperparameters that are searched, as far as they
            are known. HParams has columns for these only: its table has room for few, and metrics
            come last.

    Raises:
        tunekit.errors.UnsupportedRayError: If this Ray's logger lacks something that it needs.

    Example:
        >>> logger = TensorBoardLogger(lambda: (["accuracy"], "max"))
    """

    def __init__(
        self,
        goal: Callable[[], tuple[Collection[str], str | None]] | None = None,
        searched: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        super().__init__()
        self._goal, self._searched = goal, searched
        self._runs: dict[Trial, dict[int, _Run]] = {}
        # The progress of each run that has begun in this session, open or not, and its trial.
        self._begun: dict[tuple[str, int], _Progress] = {}
        self._restored: set[str] = set()
        self._failed: dict[Trial, bool] = {}

    # Called by Tune ----------------------------------------------------------------------------

    def log_trial_start(self, trial: Trial) -> None:
        """Begin the trial's first run; a trial that resumes continues in its last one."""
        self._failed.pop(trial, None)
        if trial.trial_id not in self._restored and (trial.trial_id, 0) not in self._begun:
            self._run(trial, 0, trial.config)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write a report."""
        run = self._run(trial, result.get(GENERATION, 0), result.get("config") or trial.config)
        run.goes_to(_step(result))
        run.group, run.more = None, False
        written = {
            k: v for k, v in result.items() if k not in (DONE, SHOULD_CHECKPOINT, GENERATION)
        }
        super().log_trial_result(iteration, trial, written)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Record that the trial has ended; scores may still arrive."""
        self._failed[trial] = failed

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
        run = self._run(trial, generation, report.get("config") or trial.config)
        run.group, run.more = "validation", True
        row = {**metrics, TRAINING_ITERATION: step, TIMESTEPS_TOTAL: None}
        super().log_trial_result(0, trial, row)
        names, mode = self._shown(metrics)
        run.describe(names, mode, self._searched())
        result = flatten(merge(report, metrics))
        for name in names:
            value = number(result.get(name))
            if value is not None:
                run.add_objective(name, value, step, mode)
        run.more = False
        run.flush()

    def on_trial_settled(self, trial: Trial) -> None:
        """Close the files of a trial whose last validation has ended."""
        self._close(trial, failed=self._failed.pop(trial, False), ended=True)

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
            run = self._run(trial, generation, one.report.get("config") or trial.config)
            run.walltime = one.report.get(TIMESTAMP)
            if one.metrics is None:
                self.log_trial_result(0, trial, dict(one.report))
            else:
                self.on_trial_validated(trial, one.report, one.metrics)
            run.walltime = None
        if trial.is_finished():
            self._close(trial)

    # Runs --------------------------------------------------------------------------------------

    def _run(self, trial: Trial, generation: int, config: Mapping[str, Any]) -> _Run:
        """Return the run of a generation, opened if necessary; Tune's logger writes into it."""
        runs = self._runs.setdefault(trial, {})
        if generation not in runs:
            runs[generation] = self._opened(trial, generation, config)
        self.write_with(trial, runs[generation])
        return runs[generation]

    def _opened(self, trial: Trial, generation: int, config: Mapping[str, Any]) -> _Run:
        trial.init_local_path()
        place = (trial.trial_id, generation)
        again = place not in self._begun and trial.trial_id in self._restored
        progress = self._begun.setdefault(place, _Progress())
        folder = Path(trial.local_path, f"generation_{generation}" if generation else "")
        run = _Run(folder, 0 if again else None, config, progress)
        run.begin(f"{trial.trial_id}{f'/{generation}' if generation else ''}")
        names, mode = self._shown({})
        if names:
            run.describe(names, mode, self._searched())
        return run

    def _shown(self, metrics: Mapping[str, Any]) -> tuple[list[str], str | None]:
        """Return the metrics that HParams shows, and the mode."""
        names, mode = ((), None) if self._goal is None else self._goal()
        return sorted(names) or list(flatten(metrics)), mode

    def _close(
        self,
        trial: Trial,
        *,
        before: int | None = None,
        failed: bool = False,
        ended: bool = False,
    ) -> None:
        """Close a trial's runs, or only those of generations earlier than ``before``."""
        runs = self._runs.get(trial, {})
        for generation in [g for g in runs if before is None or g < before]:
            runs.pop(generation).end(failed=failed, ended=ended or before is not None)
        if not runs:
            self._runs.pop(trial, None)
            self.forget(trial)


@dataclass
class _Progress:
    """The step of a run's last report, and its best values."""

    step: int | None = None
    best: dict[str, float] = field(default_factory=dict)


class _Run(EventFile):
    """The file of a TensorBoard run, to which Tune's logger writes.

    Args:
        folder: The folder for the file.
        purge: As ``purge_step`` of :class:`EventFile`.
        config: The hyperparameters.
        progress: The progress of the run.
    """

    def __init__(
        self, folder: Path, purge: int | None, config: Mapping[str, Any], progress: _Progress
    ):
        # Files are read in the order of their names, which begin with the time in seconds.
        super().__init__(folder, suffix=f".{time.time_ns()}", purge_step=purge)
        self._hyperparameters, self._progress = _hyperparameters(config), progress
        #: The prefix of all names; None: ``training/`` for reports, ``tune/`` for Tune's values.
        self.group: str | None = None
        #: Whether more events follow at once, so that no flush is needed yet.
        self.more = False
        #: The time of events, in seconds since the epoch; None: the current time.
        self.walltime: float | None = None
        self._described = False

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

    def flush(self) -> None:
        """Flush the file, unless more events follow at once."""
        if not self.more:
            super().flush()

    def _named(self, tag: str) -> str:
        if not tag.startswith(_STOCK):
            return tag
        name = tag.removeprefix(_STOCK)
        if self.group is not None:
            return f"{self.group}/{name}"
        if name in AUTO_RESULT_KEYS:
            return f"tune/{name}"
        return f"training/{name.removeprefix(f'{REPORTED}/')}"

    def goes_to(self, step: int) -> None:
        """Begin a report. If its trial repeats iterations, discard their former events."""
        if self._progress.step is not None and step <= self._progress.step:
            self.begin_again(step)
        self._progress.step = step

    def add_objective(self, name: str, value: float, step: int, mode: str | None) -> None:
        """Write a value of an objective, and the best one so far."""
        self.add_scalar(f"last/{name}", value, global_step=step)
        if mode is not None:
            better, best = max if mode == "max" else min, self._progress.best
            best[name] = better(value, best.get(name, value))
            self.add_scalar(f"best/{name}", best[name], global_step=step)

    # HParams -----------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Show the run in HParams, under a name that fits into its table."""
        if self._hyperparameters:
            _, start, _ = self._summary.hparams(dict(self._hyperparameters), {})
            self._add_part(start, "session_start_info", group_name=name)

    def describe(self, names: Collection[str], mode: str | None, searched: Collection[str]) -> None:
        """Write, once, which metrics and hyperparameters HParams shows."""
        if self._described or not self._hyperparameters:
            return
        self._described = True
        groups = ("best", "last") if mode is not None else ("last",)
        metrics = {f"{group}/{name}": None for group in groups for name in names}
        shown = {name: v for name, v in self._hyperparameters.items() if name in searched}
        experiment, _, _ = self._summary.hparams(shown or dict(self._hyperparameters), metrics)
        self.add_summary(experiment)

    def end(self, *, failed: bool, ended: bool) -> None:
        """Close the file; ``ended`` is False if the sweep was interrupted."""
        if ended and self._hyperparameters:
            from tensorboardX.proto.api_pb2 import Status

            status = Status.Value("STATUS_FAILURE" if failed else "STATUS_SUCCESS")
            _, _, end = self._summary.hparams({}, {})
            self._add_part(end, "session_end_info", status=status)
        self.close()

    def _add_part(self, summary: Any, part: str, **known: Any) -> None:
        """Add a summary for HParams, with changed fields in one of its parts."""
        from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

        plugin_data = summary.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin_data.content)
        for name, value in known.items():
            setattr(getattr(content, part), name, value)
        plugin_data.content = content.SerializeToString()
        self.add_summary(summary)


def _hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that can be shown, by flat name; lists as text."""
    shown = {}
    for name, value in flatten(admitted(dict(config), lambda part: None)).items():
        if isinstance(value, (bool, int, float, str)):
            shown[name] = value
        elif isinstance(value, (list, tuple)):
            shown[name] = str(value)
    return shown


def _step(report: Mapping[str, Any]) -> int:
    """Return the step at which Tune's logger writes a report."""
    return int(number(report.get(TIMESTEPS_TOTAL)) or report[TRAINING_ITERATION])
