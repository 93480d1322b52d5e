"""Detect why a sweep cannot be ranked, and decide how it ends."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit.config import ValidationConfig
from tunekit.core.events import SessionCutShort, ValidationEnded
from tunekit.core.failures import FailureNotice, Failures, format_checkpoint
from tunekit.core.metrics import flatten, format_names, user_metrics
from tunekit.core.signatures import function_name
from tunekit.core.values import format_value
from tunekit.driver.ledger import Ledger
from tunekit.errors import MetricNotFoundError, TunekitError
from tunekit.messages.advice import NO_CHECKPOINT, checkpoint_advice, metric_advice, trainer_advice
from tunekit.messages.failed_validations import (
    FailureText,
    describe_failure,
    failure_error,
    log_failure,
    log_summaries,
)
from tunekit.policies import CheckpointPolicy

logger = logging.getLogger(__name__)

_HOW_TO_CONTINUE = (
    "continue with tunekit.Tuner.restore(path, trainable, validation_config=...), which validates "
    "these checkpoints again"
)


class SweepOutcome:
    """Report failed validations and sweeps with nothing to validate; decide how a sweep ends.

    Args:
        config: The settings.
        ledger: The sweep's records.
    """

    def __init__(self, config: ValidationConfig, ledger: Ledger):
        self._config, self._ledger, self._state = config, ledger, ledger.state
        #: The error that the sweep ends with, if any.
        self.error: TunekitError | None = None
        # The trials that the time budget or ``fail_fast`` has stopped; None if neither has.
        self._cut: set[str] | None = None
        # Whether the sweep was over at the end of the last step: Tune then takes no more steps.
        self.ended_by_itself = False
        self._last: FailureText | None = None
        # Until a checkpoint is saved: whether any trial has reported, or has ended.
        self._has_reported = self._has_ended = False
        self._how_to_save = NO_CHECKPOINT
        self._has_logged_unranked = False

    def end(self, error: TunekitError | None) -> None:
        """End the sweep with an error, if there is one, at the end of the current step."""
        self.error = self.error or error

    # Failed validations -------------------------------------------------------------------------

    def failed(self, event: ValidationEnded, notice: FailureNotice | None) -> None:
        """Report a validation without a score; end the sweep if it cannot continue without one.

        Args:
            event: Its end.
            notice: How to report a failure; None if it was skipped.
        """
        if notice is None:
            key = event.key
            place = format_checkpoint(key.trial_id, key.iteration, key.generation)
            logger.info("The validation of %s was skipped: %s", place, event.reason)
            return
        self._last = describe_failure(event)
        error = failure_error(
            event,
            notice,
            raises=self._config.on_failure == "raise",
            function=function_name(self._config.fn),
            how_to_continue=_HOW_TO_CONTINUE,
        )
        if error is None:
            log_failure(event, notice)
        self.end(error)

    def log_unranked(
        self, trial_id: str, iteration: int, result: Mapping[str, Any], *, ends: bool
    ) -> None:
        """Log a result without a score; end the sweep if all lack one and ``ends`` is set."""
        state, result = self._state, flatten(result)
        lacks, names = state.lacks(result), state.history.names
        missing = [name for name in lacks if name not in result]
        if missing and not state.has_decided and names.keys().isdisjoint(missing):
            if ends:
                self.end(MetricNotFoundError(metric_advice(missing, names, result)))
            return
        # NaN is usual at the first checkpoints, before an episode has ended.
        level = logging.INFO if self._has_logged_unranked else logging.WARNING
        self._has_logged_unranked = True
        logger.log(
            level,
            "Trial %s has no score at iteration %d, so it is not ranked by that iteration: %s.",
            trial_id,
            iteration,
            ", ".join(
                f"{name!r} is {format_value(result[name])}"
                if name in result
                else f"{name!r} is missing"
                for name in lacks
            ),
        )

    # Nothing to validate ------------------------------------------------------------------------

    def reported(self, trial: Trial, report: Mapping[str, Any], callbacks: Collection[Any]) -> None:
        """Record a report; at the first one, warn if nothing requests checkpoints to validate."""
        if self._state.has_saved:
            return
        first, self._has_reported = not self._has_reported, True
        advice = None
        if self._how_to_save is NO_CHECKPOINT:
            advice = trainer_advice(report)
            self._how_to_save = advice or NO_CHECKPOINT
        if advice is None and first:
            policies = any(
                isinstance(callback, CheckpointPolicy) and callback.applies(trial)
                for callback in callbacks
            )
            advice = _nobody_saves(trial, report, self._state.required, policies=policies)
        if advice is not None:
            logger.warning("%s", advice)

    def ended(self, trial: Trial) -> None:
        """Record the end of a trial; at the first one, warn if no trial has saved a checkpoint."""
        if self._state.has_saved or self._has_ended or not trial.last_result:
            return
        self._has_ended = True
        if self._how_to_save is NO_CHECKPOINT:  # otherwise, it was already logged
            why = checkpoint_advice(NO_CHECKPOINT)
            logger.warning("Trial %s has ended. %s", trial.trial_id, why)

    # The end of the sweep ----------------------------------------------------------------------

    def record_cut_short(self, trials: list[Trial]) -> None:
        """Record the trials that a time budget or ``fail_fast`` has stopped.

        Call it before Tune saves them as ended; a restore continues them.
        """
        stopped = {trial.trial_id for trial in trials if trial.status == Trial.TERMINATED}
        new = stopped - self._state.ended - (self._cut or set())
        if self._cut is None or new:
            self._cut = (self._cut or set()) | new
            self._ledger.record(SessionCutShort(trial_ids=sorted(new)))

    def has_ended(self, to_come: int) -> bool:
        """Return whether the sweep has ended; False if it was interrupted.

        Args:
            to_come: How many trials the search algorithm has yet to create.
        """
        ended = self.ended_by_itself and self.error is None
        return ended and (self._cut is None or not (self._cut or to_come))

    def conclude(self, trials: Sequence[Trial], failures: Failures) -> None:
        """Log the remaining failures; end with an error if the sweep cannot be ranked."""
        log_summaries(failures.summaries())
        reported = {name for trial in trials for name in flatten(trial.last_result)}
        missing = sorted(self._state.required - reported)
        unscored = sorted(self._state.unscored)
        if unscored:
            logger.error(
                "No trial has a score, so there is no best trial: each validation of this sweep "
                "returned NaN or infinity for %s. Return a finite number in %s.",
                " and ".join(map(repr, unscored)),
                function_name(self._config.fn),
            )
        if missing and not self._state.history.names and self._last is not None:
            said, trace = self._last
            logger.error(
                "No trial has a validated %s, so there is no best trial: no validation of this "
                "sweep has succeeded. %s Fix %s and run the sweep again.%s",
                " or ".join(map(repr, missing)),
                said,
                function_name(self._config.fn),
                trace,
            )
        # Trials that failed or were cut short may have ended before they could save.
        ended = [
            trial.last_result
            for trial in trials
            if trial.status == Trial.TERMINATED
            and trial.trial_id not in (self._cut or ())
            and TRAINING_ITERATION in trial.last_result
        ]
        if self._state.has_saved or not missing or not ended:
            return
        shown = user_metrics({name for report in ended for name in flatten(report)})
        failed = sum(trial.status == Trial.ERROR for trial in trials)
        also = f" {failed} trial{'s' * (failed > 1)} failed before that." if failed else ""
        message = (
            f"The sweep ranks by {format_names(missing)}, which training does not report (it "
            f"reported {format_names(shown, missing)}). "
            f"{checkpoint_advice(self._how_to_save)}{also}"
        )
        self.end(MetricNotFoundError(message))


def _nobody_saves(
    trial: Trial, report: Mapping[str, Any], required: Collection[str], *, policies: bool
) -> str | None:
    """Return a warning if it seems that nothing will be validated; None otherwise.

    The warning is wrong if a trial reports a checkpoint later.

    Args:
        trial: A trial that has reported.
        report: Its report, after the checkpoint policies have processed it.
        required: The metrics that the sweep uses.
        policies: Whether there is a checkpoint policy.
    """
    missing = sorted(set(required) - flatten(report).keys())
    asked = policies or trial.checkpoint_freq or trial.checkpoint_at_end
    if not missing or asked or report.get(SHOULD_CHECKPOINT):
        return None
    names = ", ".join(map(repr, missing))
    later = "" if report.get(DONE) else " If it reports checkpoints later, ignore this."
    return (
        f"Trial {trial.trial_id} has reported neither {names}, which the sweep uses, nor a "
        "checkpoint to validate, and nothing requests one. Pass, for example, "
        "checkpoint_policy=tunekit.EveryIterations(1), and in a function register how to save "
        "with tunekit.checkpoint_with(save); or report checkpoints yourself, with "
        f"report(metrics, checkpoint=...).{later}"
    )
