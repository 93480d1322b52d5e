"""From a report and its checkpoint to the request for validation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ray import train, tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit._ray.checkpoints import latest_checkpoint, saved_results
from tunekit._ray.storage import exists
from tunekit.config import ValidationConfig
from tunekit.core.engine import Engine
from tunekit.core.events import CheckpointSaved, Event, Reported, ValidationKey
from tunekit.core.failures import gone
from tunekit.core.history import GENERATION
from tunekit.core.reports import own_names, received
from tunekit.core.validation import Request
from tunekit.core.values import same
from tunekit.pickles import portable
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.scheduling.waiting import Waiting
from tunekit.training import VALIDATION_KEY, ValidationOverride, override_of
from tunekit.validating.validator import Validator

__all__ = ["Requests", "receive"]

logger = logging.getLogger(__name__)


def receive(trial: Trial, result: dict[str, Any]) -> None:
    """Convert a report, or a saved part of one, into a form for Tune and the journal, in place."""
    iteration = (trial.last_result or {}).get(TRAINING_ITERATION, 0) + 1
    _become(result, received(result, iteration, portable, keep=("config", VALIDATION_KEY)))


class Requests:
    """Record reports and checkpoints, and request the validations that are owed.

    Args:
        config: The settings.
        engine: The state of the sweep.
        trials: Its trials; others may be added.
        validator: Runs the validations.
        user_scheduler: The scheduler, which uses some scores.
        waiting: Decides whether scores that no decision depends on are optional.
    """

    def __init__(
        self,
        config: ValidationConfig,
        engine: Engine,
        trials: Mapping[str, Trial],
        validator: Validator,
        user_scheduler: UserScheduler,
        waiting: Waiting,
    ):
        self._config, self._engine, self._trials = config, engine, trials
        self._validator, self._user_scheduler, self._waiting = validator, user_scheduler, waiting
        # The request for validation in each trial's newest report, and the report's iteration.
        self._overrides: dict[str, tuple[int, ValidationOverride]] = {}

    def reported(self, trial: Trial, report: dict[str, Any]) -> Reported:
        """Return the event of a report, after removing its request for validation."""
        trial_id, step = trial.trial_id, report[TRAINING_ITERATION]
        wanted, problem = override_of(report.pop(VALIDATION_KEY, None))
        if problem:
            logger.warning("Trial %s, iteration %d: %s", trial_id, step, problem)
        self._overrides[trial_id] = (step, wanted)
        if wanted:
            report[SHOULD_CHECKPOINT] = True
        _become(report, own_names(report, self._engine.history.names))
        report[GENERATION] = self._engine.ancestry.generation(trial_id)
        proxy = self._user_scheduler.proxies.of(trial)
        offered, proxy.offered = proxy.offered, False  # not if Tune ends the trial by itself
        serves = proxy.serves if offered else self._user_scheduler.serves(trial, report)
        return Reported(trial_id=trial_id, report=report, offered=offered, serves=serves)

    def saved(self, trial: Trial) -> CheckpointSaved | None:
        """Return the event of a trial's newest checkpoint, if it is new."""
        newest, record = latest_checkpoint(trial), self._engine.record(trial.trial_id)
        foreign = newest is not None and TRAINING_ITERATION not in newest[1]  # a former sweep's
        if newest is None or foreign or record.clone == newest[0].path:
            return None  # nothing was saved: it is still what the trial was restored from
        newest[1].pop(VALIDATION_KEY, None)  # Tune keeps it with the checkpoint
        saved = self._saved(trial, *newest)
        same_again = record.saved == (*saved.place, saved.run)
        return None if same_again else saved

    def saved_unrecorded(self, trial: Trial, known: set[str]) -> Iterator[Event]:
        """Yield the events of a trial's checkpoints that are missing at the end of the journal.

        Args:
            trial: The trial.
            known: The paths of the checkpoints in the journal.
        """
        trial_id = trial.trial_id
        for checkpoint, report in saved_results(trial):
            own = self._engine.ancestry.generation(trial_id)
            if checkpoint.path in known or report.get(GENERATION, 0) != own:
                continue
            last = self._engine.record(trial_id).report or {}
            if last.get(TRAINING_ITERATION, 0) < report[TRAINING_ITERATION]:
                yield Reported(trial_id=trial_id, report=report, offered=True)
            yield self._saved(trial, checkpoint, report)

    def _saved(self, trial: Trial, checkpoint: Any, report: Mapping[str, Any]) -> CheckpointSaved:
        """Return the event of a checkpoint.

        Of the arguments of its validation, it contains only those in the report: the sweep's own
        may be large, and may differ in a restored sweep.
        """
        trial_id, step, engine = trial.trial_id, report[TRAINING_ITERATION], self._engine
        generation, record = engine.ancestry.generation(trial_id), engine.record(trial_id)
        run = engine.history.run_of(trial_id, step, generation)
        of, override = self._overrides.get(trial_id, (None, None))
        override = override if of == step else None
        own = override if isinstance(override, train.ValidationTaskConfig) else None
        stored = {**own_names(report, engine.history.names), GENERATION: generation}
        last = {**(record.report or {})}
        last.pop(SHOULD_CHECKPOINT, None)  # Tune stores it without
        used = record.used and last.get(TRAINING_ITERATION) == step
        used = used or bool(trial.last_result.get(DONE))
        return CheckpointSaved(
            trial_id=trial_id,
            id=str(ValidationKey(trial_id, generation, step, run)),
            generation=generation,
            iteration=step,
            run=run,
            checkpoint=checkpoint.path,
            report=None if same(stored, last) else stored,
            wish=None if override is None else bool(override),
            used=used,
            optional=not used and override is None and self._waiting.leaves_out(trial),
            kwargs=(own and own.fn_kwargs) or {},
            timeout_s=own and own.timeout_s,
        )

    def validate(self, request: Request, *, again: bool = False) -> None:
        """Run a validation that is recorded.

        Args:
            request: The validation.
            again: Whether an earlier session recorded it: the checkpoint may be gone.
        """
        filesystem = self._trials[request.trial_id].storage.storage_filesystem
        if again and not exists(filesystem, request.path):
            self._validator.give_up(request, gone(request.path))
            return
        own = self._config.task_config
        ready = replace(
            request,
            checkpoint=tune.Checkpoint(request.path, filesystem),
            kwargs={**(own.fn_kwargs or {}), **request.kwargs},
            timeout_s=own.timeout_s if request.timeout_s is None else request.timeout_s,
        )
        self._validator.submit(ready)


def _become(result: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Replace the items of a report in place, as Tune has a reference to it."""
    if other is not result:
        result.clear()
        result.update(other)
