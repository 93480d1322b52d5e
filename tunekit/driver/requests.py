"""Record reports and checkpoints, and request validations."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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

logger = logging.getLogger(__name__)


def receive(trial: Trial, result: dict[str, Any]) -> None:
    """Convert a report, or the report of a save, in place for Tune and the journal."""
    iteration = (trial.last_result or {}).get(TRAINING_ITERATION, 0) + 1
    _become(result, received(result, iteration, portable, keep=("config", VALIDATION_KEY)))


@dataclass(eq=False)
class Requests:
    """Record reports and checkpoints, and request validations.

    Args:
        config: The settings.
        engine: The state of the sweep.
        trials: Its trials; others may be added.
        validator: Runs the validations.
        user_scheduler: The scheduler, which uses some scores.
        waiting: Decides whether every checkpoint is validated.
    """

    config: ValidationConfig
    engine: Engine
    trials: Mapping[str, Trial]
    validator: Validator
    user_scheduler: UserScheduler
    waiting: Waiting
    # The request for validation in each trial's newest report, and the report's iteration.
    _overrides: dict[str, tuple[int, ValidationOverride]] = field(default_factory=dict, init=False)

    def reported(self, trial: Trial, report: dict[str, Any]) -> Reported:
        """Return the event of a report, after removing its request for validation."""
        trial_id, step = trial.trial_id, report[TRAINING_ITERATION]
        wanted, problem = override_of(report.pop(VALIDATION_KEY, None))
        if problem:
            logger.warning("Trial %s, iteration %d: %s", trial_id, step, problem)
        self._overrides[trial_id] = (step, wanted)
        if wanted:
            report[SHOULD_CHECKPOINT] = True
        _become(report, own_names(report, self.engine.history.names))
        report[GENERATION] = self.engine.ancestry.generation(trial_id)
        proxy = self.user_scheduler.proxies.of(trial)
        offered, proxy.offered = proxy.offered, False  # False if Tune ends the trial itself
        serves = proxy.serves if offered else self.user_scheduler.serves(trial, report)
        return Reported(trial_id=trial_id, report=report, offered=offered, serves=serves)

    def saved(self, trial: Trial) -> CheckpointSaved | None:
        """Return the event of a trial's newest checkpoint, if it is new."""
        newest, record = latest_checkpoint(trial), self.engine.record(trial.trial_id)
        foreign = newest is not None and TRAINING_ITERATION not in newest[1]  # a former sweep's
        if newest is None or foreign or record.clone == newest[0].path:
            return None  # nothing was saved: this is still what the trial was restored from
        newest[1].pop(VALIDATION_KEY, None)  # Tune stores the report with the checkpoint
        saved = self._saved(trial, *newest)
        same_again = record.saved == (*saved.place, saved.run)
        return None if same_again else saved

    def saved_unrecorded(self, trial: Trial, known: set[str]) -> Iterator[Event]:
        """Yield the events that the end of the journal lacks for a trial's checkpoints.

        Args:
            trial: The trial.
            known: The paths of the checkpoints in the journal.
        """
        trial_id = trial.trial_id
        for checkpoint, report in saved_results(trial):
            own = self.engine.ancestry.generation(trial_id)
            if checkpoint.path in known or report.get(GENERATION, 0) != own:
                continue
            last = self.engine.record(trial_id).report or {}
            if last.get(TRAINING_ITERATION, 0) < report[TRAINING_ITERATION]:
                yield Reported(trial_id=trial_id, report=report, offered=True)
            yield self._saved(trial, checkpoint, report)

    def _saved(self, trial: Trial, checkpoint: Any, report: Mapping[str, Any]) -> CheckpointSaved:
        """Return the event of a checkpoint.

        It contains only the validation arguments that are in the report, because the sweep's own
        may be large and may differ in a restored sweep.
        """
        trial_id, step, engine = trial.trial_id, report[TRAINING_ITERATION], self.engine
        generation, record = engine.ancestry.generation(trial_id), engine.record(trial_id)
        run = engine.history.run_of(trial_id, step, generation)
        of, override = self._overrides.get(trial_id, (None, None))
        override = override if of == step else None
        own = override if isinstance(override, train.ValidationTaskConfig) else None
        stored = {**own_names(report, engine.history.names), GENERATION: generation}
        last = {**(record.report or {})}
        last.pop(SHOULD_CHECKPOINT, None)  # Tune stores the report without it
        used = record.used and last.get(TRAINING_ITERATION) == step
        used = used or bool(trial.last_result.get(DONE))
        wish = True if self.waiting.wants_all(trial) else None
        wish = wish if override is None else bool(override)
        return CheckpointSaved(
            trial_id=trial_id,
            id=str(ValidationKey(trial_id, generation, step, run)),
            generation=generation,
            iteration=step,
            run=run,
            checkpoint=checkpoint.path,
            report=None if same(stored, last) else stored,
            wish=wish,
            used=used,
            kwargs=(own and own.fn_kwargs) or {},
            timeout_s=own and own.timeout_s,
        )

    def validate(self, request: Request, *, again: bool = False) -> None:
        """Run a validation that is recorded.

        Args:
            request: The validation.
            again: Whether an earlier session recorded it, so that the checkpoint may be gone.
        """
        filesystem = self.trials[request.trial_id].storage.storage_filesystem
        if again and not exists(filesystem, request.path):
            self.validator.give_up(request, gone(request.path))
            return
        own = self.config.task_config
        ready = replace(
            request,
            checkpoint=tune.Checkpoint(request.path, filesystem),
            kwargs={**(own.fn_kwargs or {}), **request.kwargs},
            timeout_s=own.timeout_s if request.timeout_s is None else request.timeout_s,
        )
        self.validator.submit(ready)


def _become(result: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Replace the items of a report in place, because Tune has a reference to it."""
    if other is not result:
        result.clear()
        result.update(other)
