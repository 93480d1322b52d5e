"""Restore an interrupted sweep from its journal.

Tune's trials and the scheduler match one line of the journal, the searcher that line or a later
one. What Tune has processed since is processed again by the same code, but without notifying
loggers, which already have it. A recorded decision takes precedence over the scheduler's new one.
Reports that Tune had not processed return to the queues.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback
from ray.tune.result import DONE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE, RESULT_DUPLICATE

from tunekit._ray.checkpoints import (
    remove_left_over,
    saved_at,
    skip_existing,
    start_from,
)
from tunekit._ray.scheduler_kinds import set_pbt_times, traits_of
from tunekit.core.events import (
    Event,
    Exploited,
    Processed,
    Reported,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialResumed,
    TrialRetried,
    ValidationEnded,
)
from tunekit.core.failures import format_missing
from tunekit.core.metrics import GENERATION, flatten
from tunekit.core.queue import Queue
from tunekit.core.report import Report
from tunekit.core.state import RecordedReport, SweepState
from tunekit.core.validation import Status
from tunekit.core.values import as_json, encodable, sanitize
from tunekit.driver.ledger import Ledger
from tunekit.driver.saved_scheduler import load_scheduler, lost_trial
from tunekit.driver.shell import VOID, Shell
from tunekit.journal.encoding import resolve_opaque
from tunekit.journal.paths import exists, paths_in
from tunekit.journal.storage import folder_at, replace_file
from tunekit.policies import CheckpointPolicy

logger = logging.getLogger(__name__)


class Restore:
    """Continue a sweep from the records of its earlier sessions.

    Args:
        searcher_line: The line as of which the searcher was saved; 0 if it was saved with the rest;
            None for a new sweep.
    """

    def __init__(self, searcher_line: int | None = None):
        #: The events of earlier sessions, until they have been replayed.
        self.past: list[Event] = []
        self.searcher_line = searcher_line
        #: The state that Tune had saved, until the experiment's folder is known.
        self.saved: dict[str, Any] | None = None
        #: The trials that end once their reports are processed (``resume_unfinished=False``).
        self.given_up: set[str] = set()
        #: The line of the journal as of which Tune's state was saved; 0 for a new sweep.
        self.as_of = 0
        # The line as of which the scheduler was saved.
        self._since = 0
        # The trials that the scheduler knows, and those of them that Tune no longer has.
        self._added: set[str] = set()
        self._lost: dict[str, Trial] = {}
        # The rows of each trial that Tune has processed.
        self._rows: dict[str, list[dict[str, Any]]] = {}
        # The exploits that the scheduler makes at the line being replayed, by trial.
        self._repeated: dict[str, Exploited] = {}
        # The paths in the folders of checkpoints, each listed once, as requests to S3 are slow.
        self._listed: dict[str, set[str]] = {}
        # The hyperparameters of overwritten trials, by trial and generation.
        self._configs: Mapping[tuple[str, int], Mapping[str, Any]] = {}

        # What follows is set by replay.
        self._trials: Mapping[str, Trial]
        self._shell: Shell
        self._scheduler: Any
        self._listeners: list[Any]

    @property
    def is_due(self) -> bool:
        """Return whether there is a sweep to restore, and the scheduler knows no trial yet."""
        return self.saved is not None

    def load(self, ledger: Ledger) -> bool:
        """Read the journal.

        Returns:
            Whether there is a sweep to restore; otherwise the sweep is new.
        """
        if self.saved is None and self.searcher_line is None:
            return False
        self.saved = self.saved or {}
        self.past, self.as_of = ledger.past(), self.saved.get("as_of", 0)
        return True

    def replay(self, trials: Mapping[str, Trial], shell: Shell, scheduler: Any) -> None:
        """Bring everything to the end of the journal, from where each trial continues.

        Args:
            trials: The trials that Tune has restored.
            shell: Carries out what follows.
            scheduler: The sweep's :class:`~tunekit.ValidatedScheduler`.
        """
        self._trials, self._shell, self._scheduler = trials, shell, scheduler
        controller, ledger = shell.controller, shell.ledger
        self._listeners = controller.callbacks  # which are silent during the replay
        end = SweepState.after(self.past)
        self._configs = end.ancestry.configs
        state = (self.saved or {}).get("scheduler")
        # Trials that restart failed ones from scratch: no line names them.
        recorded = {event.trial_id for event in self.past if isinstance(event, TrialAdded)}
        new = [trial for trial_id, trial in trials.items() if trial_id not in recorded]
        if new and traits_of(scheduler.scheduler).replays:
            state = None  # its schedule restarts, too
        if state is not None:
            filesystem = controller.session.storage.storage_filesystem
            known = load_scheduler(
                scheduler.scheduler, state, ledger.home, trials, filesystem=filesystem
            )
            self._added = set(known)
            self._lost = {name: trial for name, trial in known.items() if name not in trials}
        # A new scheduler gets everything again.
        self._since = self.as_of if state is not None else 0
        # As Tune has restored them: whether errored ones continue is up to the user.
        given = {trial_id: trial.status for trial_id, trial in trials.items()}
        # With resume_unfinished=False, Tune ends trials that still have reports to process.
        self.given_up = {name for name, status in given.items() if status == Trial.TERMINATED}
        self.given_up -= end.ended
        for trial_id in self.given_up:
            controller.session.set_status(trials[trial_id], Trial.PENDING)
        for trial_id in {getattr(e, "trial_id", "") for e in self.past if e.n > self._since}:
            if trial_id in trials and trials[trial_id].is_finished():
                controller.session.set_status(trials[trial_id], Trial.PENDING)
        # Afterwards, also those that end later in the replay: HyperBand only stops trials that are
        # paused or run.
        for trial_id in (self.saved or {}).get("paused", ()):
            if trial_id in trials and not trials[trial_id].is_finished():
                controller.session.set_status(trials[trial_id], Trial.PAUSED)
        ledger.repeats = self._repeat
        with controller.processing.silent(), controller.session.hiding(new):
            for event in self.past:
                trial = trials.get(getattr(event, "trial_id", ""))
                if isinstance(event, Exploited) and trial is not None:
                    event = _with_objects(event, trial)
                if not isinstance(event, Exploited):
                    self._undo()
                if event.n > self._since:
                    if trial is not None:
                        self._apply_to_tune(event, trial)
                    else:
                        self._apply_to_lost(event)
                if isinstance(event, Exploited):
                    self._repeated.pop(event.trial_id, None)
                self._apply_to_sweep(event, trial)
        ledger.repeats = None
        for trial in new:
            scheduler.scheduler.on_trial_add(controller.session.wrapped(), trial)
        for exploit in self._repeated.values():
            ledger.record(exploit)  # the driver was killed before that
        if self.past and self.past[-1].n > self.as_of:
            count = sum(event.n > self.as_of for event in self.past)
            logger.info("Replayed the %d events since the sweep was last saved.", count)
        past, self.past, self.saved = self.past, [], None
        self._continue({**given, **dict.fromkeys(self.given_up, Trial.PENDING)}, past)

    def _repeat(self, event: Event) -> None:
        """Remember a replayed exploit, which the journal already has unless it ends there."""
        if isinstance(event, Exploited):
            self._repeated[event.trial_id] = event

    def _undo(self) -> None:
        """Undo replayed exploits that did not happen: PBT chooses donors at random."""
        for trial_id in self._repeated:
            trial = self._trials[trial_id]
            config, start = self._shell.controller.exploits.before[trial]
            trial.set_config(config)
            start_from(trial, start)
            set_pbt_times(self._scheduler.scheduler, trial, None)
            self._shell.controller.session.mark_changed(trial)
        self._repeated.clear()

    def _apply_to_sweep(self, event: Event, trial: Trial | None) -> None:
        """Apply a line to the state of the sweep, which follows from the journal."""
        if isinstance(event, Processed) and trial is not None:
            one = self._shell.ledger.state.open.at(event)
            if one is not None:
                report = self._report(trial, one, then=True)
                row = self._shell.sweep.result(trial.trial_id, report)
                self._rows.setdefault(trial.trial_id, []).append(row)
                if event.ranked:
                    self._shell.sweep.recalled(trial.trial_id, report)
                if event.ranked and event.n <= self._since:
                    self._scheduler.recall(trial, flatten(row))
        self._shell.ledger.state.apply(event)

    def _apply_to_tune(self, event: Event, trial: Trial) -> None:
        """Apply a line to those that lack it: Tune's trial, the scheduler and the searcher."""
        controller, scheduler = self._shell.controller, self._scheduler.scheduler
        for_searcher = event.n > (self.searcher_line or self.as_of)
        match event:
            case TrialAdded() if trial.trial_id not in self._added:
                scheduler.on_trial_add(controller.session.wrapped(), trial)
            case TrialRetried():
                if trial.is_finished():
                    controller.session.set_status(trial, Trial.PENDING)
            case _ if trial.is_finished():
                pass  # by chance, the scheduler has only ended it now
            case Reported() if event.n > self.as_of:
                for one in self._listeners:
                    if isinstance(one, CheckpointPolicy):
                        one.due(trial, {**event.report, "config": self._config_of(trial, event)})
            case Processed():
                one = self._shell.ledger.state.open.at(event)
                if one is not None:
                    report, new = self._report(trial, one), event.n > self.as_of
                    # Decisions are recorded, not repeated, because a scheduler may decide at random
                    # (decision 3).
                    controller.processing.replay(
                        trial, report, event.decision, for_searcher=for_searcher, for_stoppers=new
                    )
            case TrialResumed():
                self._scheduler.choose_again(controller.session.wrapped())
                self._undo()
                controller.session.set_status(trial, Trial.PENDING)
            case Exploited():
                self._exploit_again(event, trial)
            case TrialEnded():
                controller.processing.replay_end(trial, for_searcher=for_searcher)
            case TrialErrored():
                scheduler.on_trial_error(controller.session.wrapped(), trial)
                if for_searcher:
                    controller.search_alg.on_trial_complete(trial.trial_id, error=True)
                controller.session.set_status(trial, Trial.ERROR)

    def _apply_to_lost(self, event: Event) -> None:
        """Apply a line of a trial that Tune no longer has: another one has restarted it.

        Schedulers that compare all trials at one time would otherwise wait for it.
        """
        scheduler, wrapped = self._scheduler.scheduler, self._shell.controller.session.wrapped()
        match event:
            case TrialAdded(trial_id=trial_id) if trial_id not in self._added:
                if not traits_of(scheduler).replays:
                    self._lost[trial_id] = lost_trial(trial_id)
                    scheduler.on_trial_add(wrapped, self._lost[trial_id])
            case TrialErrored(trial_id=trial_id) if trial_id in self._lost:
                scheduler.on_trial_error(wrapped, self._lost[trial_id])

    def _exploit_again(self, event: Exploited, trial: Trial) -> None:
        """Overwrite a trial with the recorded checkpoint and hyperparameters."""
        trial.set_config(dict(event.config))
        filesystem = trial.storage.storage_filesystem
        latest = trial.latest_checkpoint_result
        if latest is None or latest.checkpoint.path != event.checkpoint:
            start_from(trial, saved_at(event.checkpoint, filesystem, self._row_of(event)))
        if (donor := self._trials.get(event.donor_id)) is not None:
            set_pbt_times(self._scheduler.scheduler, trial, donor)
        self._shell.controller.session.mark_changed(trial)

    def _row_of(self, event: Exploited) -> dict[str, Any]:
        """Return the row of the checkpoint that a trial was overwritten with."""
        place = (event.donor_generation, event.iteration)
        for row in reversed(self._rows.get(event.donor_id, [])):
            if (row.get(GENERATION, 0), row["training_iteration"]) == place:
                return row
        return {"training_iteration": event.iteration, "trial_id": event.donor_id}

    def _report(self, trial: Trial, one: RecordedReport, *, then: bool = False) -> Report:
        """Return a report of the journal as an entry of a queue.

        Args:
            trial: The trial.
            one: The report.
            then: Whether to return it as it was, with a checkpoint that has been deleted since.
        """
        config = self._config_of(trial, one.reported)
        report, saved = {**one.reported.report, "config": config}, one.saved
        if saved is not None and not (then or self._is_there(saved.checkpoint)):
            saved = None
        filesystem = trial.storage.storage_filesystem
        return Report(
            report,
            iteration=one.reported.place[1],
            config=config,
            kwargs={} if saved is None else saved.kwargs,
            timeout_s=None if saved is None else saved.timeout_s,
            decision_point=one.reported.decision_point,
            last=self._shell.controller.facts.is_last(trial, report),
            checkpoint=None if saved is None else tune.Checkpoint(saved.checkpoint, filesystem),
            path="" if saved is None else saved.checkpoint,
            metrics=one.metrics,
            replayed=one.ended is not None,
        )

    def _is_there(self, path: str) -> bool:
        """Return whether there is a checkpoint."""
        path = path.rstrip("/")
        folder = path.rpartition("/")[0]
        if folder not in self._listed:
            filesystem = self._shell.controller.session.storage.storage_filesystem
            self._listed[folder] = set(paths_in(filesystem, folder))
        return path in self._listed[folder]

    def _config_of(self, trial: Trial, event: Reported) -> Mapping[str, Any]:
        """Return the hyperparameters of a report, which the journal has only once."""
        recorded = self._configs.get((trial.trial_id, event.generation))
        return trial.config if recorded is None else resolve_opaque(recorded, [trial.config])

    # Continuing ----------------------------------------------------------------------------------

    def _continue(self, given: Mapping[str, str], past: Sequence[Event]) -> None:
        """Write the trials' files, and make each trial continue where it was.

        Args:
            given: The status of each trial, as Tune has restored it.
            past: The events of earlier sessions.
        """
        trials, controller, ledger = self._trials, self._shell.controller, self._shell.ledger
        state, scheduler = ledger.state, self._scheduler.scheduler
        for trial_id, trial in trials.items():
            status = given[trial_id]
            state.leases.touch(trial_id)
            missing = trial.run_metadata.checkpoint_manager.forget_missing(self._is_there)
            trial.run_metadata.invalidate_cache()
            if status in (Trial.TERMINATED, Trial.ERROR):
                controller.session.set_status(trial, status)
                continue
            if trial.status == Trial.ERROR:  # the user chose to continue it
                controller.session.set_status(trial, status)
            if trial.is_finished():
                if trial_id not in state.ended:
                    ledger.record(TrialEnded(trial_id=trial_id, removed=True))
                continue
            for path in missing:
                logger.warning(
                    "Trial %s continues without %s, which no longer exists.", trial_id, path
                )
            skip_existing(trial)
            if (for_good := state.failed.get(trial_id)) is not None:
                ledger.record(TrialRetried(trial_id=trial_id))
                if for_good and not traits_of(scheduler).replays:
                    scheduler.on_trial_add(controller.session.wrapped(), trial)
        # Afterwards, because the trials must also skip the names of removed checkpoints.
        remove_left_over(trials.values(), past)
        tables = any(isinstance(one, CSVLoggerCallback) for one in self._listeners)
        for trial_id, rows in self._rows.items():
            _write_rows(trials[trial_id], rows, table=tables)
        for trial in trials.values():
            if not trial.is_finished():
                self._queue_again(trial, ends=trial.trial_id in self.given_up)
        for one in list(state.suspect.values()):
            if one.saved is not None and self._is_there(one.saved.checkpoint):
                trial = trials[one.key.trial_id]
                self._request_again(trial, self._report(trial, one), one)
        under_way = {request.id for request in self._shell.validator.pool.pending()}
        for name, one in list(state.unfinished.items()):
            if name in under_way:
                continue
            filesystem = trials[one.key.trial_id].storage.storage_filesystem
            if exists(filesystem, one.checkpoint):  # its report was dropped
                status, reason = Status.SKIPPED, VOID
            else:
                status, reason = Status.FAILED, format_missing(one.checkpoint)
            self._shell.end([ValidationEnded(id=name, status=status.value, reason=reason)])

    def _queue_again(self, trial: Trial, *, ends: bool) -> None:
        """Make a trial wait for its reports that Tune had not processed, then continue or end."""
        controller = self._shell.controller
        reports = [
            (self._report(trial, one), one)
            for one in self._shell.ledger.state.open.of(trial.trial_id)
        ]
        while reports and reports[-1][0].checkpoint is None and not ends:
            reports.pop()  # the trial runs these iterations again: it resumes from its newest save
        if not reports:
            if ends:
                controller.stop_trial(trial)
            elif trial.status == Trial.RUNNING:
                controller.session.set_status(trial, Trial.PENDING)
            return
        queue = Queue(report for report, _ in reports)
        if ends:
            queue.append(Report({DONE: True, RESULT_DUPLICATE: True}, last=True))
        self._shell.sweep.queues[trial.trial_id] = queue
        controller.session.set_status(trial, Trial.RUNNING)
        for report, one in reports:
            self._request_again(trial, report, one)
        controller.queues.advance(trial)

    def _request_again(self, trial: Trial, report: Report, one: RecordedReport) -> None:
        """Request a validation that has not ended, or that failed and is suspect.

        Tune may have processed the report in the latter case.
        """
        suspect = str(one.key) in self._shell.ledger.state.suspect
        if one.saved is None or one.requested is None or (one.ended is not None and not suspect):
            return
        sweep = self._shell.sweep
        self._shell.do(sweep.requested(trial.trial_id, report, one.key, is_recorded=not suspect))


def _with_objects(event: Exploited, trial: Trial) -> Exploited:
    """Return an event with the trial's own objects, which the journal has only as text."""
    old, donor, new = (
        resolve_opaque(one, [trial.config])
        for one in (event.old_config, event.donor_config, event.config)
    )
    return structs.replace(event, old_config=old, donor_config=donor, config=new)


def _write_rows(trial: Trial, rows: Sequence[Mapping[str, Any]], *, table: bool) -> None:
    """Rewrite ``result.json``, and ``progress.csv`` if there is a ``table``.

    They are written here and in the storage, from which Tune's logger copies its table when the
    trial starts.
    """
    lines = "".join(f"{as_json(row)}\n" for row in rows)
    files = {EXPR_RESULT_FILE: lines, **({EXPR_PROGRESS_FILE: _as_csv(rows)} if table else {})}
    stored = folder_at(trial.storage.storage_filesystem, trial.storage.trial_fs_path)
    for name, text in files.items():
        replace_file(Path(trial.local_path, name), text.encode())
        stored.put(name, text.encode())


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    own = ({key: value for key, value in row.items() if key != "config"} for row in rows)
    table = [flatten(sanitize(row)) for row in own]
    columns = dict.fromkeys(name for row in table for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return encodable(text.getvalue())
