"""Answer what training loops ask in the middle of an iteration: their checkpoints and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ray import train
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from tunekit._ray.asking import asks, tell
from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit.core.inquiry import Inquiry
from tunekit.core.metrics import GENERATION, ITERATION, RUNS, user_metrics
from tunekit.core.validation import Status, ValidationKey

_PENDING = train.ReportedCheckpointStatus.PENDING_VALIDATION
# Ray Train's names for the ends of validations; a skipped one is as if it had not been requested.
_STATUS = {
    Status.VALIDATED.value: train.ReportedCheckpointStatus.VALIDATED,
    Status.FAILED.value: train.ReportedCheckpointStatus.VALIDATION_FAILED,
    Status.TIMED_OUT.value: train.ReportedCheckpointStatus.VALIDATION_TIMEOUT,
}


class Inquiries:
    """The inquiries of trials, which are suspended until each is answered.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        # By trial, the actor that asks, and until when it waits.
        self._asking: dict[Trial, tuple[Any, float]] = {}
        # Whether each class asks, and what each actor was told.
        self._asks: dict[str, bool] = {}
        self._told: dict[Any, list[tuple[str, str]]] = {}

    def ask(self, trial: Trial, inquiry: Inquiry) -> None:
        """Handle that a trial's loop asks."""
        until = inquiry.until(self._tune.facts.now)
        self._asking[trial] = self._tune._trial_to_actor.get(trial), until

    def until(self, trial: Trial) -> float | None:
        """Return until when a trial's loop waits at most, in seconds; None if it does not ask."""
        actor, until = self._asking.get(trial, (None, None))
        if until is not None and self._tune._trial_to_actor.get(trial) is not actor:
            del self._asking[trial]  # its process has ended
            return None
        return until

    def answer(self, trial: Trial) -> None:
        """Answer a trial that is about to train on, if it asks or is told without asking."""
        if self.until(trial) is not None:
            del self._asking[trial]
            self._tell(trial, self._reported(trial))
        elif self._is_told(trial):
            reported = self._reported(trial)
            signature = [(one.checkpoint.path, one.status.value) for one in reported]
            actor = self._tune._trial_to_actor[trial]
            if self._told.get(actor) != signature:
                alive = self._tune._actor_to_trial.keys()
                self._told = {one: self._told[one] for one in alive & self._told.keys()}
                self._told[actor] = signature
                self._tell(trial, reported)

    def _is_told(self, trial: Trial) -> bool:
        name = trial.trainable_name
        if name not in self._asks:
            self._asks[name] = asks(trial.get_trainable_cls())
        return self._asks[name]

    def _tell(self, trial: Trial, reported: list[train.ReportedCheckpoint]) -> None:
        self._tune._schedule_trial_task(trial, "__ray_call__", args=(tell, reported))

    # The answer --------------------------------------------------------------------------------

    def _reported(self, trial: Trial) -> list[train.ReportedCheckpoint]:
        """Return the checkpoints that led to a trial's weights and still exist, oldest first."""
        state, trial_id = self._tune.sweep.state, trial.trial_id
        found: dict[tuple[int, int, int], train.ReportedCheckpoint] = {}
        line = state.ancestry.line(trial_id)
        trials = {one.trial_id: one for one in self._tune._trials} if line else {}
        parts = [(trials.get(e.donor_id), e.donor_generation, e.iteration) for e in line]
        parts.append((trial, state.ancestry.generation(trial_id), math.inf))
        for n, (ancestor, generation, upto) in enumerate(parts):
            for key, checkpoint, metrics in self._checkpoints(ancestor):
                if key.generation == generation and key.iteration <= upto:
                    at = (n, key.iteration, key.run)
                    own = self._own(key, metrics)
                    found[at] = train.ReportedCheckpoint(checkpoint, own, self._status(key))
        return [found[at] for at in sorted(found)]

    def _own(self, key: ValidationKey, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was reported, merged with the score if there is one."""
        sweep = self._tune.sweep
        own = {name: metrics[name] for name in user_metrics(metrics) if name not in sweep.names}
        history = sweep.state.history
        scored = history.score_at(key) if history.is_newest(key) else None
        return {**own, **(scored or {}), ITERATION: key.iteration}

    def _checkpoints(
        self, trial: Trial | None
    ) -> Iterator[tuple[ValidationKey, Any, dict[str, Any]]]:
        """Yield the checkpoints that Tune has of a trial, and those that are in its queue."""
        if trial is None:
            return
        sweep, trial_id = self._tune.sweep, trial.trial_id
        manager = LeasingCheckpointManager.of(trial, sweep.state.leases)
        manager.prune()  # what is deleted next is not there
        for saved in manager._checkpoint_results:
            metrics = dict(saved.metrics)
            if GENERATION in metrics:
                place = metrics[GENERATION], metrics[ITERATION], metrics[RUNS]
                yield ValidationKey(trial_id, *place), saved.checkpoint, metrics
        for report in sweep.queue_of(trial_id):
            if report.checkpoint is not None:
                metrics = sweep.result(trial_id, report)
                yield sweep.key(trial_id, report), report.checkpoint, metrics

    def _status(self, key: ValidationKey) -> train.ReportedCheckpointStatus:
        state = self._tune.sweep.state
        if str(key) in state.unfinished:
            return _PENDING
        return _STATUS.get(state.outcome_of(key) or "", train.ReportedCheckpointStatus.COMMITTED)
