"""Brings a sweep back to where it was when it was interrupted, from its journal.

The state of the sweep is the sum of its events. Tune's trials, the searcher and the scheduler have
states of their own, each saved at a different time. So each is told the events that it has not
heard of, in the order of the journal. The scheduler decides again, and is overruled where it
decided otherwise before: a recorded decision may have been carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from msgspec import structs
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE

from tunekit._ray.checkpoints import LeasingCheckpointManager, take_saved
from tunekit._ray.controller import Controller
from tunekit._ray.stand_ins import Version
from tunekit._ray.storage import exists
from tunekit.config import ValidationConfig
from tunekit.core.engine import Engine
from tunekit.core.events import (
    CheckpointSaved,
    EndDelivered,
    Event,
    Exploited,
    Reported,
    ScoreDelivered,
    TrialEnded,
    TrialErrored,
    ValidationEnded,
)
from tunekit.core.history import GENERATION
from tunekit.core.lineage import configs_of
from tunekit.core.metrics import flatten, hide
from tunekit.core.order import Told
from tunekit.core.validation import Outcome, Request, Status
from tunekit.driver.deliveries import Deliveries
from tunekit.journal.recorded import resolve_opaque
from tunekit.policies import CheckpointPolicy
from tunekit.scheduling.scheduling import Scheduling

__all__ = ["Offsets", "Restoration", "Restored"]

logger = logging.getLogger(__name__)


class Restored(Protocol):
    """What a restoration needs from the sweep's validations."""

    config: ValidationConfig
    state: Engine
    deliveries: Deliveries

    @property
    def policies(self) -> list[CheckpointPolicy]:
        """Return the sweep's checkpoint policies."""
        ...

    def take(self, event: Event) -> list[Outcome]:
        """Apply an event without recording it; return what loggers were told on it."""
        ...

    def fold_in(self, trial: Trial, outcome: Any) -> None:
        """Show the score of an outcome, if it has one, in Tune's trial."""
        ...


@dataclass(frozen=True)
class Offsets:
    """The numbers of the journal's lines as of which the states were saved.

    Attributes:
        trials: The line as of which Tune's trials were saved.
        searcher: The line as of which the searcher was saved.
        scheduler: The line as of which the scheduler was saved; 0 if it was not.
    """

    trials: int = 0
    searcher: int = 0
    scheduler: int = 0


