"""Restore an interrupted sweep from its journal.

Tune's trials and the scheduler are as of one line of the journal, the searcher as of that one or a
later one. What Tune has processed since is processed again, by the same code as before, but in
silence: loggers have had it. A recorded decision takes precedence over what the scheduler decides
now. What Tune had not processed becomes the queues again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback

from tunekit._ray.checkpoints import (
    forget_missing,
    remove_left_over,
    saved_at,
    skip_existing,
    start_from,
)
from tunekit._ray.scheduler_kinds import traits_of
from tunekit._ray.storage import exists
from tunekit.core.events import (
    Chosen,
    Event,
    Exploited,
    Processed,
    Reported,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
)
from tunekit.core.failures import gone
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Ancestry
from tunekit.core.open_reports import OpenReport, OpenReports
from tunekit.core.queue import Entry, Queue
from tunekit.core.validation import Status
from tunekit.driver.door import VOID
from tunekit.driver.scheduler_state import load
from tunekit.journal.encoding import resolve_opaque
from tunekit.journal.ledger import Ledger
from tunekit.policies import CheckpointPolicy
from tunekit.results.rows import write_rows

logger = logging.getLogger(__name__)


class Restore:
    """Continue a sweep from the records of its earlier sessions.

    Args:
        driver: The driver of the sweep.
    """

    def __init__(self, driver: Any):
        self._driver = driver
        #: The events of earlier sessions, until they have been replayed.
        self.past: list[Event] = []
        #: Whether these are being replayed; they are already in the journal.
        self.replays = False
        #: The line as of which the searcher was saved; 0 if it was saved with the rest; None for a
        #: new sweep.
        self.searched: int | None = None
        #: The state that Tune had saved, until the experiment's folder is known.
        self.saved: dict[str, Any] | None = None
        #: The line of the journal as of which Tune's state was saved; 0 for a new sweep.
        self.as_of = 0
        # What Tune has not processed at the line that is replayed.
        self._open = OpenReports()
        # The line as of which the scheduler was saved.
        self._since = 0
        # The trials that the scheduler knows.
        self._added: set[str] = set()
        # The rows of each trial that Tune has processed.
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def load(self, ledger: Ledger) -> bool:
        """Read the journal.

        Returns:
            Whether there is a sweep to restore; otherwise the sweep is new.
        """
        if self.saved is None and self.searched is None:
            return False
        self.saved = self.saved or {}
        self.past, self.as_of = ledger.past(), self.saved.get("as_of", 0)
        return True

    @property
    def knows_scheduler(self) -> bool:
        """Return whether the scheduler's saved state has the trials that Tune had saved."""
        return bool(self.saved and self.saved.get("scheduler") is not None)

    def replay(self) -> None:
        """Bring everything to the end of the journal, and let each trial continue from there."""
        driver = self._driver
        tune_controller, trials = driver.tune, driver.trials
        self.past = with_configs(self.past, trials)
        scheduler, state = driver.user_scheduler, (self.saved or {}).get("scheduler")
        self._added = set(trials)
        if state is not None:
            filesystem = driver.controller.storage.storage_filesystem
            self._added = set(load(scheduler, state, driver.home, trials, filesystem=filesystem))
        # A new scheduler gets everything again.
        self._since = self.as_of if state is not None else 0
        # As Tune has restored them: whether errored ones continue is up to the user.
        given = {trial_id: trial.status for trial_id, trial in trials.items()}
        for trial_id in (self.saved or {}).get("paused", ()):
            if trial_id in trials and not trials[trial_id].is_finished():
                driver.controller.set_status(trials[trial_id], Trial.PAUSED)
        for trial_id in {getattr(e, "trial_id", "") for e in self.past if e.n > self._since}:
            if trial_id in trials and trials[trial_id].is_finished():
                driver.controller.set_status(trials[trial_id], Trial.PENDING)
        self.replays = True
        tune_controller.silence(True)
        for event in self.past:
            trial = trials.get(getattr(event, "trial_id", ""))
            if trial is not None and event.n > self._since:
                self._bring_forward(event, trial)
            self._take(event, trial)
        self.replays = False
        tune_controller.silence(False)
        if self.past and self.past[-1].n > self.as_of:
            count = sum(event.n > self.as_of for event in self.past)
            logger.info("Replayed the %d events since the sweep was last saved.", count)
        past, self.past, self.saved = self.past, [], None
        self._place(given, past)

    def _take(self, event: Event, trial: Trial | None) -> None:
        """Apply a line to the state that follows from the journal."""
        driver = self._driver
        if isinstance(event, Processed) and trial is not None:
            one = self._open.at(event)
            if one is not None:
                row = driver.door.restored(trial, self._entry(trial, one), event)
                config = {"config": one.report.report.get("config", trial.config)}
                self._rows.setdefault(trial.trial_id, []).append({**row, **config})
        driver.engine.apply(event)
        self._open.apply(event)

    def _bring_forward(self, event: Event, trial: Trial) -> None:
        """Apply a line to Tune's trial, the scheduler and the searcher, which lack it."""
        driver = self._driver
        tune_controller, scheduler = driver.tune, driver.user_scheduler
        hears = event.n > (self.searched or self.as_of)
        match event:
            case TrialAdded() if trial.trial_id not in self._added:
                scheduler.on_trial_add(driver.controller.wrapped(), trial)
            case TrialRetried():
                if trial.is_finished():
                    driver.controller.set_status(trial, Trial.PENDING)
            case _ if trial.is_finished():
                pass  # by chance, the scheduler has ended it only now
            case Reported() if event.n > self.as_of:
                for one in driver.listeners:
                    if isinstance(one, CheckpointPolicy):
                        one.due(trial, event.report)
            case Processed():
                one = self._open.at(event)
                if one is not None:
                    entry = self._entry(trial, one)
                    new = event.n > self.as_of
                    tune_controller.replay(trial, entry, event.decision, hears=hears, new=new)
            case Chosen():
                scheduler.choose_trial_to_run(driver.controller.wrapped())
                driver.controller.set_status(trial, Trial.PENDING)
            case Exploited():
                self._exploit_again(event, trial)
            case TrialEnded():
                tune_controller.replay_end(trial, hears=hears)
            case TrialErrored():
                scheduler.on_trial_error(driver.controller.wrapped(), trial)
                if hears:
                    tune_controller.search_alg.on_trial_complete(trial.trial_id, error=True)
                driver.controller.set_status(trial, Trial.ERROR)

    def _exploit_again(self, event: Exploited, trial: Trial) -> None:
        """Overwrite a trial with the recorded checkpoint and hyperparameters."""
        trial.set_config(dict(event.config))
        filesystem = trial.storage.storage_filesystem
        manager = trial.run_metadata.checkpoint_manager
        latest = manager.latest_checkpoint_result
        if latest is None or latest.checkpoint.path != event.checkpoint:
            start_from(trial, saved_at(event.checkpoint, filesystem, self._row_of(event)))
        self._driver.controller.changed(trial)

    def _row_of(self, event: Exploited) -> dict[str, Any]:
        """Return the row of the checkpoint that a trial was overwritten with."""
        place = (event.donor_generation, event.iteration)
        for row in reversed(self._rows.get(event.donor_id, [])):
            if (row.get(GENERATION, 0), row["training_iteration"]) == place:
                return row
        return {"training_iteration": event.iteration, "trial_id": event.donor_id}

    def _entry(self, trial: Trial, one: OpenReport) -> Entry:
        """Return a report of the journal as an entry of a queue."""
        report = dict(one.report.report)
        checkpoint = None
        if one.saved is not None:
            filesystem = trial.storage.storage_filesystem
            if exists(filesystem, one.saved.checkpoint):
                checkpoint = saved_at(one.saved.checkpoint, filesystem, report)
        entry = Entry(
            report,
            iteration=one.report.place[1],
            validated=one.requested is not None,
            serves=one.report.serves,
            last=self._driver.door.is_last(trial, report),
            checkpoint=checkpoint,
            metrics=one.metrics,
        )
        if one.ended is not None:
            self._driver.door.from_before.add(entry)
        return entry

    # Continuing ----------------------------------------------------------------------------------

    def _place(self, given: Mapping[str, str], past: Sequence[Event]) -> None:
        """Write the trials' files, and put each trial where it was."""
        driver = self._driver
        trials: dict[str, Trial] = driver.trials
        retried = _to_retry(past)
        for trial_id, trial in trials.items():
            status = given[trial_id]
            if status in (Trial.TERMINATED, Trial.ERROR):
                driver.controller.set_status(trial, status)
                continue
            if trial.status == Trial.ERROR:  # the user has it continued
                driver.controller.set_status(trial, status)
            if trial.is_finished():
                if trial_id not in driver.engine.ended:
                    driver.emit(TrialEnded(trial_id=trial_id, removed=True))
                continue
            for path in forget_missing(trial):
                logger.warning(
                    "Trial %s continues without %s, which no longer exists.", trial_id, path
                )
            skip_existing(trial)
            if trial_id in retried:
                driver.emit(TrialRetried(trial_id=trial_id))
                if retried[trial_id] and not traits_of(driver.user_scheduler).replays:
                    driver.user_scheduler.on_trial_add(driver.controller.wrapped(), trial)
        # Afterwards, because the trials must skip the names of removed checkpoints, too.
        remove_left_over(trials.values(), past)
        tables = any(isinstance(one, CSVLoggerCallback) for one in driver.listeners)
        for trial_id, rows in self._rows.items():
            write_rows(trials[trial_id], rows, table=tables)
        for trial in trials.values():
            if not trial.is_finished():
                self._queue_again(trial)
        under_way = {request.id for request in driver.validator.pool.pending()}
        for name, request in list(driver.engine.unfinished.items()):
            if name in under_way:
                continue
            filesystem = trials[request.trial_id].storage.storage_filesystem
            if exists(filesystem, request.path):  # its report was dropped
                status, reason = Status.SKIPPED, VOID
            else:
                status, reason = Status.FAILED, gone(request.path)
            driver.emit(ValidationEnded(id=name, status=status.value, reason=reason))

    def _queue_again(self, trial: Trial) -> None:
        """Let a trial wait for its reports that Tune had not processed, and go on then."""
        driver, tune_controller = self._driver, self._driver.tune
        entries = [(self._entry(trial, one), one) for one in self._open.of(trial.trial_id)]
        while entries and entries[-1][0].checkpoint is None:
            entries.pop()  # the trial runs these iterations again
        if not entries:
            if trial.status == Trial.RUNNING:
                driver.controller.set_status(trial, Trial.PENDING)
            return
        queue = Queue()
        for entry, _ in entries:
            queue.add(entry)
        tune_controller.queue_again(trial, queue)
        for entry, one in entries:
            driver.door.request_again(trial, entry, one)
        tune_controller.advance(trial)


