"""Does again, from the journal, what a sweep did after its state was saved last.

Tune's trials, the searcher, and the books of tunekit and the scheduler may each have been saved at
another time: an event is told to those that have not heard of it. The scheduler is told in the
order of the journal, decides again, and is overruled where it has decided otherwise before: a
decision that was recorded may have been carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT

from tunekit._ray.checkpoints import take_saved
from tunekit._ray.controller import Controller
from tunekit._ray.judged import Version
from tunekit._ray.storage import exists
from tunekit.core.events import (
    CheckpointSaved,
    Decided,
    EndDelivered,
    Event,
    Exploited,
    Reminded,
    Reported,
    Resumed,
    ScoreDelivered,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.history import GENERATION, ITERATION, History
from tunekit.core.lineage import Ancestry, configs_of
from tunekit.core.metrics import hide
from tunekit.core.order import InOrder, Told
from tunekit.core.validation import Request, Status
from tunekit.journal import exploits_of
from tunekit.judges import JudgingScheduler
from tunekit.recorded import as_known

if TYPE_CHECKING:
    from tunekit.callback import ValidationCallback

__all__ = ["Replay", "retold"]

logger = logging.getLogger(__name__)


def retold(
    events: Iterable[Event], trials: Mapping[str, Trial], ancestry: Ancestry
) -> tuple[dict[str, list[Told]], InOrder]:
    """What loggers were told of each trial before the sweep was interrupted, and what waits.

    A result counts as told as soon as it might have been: nobody hears of it twice.

    Args:
        events: The journal.
        trials: The trials; events of others are left out.
        ancestry: The exploits, which change hyperparameters.
    """
    configs, order, history = configs_of(ancestry), InOrder(), History()
    told: dict[str, list[Told]] = {}
    reports: dict[str, Mapping[str, Any]] = {}
    requests: dict[str, Request] = {}
    for event in events:
        trial_id = getattr(event, "trial_id", None)
        trial = None if trial_id is None else trials.get(trial_id)
        if trial is None:
            continue
        match event:
            case Reported():
                generation = event.report.get(GENERATION, 0)
                config = configs.get((event.trial_id, generation))
                config = trial.config if config is None else as_known(config, [trial.config])
                report = reports[event.trial_id] = {**event.report, "config": config}
                history.reported(event.trial_id, report[ITERATION], generation)
                told.setdefault(event.trial_id, []).append(Told(report))
            case CheckpointSaved():
                known = reports.get(event.trial_id, {"config": trial.config})
                report = {"config": known["config"], **(event.report or known)}
                requests[event.id] = Request(
                    event.trial_id, event.iteration, event.run, event.generation, report=report
                )
            case ValidationRequested() if event.id in requests:
                order.requested(requests[event.id])
            case ValidationEnded() if event.id in requests:
                outcome = event.outcome(requests[event.id])
                history.ended(outcome)
                for due in order.ended(outcome):
                    if history.counts(due):
                        score = Told(due.request.report, due.metrics)
                        told.setdefault(event.trial_id, []).append(score)
    for trial_id, own in told.items():
        told[trial_id] = [replace(one, report=hide(one.report, history.names)) for one in own]
    return told, order


class Replay:
    """Tells the parts of a restored sweep what has happened since they were saved.

    Args:
        books: The sweep's validations.
        controller: The restored experiment.
        scheduler: The scheduler.
        trials: The trials that it has.
        books_as_of: The number of the line of the journal as of which the books are.
        trials_as_of: That as of which the trials are.
        search_as_of: That as of which the searcher is.
    """

    def __init__(
        self,
        books: ValidationCallback,
        controller: Controller,
        scheduler: JudgingScheduler,
        *,
        trials: Mapping[str, Trial],
        books_as_of: int,
        trials_as_of: int,
        search_as_of: int,
    ):
        self._books, self._controller, self._scheduler = books, controller, scheduler
        self._trials = trials
        self._books_as_of, self._trials_as_of = books_as_of, trials_as_of
        self._search_as_of = search_as_of
        self._reports: dict[str, Mapping[str, Any]] = {}
        self._saved: dict[str, Request] = {}
        self._owed: dict[str, Request] = {}
        self._failed: set[str] = set()
        self._configs: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._known_configs: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._odd: dict[str, Any] = {}
        self._versions: dict[tuple[str, int, int], Request] = {}
        self._scores: dict[tuple[str, int, int], Mapping[str, Any]] = {}

    def run(self, events: Sequence[Event]) -> tuple[list[Request], set[str]]:
        """Tell of all events, in order; those of trials that are no more are left out.

        Returns:
            What was saved, and was to be validated next; the trials that had failed, and were to be
            started again next.
        """
        self._configs = configs_of(exploits_of(events, self._books.places))
        for event in events:
            if isinstance(event, Exploited):
                self._odd.update(event.odd)
        count = 0
        for event in events:
            trial_id = getattr(event, "trial_id", None)
            trial = None if trial_id is None else self._trials.get(trial_id)
            if trial is None:
                continue
            self._remember(event, trial)
            if event.n > self._trials_as_of:
                self._bring_forward(event, trial)
            if event.n > self._search_as_of and isinstance(event, (TrialEnded, TrialErrored)):
                failed = isinstance(event, TrialErrored)
                self._controller.tell_search_of_end(trial, failed=failed)
            if event.n > self._books_as_of:
                count += self._tell(event, trial)
        if count:
            logger.info("Restored what happened after the sweep was saved: %d events.", count)
        return list(self._owed.values()), self._failed

    # What is known of a checkpoint -------------------------------------------------------------

    def _remember(self, event: Event, trial: Trial) -> None:
        match event:
            case Reported():
                config = self._config_of(trial, event.report.get(GENERATION, 0))
                self._reports[trial.trial_id] = {**event.report, "config": config}
            case CheckpointSaved():
                request = self._request(event, trial)
                self._saved[request.id] = request
                self._versions[(trial.trial_id, *request.place)] = request
            case ValidationEnded(status=Status.VALIDATED.value) if event.id in self._saved:
                request = self._saved[event.id]
                self._scores[(trial.trial_id, *request.place)] = event.metrics

    def _request(self, event: CheckpointSaved, trial: Trial) -> Request:
        report = {**(event.report or self._reports.get(trial.trial_id, {}))}
        report.pop(SHOULD_CHECKPOINT, None)
        report.setdefault("config", trial.config)
        path = self._books.places.path(event.checkpoint)
        return Request(
            trial_id=trial.trial_id,
            iteration=event.iteration,
            run=event.run,
            generation=event.generation,
            checkpoint=tune.Checkpoint(path, trial.storage.storage_filesystem),
            path=path,
            report=report,
            kwargs=event.kwargs,
            timeout_s=event.timeout_s,
            config=self._config_of(trial, event.generation),
        )

    def _config_of(self, trial: Trial, generation: int) -> Mapping[str, Any]:
        """The hyperparameters of one of a trial's generations, with their very values."""
        of = (trial.trial_id, generation)
        if of not in self._configs:
            return trial.config
        if of not in self._known_configs:
            self._known_configs[of] = self._known(self._configs[of], trial)
        return self._known_configs[of]

    def _known(self, config: Mapping[str, Any], trial: Trial) -> Mapping[str, Any]:
        known: Mapping[str, Any] = as_known(config, [trial.config], self._odd)
        return known

    def _bring_forward(self, event: Event, trial: Trial) -> None:
        """Let Tune's trial be as far as it was."""
        match event:
            case Reported():
                report = self._reports[trial.trial_id]
                trial.update_last_result(dict(report))
                for policy in self._books.policies:
                    policy.due(trial, report)
            case CheckpointSaved():
                for policy in self._books.policies:
                    policy.saved(trial)
                request = self._saved[event.id]
                if exists(trial.storage.storage_filesystem, request.path):
                    take_saved(trial, request.checkpoint, dict(request.report))
            case _:
                return
        self._controller.changed(trial)

    # What the books are told -------------------------------------------------------------------

    def _tell(self, event: Event, trial: Trial) -> bool:
        """Tell the books and the scheduler of an event; False if it is nothing to them."""
        books, scheduler = self._books, self._scheduler
        match event:
            case Reported():
                scheduler.replay("reported", trial)
                books.reported(trial, self._reports[trial.trial_id], offered=event.offered)
            case CheckpointSaved():
                request = self._saved[event.id]
                scheduler.used(request)
                if books.saved(trial, request, wish=event.wish, used=event.used):
                    self._owed[request.id] = request
            case ValidationRequested():
                self._owed.pop(event.id, None)
                books.requested(trial, self._saved[event.id])
            case ValidationEnded():
                unfinished = books.unfinished(event.id)
                if unfinished is not None:
                    books.ended(trial, event.outcome(unfinished), again=True)
            case ScoreDelivered():
                scheduler.replay("delivered", trial)
                search = event.n > self._search_as_of
                books.delivered(trial, event.place, event.decision, search=search)
                scheduler.replay("judged", trial)
            case Decided():
                scheduler.replay("decided", trial)
            case Reminded():
                scheduler.replay("reminded", trial, decision=event.decision)
            case Resumed():
                scheduler.replay("chosen", trial, runs=event.runs)
            case TrialEnded():
                scheduler.replay("completed", trial, removed=event.removed)
                books.completed(trial.trial_id)
            case EndDelivered():
                books.finished(trial, search=event.n > self._search_as_of)
            case TrialFailed():
                self._failed.add(trial.trial_id)
                scheduler.replay("failed", trial)
            case TrialRetried():
                self._failed.discard(trial.trial_id)
                scheduler.replay("retried", trial)
                books.retried(trial)
            case TrialErrored():
                self._failed.discard(trial.trial_id)
                books.errored(trial)
            case Exploited():
                self._exploit_again(event, trial)
            case _:
                return False
        return True

    def _exploit_again(self, event: Exploited, trial: Trial) -> None:
        recorded = event.exploit(checkpoint=self._books.places.path(event.checkpoint))
        exploit = replace(
            recorded,
            old_config=self._known(recorded.old_config, trial),
            donor_config=self._known(recorded.donor_config, trial),
            config=self._known(recorded.config, trial),
        )
        place = (exploit.donor_id, exploit.donor_generation, exploit.iteration)
        saved = self._versions.get(place)
        version = None
        if saved is not None:
            version = Version(
                trial_id=exploit.donor_id,
                generation=exploit.donor_generation,
                iteration=exploit.iteration,
                checkpoint=saved.checkpoint,
                result=self._books.scored(saved, self._scores.get(place, {})),
                report=saved.report,
                config=exploit.donor_config,
            )
        known = {"exploit": exploit, "version": version}
        carried_out = event.n <= self._trials_as_of
        self._scheduler.replay("exploited", trial, **known, carried_out=carried_out)
