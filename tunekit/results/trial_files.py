"""Add validated metrics to Tune's data about a trial, and to the trial's files.

They go to the trial's metadata (``Result.metrics``, ``get_best_result``, the live table), its
checkpoints (``best_checkpoints``), and its files (``result.json``, ``progress.csv``, from which
``metrics_dataframe`` is read).
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import EXPR_PROGRESS_FILE, EXPR_RESULT_FILE

from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit._ray.storage import trial_files
from tunekit.core.engine import Engine
from tunekit.core.events import Event, Reported
from tunekit.core.history import GENERATION, VALIDATED_ITERATION
from tunekit.core.metrics import flatten, hide, merge
from tunekit.core.validation import Outcome
from tunekit.core.values import admitted, as_json, number, writable
from tunekit.journal.storage import replace_file

logger = logging.getLogger(__name__)


class TrialFiles:
    """Show validated metrics of trials while they run; write their files when they have ended.

    Args:
        engine: The state of the sweep.
        changed: Called with each trial whose new state Tune has to save.
        finalized: Called once with each trial whose files are written.

    Example:
        >>> files = TrialFiles(Engine(), changed=print, finalized=print)
        >>> files.all_final
        True
    """

    def __init__(
        self,
        engine: Engine,
        *,
        changed: Callable[[Trial], None],
        finalized: Callable[[Trial], None],
    ):
        self._engine = engine
        self._changed, self._finalized = changed, finalized
        self._history = engine.history
        self._reported: dict[str, Trial] = {}
        self._open: dict[str, Trial] = {}
        self._final: dict[str, Trial] = {}
        # The number of known validated metrics when files were last written.
        self._names = 0
        # Of each trial: the number of scores in its summary, the generation and iteration of the
        # last one, and the number of validated metrics at that time.
        self._analysed: dict[str, tuple[int, tuple[int, int], int]] = {}

    @property
    def all_final(self) -> bool:
        """Return whether the files of all trials are written."""
        return not self._open

    def add(self, trial: Trial) -> None:
        """Add a trial that may run: write its files when it has ended."""
        self._open[trial.trial_id] = self._reported[trial.trial_id] = trial

    def reported(self, trial: Trial) -> None:
        """Record that a new report has replaced the one that Tune shows."""
        self._reported[trial.trial_id] = trial

    def scored(self, trial: Trial, outcome: Outcome) -> None:
        """Show a new score of a trial, in its metadata and at its checkpoint."""
        self._analyse(trial, outcome)
        self._last_result(trial)
        manager = LeasingCheckpointManager.of(trial)
        if manager is not None:
            manager.score(outcome.request.path, outcome.metrics)
        self._changed(trial)

    def show(self) -> None:
        """Add validated metrics to the reports that have arrived since the last call."""
        for trial in self._reported.values():
            self._last_result(trial)
        self._reported.clear()

    def finalize(self, *, at_end: bool = False) -> None:
        """Write the files of trials that have ended, and whose last validation has ended.

        This waits for the first score, which defines the names of validated metrics; the files are
        written again if a later score has a new name.

        Args:
            at_end: Whether no more scores will come.
        """
        names = len(self._history.names)
        if self._engine.hesitates() or (not names and not at_end):
            return
        if names != self._names:
            self._names = names
            self._open.update(self._final)
        for trial_id, trial in list(self._open.items()):
            if not trial.is_finished() or self._engine.backlog.pending(trial_id):
                continue
            del self._open[trial_id]
            again = trial_id in self._final
            self._final[trial_id] = trial
            self._finalize(trial)
            self._changed(trial)
            if not again:
                self._finalized(trial)

    def restore(self, trials: Mapping[str, Trial], events: Iterable[Event], *, table: bool) -> None:
        """Rewrite each trial's files from the journal, because they were last synced earlier.

        Args:
            trials: The trials.
            events: The journal.
            table: Whether to write ``progress.csv``, too.
        """
        configs = self._engine.ancestry.configs  # exploits change hyperparameters
        rows: dict[str, list[dict[str, Any]]] = {}
        for event in events:
            if isinstance(event, Reported) and event.trial_id in trials:
                place = (event.trial_id, event.report.get(GENERATION, 0))
                config = configs.get(place, trials[event.trial_id].config)
                rows.setdefault(event.trial_id, []).append({**event.report, "config": config})
        for trial_id, own in rows.items():
            trial = trials[trial_id]
            trial.init_local_path()
            replace_file(Path(trial.local_path, EXPR_RESULT_FILE), _as_lines(own).encode())
            if table:
                replace_file(Path(trial.local_path, EXPR_PROGRESS_FILE), _as_csv(own).encode())

    def _finalize(self, trial: Trial) -> None:
        """Add the final metrics: no more reports or scores of the trial will come."""
        self._last_result(trial)
        if self._history.newest(trial.trial_id) is None:
            # The trial must not be ranked by another quantity of the same name.
            self._drop(trial)
        manager = LeasingCheckpointManager.of(trial)
        if manager is not None:
            manager.hide(self._history.names)
        self._write(trial)

    def _write(self, trial: Trial) -> None:
        """Rewrite the trial's files with one row per iteration and its validated metrics.

        Call this only once no more reports of the trial will come. Each file is replaced as a
        whole.
        """
        if not self._history.changes(trial.trial_id) or trial.local_path is None:
            return
        try:
            path, table = trial_files(trial, EXPR_RESULT_FILE, EXPR_PROGRESS_FILE)
        except OSError as error:
            logger.warning("The files of trial %s could not be fetched: %s", trial.trial_id, error)
            return
        if not path.exists():
            return
        rows = list(self._history.rows(trial.trial_id, _read_rows(path)))
        replace_file(path, _as_lines(rows).encode())
        if table.exists():
            replace_file(table, _as_csv(rows).encode())

    def _last_result(self, trial: Trial) -> None:
        """Add the newest validated metrics, and their iteration, to the trial's last result."""
        result = trial.run_metadata.last_result
        if not result:
            return
        if self._history.names:
            newest = self._history.newest(trial.trial_id, self._engine.required)
            iteration, metrics = newest or (None, {})
            # A result that has validated metrics already keeps these values.
            own = flatten(metrics).keys() if VALIDATED_ITERATION in result else ()
            result = hide(result, [name for name in self._history.names if name not in own])
            if iteration is not None:
                result = {**merge(result, metrics), VALIDATED_ITERATION: iteration}
        trial.run_metadata.last_result = result

    def _analyse(self, trial: Trial, outcome: Outcome) -> None:
        """Make Tune's per-metric summary of the trial count only validated values."""
        trial_id, place = trial.trial_id, outcome.request.place
        names = len(self._history.names)
        counted, last, of_names = self._analysed.get(trial_id, (0, (0, 0), 0))
        if names == of_names and place > last:
            self._count(trial, outcome.metrics, counted + 1)
            self._analysed[trial_id] = (counted + 1, place, names)
            return
        self._drop(trial)
        scores = list(self._history.scores(trial_id))
        for step, (_, metrics) in enumerate(scores, start=1):
            self._count(trial, metrics, step)
        self._analysed[trial_id] = (len(scores), scores[-1][0], names)

    @staticmethod
    def _count(trial: Trial, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in flatten(metrics).items():
            if number(value) is not None:
                trial.run_metadata.update_metric(name, value, step=step)

    def _drop(self, trial: Trial) -> None:
        for name in self._history.names:
            trial.run_metadata.metric_analysis.pop(name, None)
            trial.run_metadata.metric_n_steps.pop(name, None)


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                logger.warning("%s has an unreadable line, left out: %.80r", path, line)
                continue
            yield row


def _as_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{as_json(row)}\n" for row in rows)


def _as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    own = ({key: value for key, value in row.items() if key != "config"} for row in rows)
    table = [flatten(admitted(row)) for row in own]
    columns = dict.fromkeys(name for row in table for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return writable(text.getvalue())