class Restoration:
    """Tells the parts of a restored sweep what has happened since they were saved.

    Args:
        sweep: The sweep's validations.
        trials: The sweep's trials.
        events: The journal's events.
        offsets: The lines of the journal as of which the parts were saved.
        controller: The controller of the restored experiment.
        scheduling: Its scheduler.
    """

    def __init__(
        self,
        sweep: Restored,
        trials: Mapping[str, Trial],
        events: Sequence[Event],
        offsets: Offsets,
        controller: Controller,
        scheduling: Scheduling,
    ):
        self._sweep, self._trials, self._offsets = sweep, trials, offsets
        self._controller, self._scheduling = controller, scheduling
        self._events = with_configs(events, trials)
        # The saved checkpoints and their scores, by trial, generation and iteration.
        self._saved: dict[tuple[str, int, int], Request] = {}
        self._scores: dict[tuple[str, int, int], Mapping[str, Any]] = {}
        #: What loggers were told of each trial before the sweep was interrupted.
        self.told: dict[str, list[Told]] = {}

    def run(self) -> None:
        """Tell all events in order, except those of trials that no longer exist."""
        count, caught_up = 0, False
        to_hear = self._scheduling.base.to_hear
        to_hear.update(e.trial_id for e in self._events if isinstance(e, ScoreDelivered))
        for event in self._events:
            if isinstance(event, ScoreDelivered):
                to_hear[event.trial_id] -= 1
            new = event.n > self._offsets.scheduler
            if new and not caught_up:
                caught_up = True
                self._scheduling.base.take_leases()
            trial_id = getattr(event, "trial_id", None)
            trial = None if trial_id is None else self._trials.get(trial_id)
            if trial_id is not None and trial is None:
                continue
            if trial is not None and new and isinstance(event, (ScoreDelivered, EndDelivered)):
                self._deliver_again(event, trial)
            self._note_told(self._sweep.take(event), event)
            if trial is None:
                continue
            self._remember(event)
            if event.n > self._offsets.trials:
                self._bring_forward(event, trial)
            if event.n > self._offsets.searcher and isinstance(event, (TrialEnded, TrialErrored)):
                failed = isinstance(event, TrialErrored)
                self._controller.tell_search_of_end(trial, failed=failed)
            if isinstance(event, ValidationEnded):
                self._show(event, trial)
            if new:
                count += 1
                self._catch_up(event, trial)
        if not caught_up:
            self._scheduling.base.take_leases()
        self._note_told(self._sweep.state.postponed)
        names = self._sweep.state.history.names
        for own in self.told.values():
            own[:] = [replace(one, report=hide(one.report, names)) for one in own]
        if count:
            logger.info("Restored what happened after the sweep was saved: %d events.", count)

    def _note_told(self, outcomes: Iterable[Outcome], event: Event | None = None) -> None:
        """Note what loggers were told: as soon as they might have been, so that it is once."""
        if isinstance(event, Reported):
            report = self._sweep.state.record(event.trial_id).report or {}
            self.told.setdefault(event.trial_id, []).append(Told(report))
        for outcome in outcomes:
            request, metrics = outcome.request, outcome.metrics
            shown = {request.stage: metrics} if request.stage else metrics
            self.told.setdefault(request.trial_id, []).append(Told(request.report, shown))

    # What is known of a checkpoint -------------------------------------------------------------

    def _remember(self, event: Event) -> None:
        match event:
            case CheckpointSaved():
                place = (event.trial_id, *event.place)
                self._saved[place] = self._sweep.state.request_of(event)
                self._scores.pop(place, None)
            case ValidationEnded(status=Status.VALIDATED.value) if not event.key.stage:
                self._scores[(event.trial_id, *event.key.place)] = event.metrics

    def _bring_forward(self, event: Event, trial: Trial) -> None:
        """Bring Tune's trial to where it was."""
        match event:
            case Reported():
                report = self._sweep.state.record(trial.trial_id).report or {}
                trial.update_last_result(dict(report))
                for policy in self._sweep.policies:
                    policy.due(trial, report)
            case CheckpointSaved():
                for policy in self._sweep.policies:
                    policy.saved(trial)
                request = self._saved[(trial.trial_id, *event.place)]
                filesystem = trial.storage.storage_filesystem
                if exists(filesystem, request.path):
                    checkpoint = tune.Checkpoint(request.path, filesystem)
                    take_saved(trial, checkpoint, dict(request.report))
            case _:
                return
        self._controller.changed(trial)

    def _show(self, event: ValidationEnded, trial: Trial) -> None:
        """Show a score in Tune's trial, and in the rank of its checkpoint."""
        saved = self._saved.get((trial.trial_id, *event.key.place))
        if saved is None:
            return
        stage = event.key.stage
        if event.n > self._offsets.trials:
            self._sweep.fold_in(trial, event.outcome(replace(saved, stage=stage)))
        elif stage:
            return  # checkpoints are not ranked by it
        elif event.status == Status.VALIDATED.value:
            manager = LeasingCheckpointManager.of(trial)
            if manager is not None:
                manager.mark(saved.path, event.metrics)

    # What the scheduler and the searcher are told ------------------------------------------------

    def _deliver_again(self, event: ScoreDelivered | EndDelivered, trial: Trial) -> None:
        """Deliver again what was delivered; it follows from the events before."""
        again = self._scheduling.restore
        if isinstance(event, ScoreDelivered):
            again.trains(self._scheduling.state.stand_ins.of(trial))
        self._sweep.deliveries.deliver_again(event, search=event.n > self._offsets.searcher)
        if isinstance(event, ScoreDelivered):
            again.stop_as_before()

    def _catch_up(self, event: Event, trial: Trial) -> None:
        """Tell the scheduler."""
        scheduling = self._scheduling
        if isinstance(event, Exploited):
            carried_out = event.n <= self._offsets.trials
            scheduling.restore.exploit_again(
                trial, event.exploit(), self._donor(event), carried_out=carried_out
            )
        else:
            scheduling.restore.catch_up(event, trial)

    def _donor(self, event: Exploited) -> Version | None:
        """Return the checkpoint that a trial was overwritten with, if the journal has it."""
        place = (event.donor_id, event.donor_generation, event.iteration)
        saved = self._saved.get(place)
        if saved is None:
            return None
        score = self._sweep.state.merged(saved.report, self._scores.get(place, {}))
        donor = self._trials.get(event.donor_id, self._trials[event.trial_id])
        return Version(
            trial_id=event.donor_id,
            generation=event.donor_generation,
            iteration=event.iteration,
            checkpoint=tune.Checkpoint(saved.path, donor.storage.storage_filesystem),
            result={**flatten(score), DONE: False},
            report=saved.report,
            config=event.donor_config,
        )


def with_configs(events: Sequence[Event], trials: Mapping[str, Trial]) -> list[Event]:
    """Return the events of a journal with the hyperparameters that it leaves out, or has texts of.

    Args:
        events: The events.
        trials: The trials, with the very values.
    """
    exploits = [event for event in events if isinstance(event, Exploited)]
    odd = {text: value for event in exploits for text, value in event.odd.items()}
    recorded = configs_of(event.exploit() for event in exploits)
    known: dict[tuple[str, int], Mapping[str, Any]] = {}

    def of(trial_id: str, generation: int) -> Mapping[str, Any]:
        at, trial = (trial_id, generation), trials.get(trial_id)
        own: Mapping[str, Any] = {} if trial is None else trial.config
        if at not in known:
            known[at] = resolve_opaque(recorded[at], [own], odd) if at in recorded else own
        return known[at]

    def complete(event: Event) -> Event:
        match event:
            case Reported() | CheckpointSaved() if event.report is not None:
                config = of(event.trial_id, event.report.get(GENERATION, 0))
                return structs.replace(event, report={**event.report, "config": config})
            case Exploited():
                own = [trials[event.trial_id].config] if event.trial_id in trials else []
                configs = (event.old_config, event.donor_config, event.config)
                old, donor, new = (resolve_opaque(one, own, odd) for one in configs)
                return structs.replace(event, old_config=old, donor_config=donor, config=new)
        return event

    return [complete(event) for event in events]
