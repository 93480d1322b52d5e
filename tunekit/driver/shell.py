"""Carry out what follows from the facts of a sweep."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import delete_checkpoint
from tunekit._ray.validating_controller import ValidatingController
from tunekit.core.commands import (
    Advance,
    Cancel,
    Command,
    Delete,
    Inspect,
    Notify,
    NotifyStarved,
    NotifyUnranked,
    Record,
    Release,
    Save,
    Start,
    StartAgain,
    Stay,
    Stop,
    Train,
    Validate,
)
from tunekit.core.events import ValidationEnded
from tunekit.core.sweep import Sweep
from tunekit.driver.ledger import Ledger
from tunekit.driver.sweep_outcome import SweepOutcome
from tunekit.messages.advice import resources_advice
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

#: Why a validation is skipped after a decision on an older report has made it obsolete.
VOID = "its trial does not continue from there"


class Shell:
    """Carry out a sweep's commands, in order; what arises from one comes before the next.

    Args:
        ledger: The sweep's records.
        sweep: Says what follows from a fact.
        validator: Runs the validations.
        outcome: Tells the user what is wrong, and decides how the sweep ends.
        controller: The sweep's controller.
        trials: The trials so far, by ID.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        sweep: Sweep,
        validator: Validator,
        outcome: SweepOutcome,
        controller: ValidatingController,
        trials: Mapping[str, Trial],
    ):
        self.ledger, self.sweep, self.validator = ledger, sweep, validator
        self.outcome, self.controller, self._trials = outcome, controller, trials

    def do(self, commands: Iterable[Command]) -> None:
        """Carry out commands."""
        for command in commands:
            match command:
                case Record(event):
                    self.ledger.record(event)
                case Save(trial_id, report):
                    self.controller.queues.save(self._trials[trial_id], report)
                case Validate(request):
                    self.end(self.validator.submit(request))
                case Cancel(trial_id):
                    self.end(self.validator.drop(trial_id, VOID))
                case Advance(trial_id):
                    with self.controller.queues.raising_as_tune():
                        self.controller.queues.advance(self._trials[trial_id])
                case Train(trial_id):
                    self.controller.queues.train(self._trials[trial_id])
                case Stay(trial_id, now):
                    self.controller.queues.waiting_in_place[self._trials[trial_id]] = now
                case Release(trial_id):
                    self.controller.queues.release_slot(self._trials[trial_id])
                case StartAgain(trial_id):
                    self.controller.queues.start_again(self._trials[trial_id])
                case Stop(trial_id):
                    self.controller.stop_trial(self._trials[trial_id])
                case Start(attempt, in_trial):
                    host = self._trials[attempt.request.trial_id] if in_trial else None
                    self.validator.start(attempt, host)
                case NotifyStarved(trial_id, trials):
                    logger.warning("%s", resources_advice(trial_id, trials=trials))
                case Delete(checkpoint):
                    self._delete(checkpoint)
                case Inspect(trial_id, report):
                    trial = self._trials[trial_id]
                    self.outcome.reported(trial, report, self.controller.callbacks)
                case Notify(event, notice):
                    self.outcome.failed(event, notice)
                case NotifyUnranked(trial_id, report, result):
                    new = not report.replayed  # otherwise, it has already ended the sweep
                    self.outcome.log_unranked(trial_id, report.iteration, result, ends=new)

    def end(self, ended: Iterable[ValidationEnded]) -> None:
        """Carry out what follows from the ends of validations."""
        for event in ended:
            self.do(self.sweep.ended(event))

    def _delete(self, checkpoint: Any) -> None:
        try:
            delete_checkpoint(checkpoint.filesystem, checkpoint.path)
        except OSError as error:  # an outage of its storage does not end the sweep
            logger.warning(
                "%s could not be deleted: %s. Nothing needs it: delete it yourself.",
                checkpoint.path,
                error,
            )