def _to_retry(past: Sequence[Event]) -> dict[str, bool]:
    """Return the trials whose restart is not recorded, and whether they had failed for good."""
    found: dict[str, bool] = {}
    for event in past:
        if isinstance(event, (TrialFailed, TrialErrored)):
            found[event.trial_id] = isinstance(event, TrialErrored)
        elif isinstance(event, TrialRetried):
            found.pop(event.trial_id, None)
    return found


def with_configs(events: Sequence[Event], trials: Mapping[str, Trial]) -> list[Event]:
    """Return a journal's events, with the hyperparameters that it omits or stores as text.

    Args:
        events: The events.
        trials: The trials, which have the original values.
    """
    recorded = Ancestry(event for event in events if isinstance(event, Exploited)).configs
    known: dict[tuple[str, int], Mapping[str, Any]] = {}

    def of(trial_id: str, generation: int) -> Mapping[str, Any]:
        at, trial = (trial_id, generation), trials.get(trial_id)
        own: Mapping[str, Any] = {} if trial is None else trial.config
        if at not in known:
            known[at] = resolve_opaque(recorded[at], [own]) if at in recorded else own
        return known[at]

    def complete(event: Event) -> Event:
        match event:
            case Reported():
                config = of(event.trial_id, event.report.get(GENERATION, 0))
                return structs.replace(event, report={**event.report, "config": config})
            case Exploited():
                own = [trials[event.trial_id].config] if event.trial_id in trials else []
                configs = (event.old_config, event.donor_config, event.config)
                old, donor, new = (resolve_opaque(one, own) for one in configs)
                return structs.replace(event, old_config=old, donor_config=donor, config=new)
        return event

    return [complete(event) for event in events]
