"""Restore an interrupted sweep from its journal.

The state of the sweep is the sum of its events. The states of Tune's trials, the searcher and the
scheduler were saved at different times, so each gets the events that it lacks, in the order of the
journal. The scheduler decides again, but a recorded decision takes precedence, because it may
already have been carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.logger import CSVLoggerCallback
from ray.tune.result import DONE

from tunekit._ray.checkpoints import (
    LeasingCheckpointManager,
    forget_missing,
    remove_left_over,
    skip_existing,
    take_saved,
)
from tunekit._ray.controller import Controller
from tunekit._ray.proxies import Proxy, Version
from tunekit._ray.storage import exists
from tunekit.core.commands import Command, Fold, Notify, Told
from tunekit.core.engine import Engine, Hears, Input
from tunekit.core.events import (
    CheckpointSaved,
    Chosen,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    Reminded,
    Reported,
    ScoreDelivered,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
)
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Ancestry
from tunekit.core.metrics import flatten, hide
from tunekit.core.reconcile import Actual, Desired
from tunekit.core.validation import Outcome, Request
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.requests import Requests
from tunekit.journal.encoding import resolve_opaque
from tunekit.journal.ledger import Ledger
from tunekit.policies import CheckpointPolicy
from tunekit.results.trial_files import TrialFiles
from tunekit.scheduling.state import SchedulerState
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.scheduling.waiting import Waiting

logger = logging.getLogger(__name__)


class SweepDriver(Protocol):
    """The driver of a sweep."""

    trials: dict[str, Trial]
    listeners: list[Any]
    engine: Engine
    ledger: Ledger
    waiting: Waiting
    user_scheduler: UserScheduler
    deliveries: Deliveries
    requests: Requests
    files: TrialFiles

    def apply(self, event: Event) -> list[Command]:
        """Apply an event that is in the journal; return the resulting commands."""

    def emit(self, event: Input) -> None:
        """Record an event, apply it, and carry out the commands."""

    def perform(self, command: Command) -> None:
        """Carry out a command."""

    def ended(self, trial: Trial) -> None:
        """Record that a trial has finished or was stopped."""


class Restore:
    """Continue a sweep from the records of its earlier sessions.

    Args:
        driver: The driver of the sweep.
    """

    def __init__(self, driver: SweepDriver):
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
        # The lines as of which the states of the scheduler and of the searcher were saved.
        self._scheduler_as_of = self._searcher_as_of = 0
        # The saved checkpoints, by trial, generation and iteration.
        self._checkpoints: dict[tuple[str, int, int], Request] = {}
        # Trials that the scheduler stopped when it got the score that is replayed next.
        self._stopped: list[Proxy] = []

    def load(self, ledger: Ledger, state: SchedulerState, filesystem: Any) -> bool:
        """Read the journal, and load the scheduler's saved state.

        Returns:
            Whether there is a sweep to restore; otherwise the sweep is new.
        """
        if self.saved is None and self.searched is None:
            return False
        saved, self.saved = self.saved or {}, None
        self.past, self.as_of = ledger.past(), saved.get("as_of", 0)
        self._searcher_as_of = self.searched or self.as_of
        if saved.get("scheduler") is not None:
            self._scheduler_as_of = self.as_of
            state.load(saved["scheduler"], ledger.home, filesystem=filesystem)
        return True

    # Replay -------------------------------------------------------------------------------------

    def replay(self, controller: Controller) -> dict[str, list[Told]]:
        """Replay to each component the events since it was saved, except those of lost trials.

        Returns:
            The rows that loggers received for each trial before the sweep was interrupted.
        """
        driver = self._driver
        user_scheduler = driver.user_scheduler
        self.past = with_configs(self.past, driver.trials)
        told: dict[str, list[Told]] = {trial_id: [] for trial_id in driver.trials}
        user_scheduler.to_hear.update(
            e.trial_id for e in self.past if isinstance(e, ScoreDelivered)
        )
        self.replays = True
        known = [event for event in self.past if event.n <= self._scheduler_as_of]
        for event in known:
            self._tell(event, controller, told)
        user_scheduler.keep_all()
        for event in self.past[len(known) :]:
            self._tell(event, controller, told, to_scheduler=True)
        self.replays = False
        _note(told, driver.engine.postponed)
        if len(self.past) > len(known):
            count = len(self.past) - len(known)
            logger.info("Replayed the %d events since the sweep was last saved.", count)
        names = driver.engine.history.names
        return {
            trial_id: [replace(one, report=hide(one.report, names)) for one in own]
            for trial_id, own in told.items()
            if own
        }

    def _tell(
        self,
        event: Event,
        controller: Controller,
        told: dict[str, list[Told]],
        *,
        to_scheduler: bool = False,
    ) -> None:
        driver, trial_id = self._driver, getattr(event, "trial_id", None)
        trial = None if trial_id is None else driver.trials.get(trial_id)
        if isinstance(event, ScoreDelivered):
            driver.user_scheduler.to_hear[event.trial_id] -= 1
        if trial_id is not None and trial is None:
            return
        if to_scheduler and isinstance(event, (ScoreDelivered, EndDelivered)):
            self._deliver_again(event)
        for command in driver.apply(event):
            match command:
                case Fold() if event.n > self.as_of:
                    driver.perform(command)
                case Fold(outcome):  # Tune has saved all but the rank of the checkpoint
                    manager = LeasingCheckpointManager.of(driver.trials[outcome.request.trial_id])
                    if manager is not None:
                        manager.score(outcome.request.path, outcome.metrics)
                case Notify():
                    _note(told, [command.outcome])
        if trial is None:
            return
        if isinstance(event, Reported):
            told[trial.trial_id].append(Told(event.report))
        if isinstance(event, CheckpointSaved):
            place = (trial.trial_id, *event.place)
            self._checkpoints[place] = driver.engine.request_of(event)
        if event.n > self.as_of:
            self._bring_forward(event, trial, controller)
        else:
            driver.engine.leases.take_touched()  # surplus checkpoints were already deleted
        if event.n > self._searcher_as_of and isinstance(event, (TrialEnded, TrialErrored)):
            controller.tell_search_of_end(trial, failed=isinstance(event, TrialErrored))
        if to_scheduler:
            self._catch_up(event, trial, controller)

    def _bring_forward(self, event: Event, trial: Trial, controller: Controller) -> None:
        """Apply an event to Tune's trial."""
        match event:
            case Reported():
                trial.update_last_result(dict(event.report))
                for one in self._driver.listeners:
                    if isinstance(one, CheckpointPolicy):
                        one.due(trial, event.report)
            case CheckpointSaved():
                place = (trial.trial_id, *event.place)
                request = self._checkpoints[place]
                filesystem = trial.storage.storage_filesystem
                if exists(filesystem, request.path):
                    checkpoint = tune.Checkpoint(request.path, filesystem)
                    take_saved(trial, checkpoint, dict(request.report))
            case _:
                return
        controller.changed(trial)

    # The scheduler and the searcher --------------------------------------------------------------

    def _deliver_again(self, event: ScoreDelivered | EndDelivered) -> None:
        user_scheduler = self._driver.user_scheduler
        if isinstance(event, ScoreDelivered):
            _trains(user_scheduler.proxies.by_id[event.trial_id])
        self._driver.deliveries.deliver_again(event, search=event.n > self._searcher_as_of)
        if isinstance(event, ScoreDelivered):
            # By chance, the scheduler may not have stopped the same trials again.
            stopped, self._stopped = self._stopped, []
            for other in stopped:
                user_scheduler.stopped(other)

    def _catch_up(self, event: Event, trial: Trial, controller: Controller) -> None:
        """Replay an event for the scheduler."""
        user_scheduler = self._driver.user_scheduler
        proxy = user_scheduler.proxies.of(trial)
        match event:
            case Reported():
                _trains(proxy)
            case Decided():
                self._stopped.append(proxy)
            case Chosen():
                user_scheduler.scheduler.choose_trial_to_run(user_scheduler.view)
                proxy.phase = Desired.RUNNING if event.runs else Desired.PENDING
            case Reminded() if proxy.version is not None:
                user_scheduler.remind_of(proxy, proxy.version, event.decision)
                user_scheduler.take_up()
            case TrialEnded(removed=True):
                proxy.stands = Actual.ENDED
                user_scheduler.conclude(trial)
            case TrialEnded():
                proxy.stands = Actual.ENDED
                if proxy.phase is Desired.PENDING:
                    proxy.phase = Desired.RUNNING
                user_scheduler.complete(proxy)
            case TrialFailed():
                proxy.stands = Actual.STARTING
            case TrialRetried():
                user_scheduler.restart(proxy)
            case TrialErrored():
                user_scheduler.fail(proxy)
            case Exploited():
                change = user_scheduler.exploit_again(trial, event, self._donor(event))
                if event.n > self.as_of:  # otherwise Tune's trial is already overwritten
                    controller.change(trial, change)

    def _donor(self, event: Exploited) -> Version | None:
        """Return the checkpoint that a trial was overwritten with, if the journal has it."""
        trials, engine = self._driver.trials, self._driver.engine
        place = (event.donor_generation, event.iteration)
        saved = self._checkpoints.get((event.donor_id, *place))
        if saved is None:
            return None
        score = engine.merged(saved.report, engine.history.score(event.donor_id, place))
        donor = trials.get(event.donor_id, trials[event.trial_id])
        return Version(
            trial_id=event.donor_id,
            generation=event.donor_generation,
            iteration=event.iteration,
            checkpoint=tune.Checkpoint(saved.path, donor.storage.storage_filesystem),
            result={**self._driver.user_scheduler.told(flatten(score)), DONE: False},
            report=saved.report,
            config=event.donor_config,
        )

    # Continuing ----------------------------------------------------------------------------------

    def resume(self, controller: Controller) -> None:
        """Carry out pending commands, and let each trial continue from where it was."""
        driver, trials = self._driver, self._driver.trials
        for trial_id, trial in trials.items():
            driver.files.add(trial)
            # The interrupted step may have deleted nothing.
            driver.engine.leases.touch(trial_id)
            if trial.is_finished():
                continue
            if driver.engine.record(trial_id).failed or driver.engine.delivery.completed(trial_id):
                driver.emit(TrialRetried(trial_id=trial_id))
                driver.user_scheduler.restart(driver.user_scheduler.proxies.of(trial))
            for path in forget_missing(trial):
                logger.warning(
                    "Trial %s continues without %s, which no longer exists.", trial_id, path
                )
            skip_existing(trial)
        past, self.past = self.past, []
        # Afterwards, because the trials must skip the names of removed checkpoints, too.
        remove_left_over(trials.values(), past)
        tables = any(isinstance(one, CSVLoggerCallback) for one in driver.listeners)
        driver.files.restore(trials, past, table=tables)
        for command in driver.engine.reconcile():
            driver.perform(command)
        if past[-1].n < self.as_of:
            self._record_lost(past)
        self._place(controller)
        for trial_id in list(trials):
            driver.emit(Hears(trial_id))

    def _record_lost(self, past: Sequence[Event]) -> None:
        """Record reports and checkpoints that Tune has saved but the journal lacks at its end."""
        known = {event.checkpoint for event in past if isinstance(event, CheckpointSaved)}
        for trial in self._driver.trials.values():
            for event in self._driver.requests.saved_unrecorded(trial, known):
                self._driver.emit(event)

    def _place(self, controller: Controller) -> None:
        """Put each trial where it was when the sweep was interrupted."""
        driver, delivery = self._driver, self._driver.engine.delivery
        user_scheduler = driver.user_scheduler
        user_scheduler.proxies.forget_unadded()
        for trial_id, proxy in user_scheduler.proxies.by_id.items():
            proxy.stands = None
            if proxy.phase is Desired.ENDED and not (
                delivery.closed(trial_id) or delivery.completed(trial_id)
            ):
                user_scheduler.record_stop(proxy)  # by chance, it was stopped only in the replay
            if proxy.real.status == Trial.TERMINATED and not delivery.completed(trial_id):
                # It had made its last report, or must not continue.
                controller.tell_search_of_end(proxy.real, failed=False)
                driver.ended(proxy.real)
            if proxy.real.is_finished():
                continue
            user_scheduler.proxies.reopen(proxy)
            user_scheduler.proxies.moved(proxy)
            waits = proxy.phase is Desired.RUNNING and driver.waiting.waits(trial_id)
            if waits or driver.engine.record(trial_id).stopped or proxy.phase is Desired.PAUSED:
                controller.set_status(proxy.real, Trial.PAUSED)
            elif proxy.phase is Desired.RUNNING:
                proxy.phase = Desired.PENDING  # it will start again


def _trains(proxy: Proxy) -> None:
    proxy.stands = Actual.TRAINING
    if proxy.phase is Desired.PENDING:
        proxy.phase = Desired.RUNNING


def _note(told: dict[str, list[Told]], outcomes: Iterable[Outcome]) -> None:
    """Record outcomes that loggers may have received, so that they receive each only once."""
    for outcome in outcomes:
        told[outcome.request.trial_id].append(Told(outcome.request.report, outcome.metrics))


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
            case Reported() | CheckpointSaved() if event.report is not None:
                config = of(event.trial_id, event.report.get(GENERATION, 0))
                return structs.replace(event, report={**event.report, "config": config})
            case Exploited():
                own = [trials[event.trial_id].config] if event.trial_id in trials else []
                configs = (event.old_config, event.donor_config, event.config)
                old, donor, new = (resolve_opaque(one, own) for one in configs)
                return structs.replace(event, old_config=old, donor_config=donor, config=new)
        return event

    return [complete(event) for event in events]
