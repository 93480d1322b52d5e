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
from tunekit.core.lineage import configs_of
from tunekit.core.metrics import flatten, hide
from tunekit.core.order import Told
from tunekit.core.validation import Outcome, Request, Status
from tunekit.driver.deliveries import Deliveries
from tunekit.journal.lines import exploits_of
from tunekit.journal.places import Places
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
    def places(self) -> Places:
        """Return where the experiment is kept."""
        ...

    @property
    def policies(self) -> list[CheckpointPolicy]:
        """Return the sweep's checkpoint policies."""
        ...

    def take(self, event: Event, *, heard: bool) -> list[Outcome]:
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
        controller: The controller of the restored experiment, if it is known.
        scheduling: The scheduler, if it is one of tunekit's.
    """

    def __init__(
        self,
        sweep: Restored,
        trials: Mapping[str, Trial],
        events: Sequence[Event],
        offsets: Offsets,
        controller: Controller | None = None,
        scheduling: Scheduling | None = None,
    ):
        self._sweep, self._trials, self._events, self._offsets = sweep, trials, events, offsets
        self._controller, self._scheduling = controller, scheduling
        self._recorded = configs_of(exploits_of(events, sweep.places))
        self._known: dict[tuple[str, int], Mapping[str, Any]] = {}
        # The saved checkpoints and their scores, by trial, generation and iteration.
        self._saved: dict[tuple[str, int, int], Request] = {}
        self._scores: dict[tuple[str, int, int], Mapping[str, Any]] = {}
        # The event that is being told, and the last delivered score of each trial.
        self._n = 0
        #: What loggers were told of each trial before the sweep was interrupted.
        self.told: dict[str, list[Told]] = {}
        self._last_heard = {e.trial_id: e.n for e in events if isinstance(e, ScoreDelivered)}

    def heard_later(self, trial_id: str) -> bool:
        """Return whether the scheduler got a score of a trial after what it is being told now."""
        return self._last_heard.get(trial_id, 0) > self._n

    def config_of(self, trial_id: str, generation: int) -> Mapping[str, Any]:
        """Return the hyperparameters of one of a trial's generations, as the original objects."""
        of, trial = (trial_id, generation), self._trials.get(trial_id)
        own: Mapping[str, Any] = {} if trial is None else trial.config
        if of not in self._recorded:
            return own
        if of not in self._known:
            self._known[of] = resolve_opaque(self._recorded[of], [own])
        return self._known[of]

    def run(self) -> None:
        """Tell all events in order, except those of trials that no longer exist."""
        count, caught_up = 0, False
        for event in self._events:
            self._n = event.n
            new = event.n > self._offsets.scheduler
            if new and not caught_up:
                caught_up = True
                self._take_leases()
            trial_id = getattr(event, "trial_id", None)
            trial = None if trial_id is None else self._trials.get(trial_id)
            if trial_id is not None and trial is None:
                continue
            if trial is not None and new and isinstance(event, (ScoreDelivered, EndDelivered)):
                self._deliver_again(event, trial)
            self._note_told(self._sweep.take(event, heard=not new), event)
            if trial is None:
                continue
            self._remember(event)
            if event.n > self._offsets.trials:
                self._bring_forward(event, trial)
            if event.n > self._offsets.searcher and isinstance(event, (TrialEnded, TrialErrored)):
                failed = isinstance(event, TrialErrored)
                if self._controller is not None:
                    self._controller.tell_search_of_end(trial, failed=failed)
            if isinstance(event, ValidationEnded):
                self._show(event, trial)
            if new:
                count += 1
                self._catch_up(event, trial)
        if not caught_up:
            self._take_leases()
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

    def _take_leases(self) -> None:
        """Take the leases that the scheduler had when it was saved."""
        if self._scheduling is not None:
            self._scheduling.base.take_leases()

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
        if self._controller is not None:
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
        scheduling, sweep = self._scheduling, self._sweep
        if scheduling is None:
            return
        search = event.n > self._offsets.searcher
        if isinstance(event, EndDelivered):
            end = sweep.state.delivery.end(trial.trial_id)
            sweep.deliveries.deliver_end(trial, end, search=search)
            return
        scored = sweep.state.delivery.score_at(trial.trial_id, event.place)
        if scored is None:
            return
        result = {**flatten(scored.result), DONE: False}
        decision = scheduling.restore.judge_again(trial, result, scored, event.decision)
        if search:
            sweep.deliveries.teach(trial.trial_id, decision, result)

    def _catch_up(self, event: Event, trial: Trial) -> None:
        """Tell the scheduler."""
        sweep, scheduling = self._sweep, self._scheduling
        if scheduling is not None:
            if isinstance(event, CheckpointSaved):
                scheduling.state.usage.used(self._saved[(trial.trial_id, *event.place)])
            elif isinstance(event, Exploited):
                exploit, version = self._exploit(event, trial)
                carried_out = event.n <= self._offsets.trials
                scheduling.restore.exploit_again(trial, exploit, version, carried_out=carried_out)
            else:
                scheduling.restore.catch_up(event, trial)
            if isinstance(event, Reported):
                report = sweep.state.record(trial.trial_id).report
                scheduling.uses(trial, report or event.report)

    def _exploit(self, event: Exploited, trial: Trial) -> tuple[Any, Version | None]:
        """Return the exploit, and the version of its donor, if that was saved."""
        recorded = event.exploit(checkpoint=self._sweep.places.path(event.checkpoint))

        def known(config: Mapping[str, Any]) -> Mapping[str, Any]:
            found: Mapping[str, Any] = resolve_opaque(config, [trial.config])
            return found

        exploit = replace(
            recorded,
            old_config=known(recorded.old_config),
            donor_config=known(recorded.donor_config),
            config=known(recorded.config),
        )
        place = (exploit.donor_id, exploit.donor_generation, exploit.iteration)
        saved = self._saved.get(place)
        if saved is None:
            return exploit, None
        score = self._sweep.state.merged(saved.report, self._scores.get(place, {}))
        donor = self._trials.get(exploit.donor_id, trial)
        version = Version(
            trial_id=exploit.donor_id,
            generation=exploit.donor_generation,
            iteration=exploit.iteration,
            checkpoint=tune.Checkpoint(saved.path, donor.storage.storage_filesystem),
            result={**flatten(score), DONE: False},
            report=saved.report,
            config=exploit.donor_config,
        )
        return exploit, version
