"""Reports what goes wrong with a sweep's validations: early, once, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit.config import ValidationConfig
from tunekit.core.advice import NO_CHECKPOINT, drives_a_trainer, no_trial_has_saved, unknown_metric
from tunekit.core.delivery import Scored
from tunekit.core.engine import Engine
from tunekit.core.failures import HOPELESS, Failures, place_of
from tunekit.core.metric_names import chosen, listed
from tunekit.core.metrics import flatten
from tunekit.core.signatures import name_of
from tunekit.core.validation import Outcome, Status
from tunekit.errors import MetricNotFoundError, TunekitError, ValidationFailedError
from tunekit.policies import CheckpointPolicy

__all__ = ["FailureReports"]

logger = logging.getLogger(__name__)


class FailureReports:
    """Reports validations that fail, and a sweep that has nothing to validate.

    Args:
        config: How validation is set up.
        engine: The state of the sweep.
    """

    def __init__(self, config: ValidationConfig, engine: Engine):
        self._config, self._engine = config, engine
        self._failures = Failures(gives_up=config.on_failure != "ignore")
        # What was said of the last failure, with its traceback.
        self._last: tuple[str, str] | None = None
        # While no checkpoint was saved: whether any trial has reported, or has ended.
        self._has_reported = self._has_ended = False
        self._how_to_save = NO_CHECKPOINT

    # Validations that have failed ---------------------------------------------------------------

    def failed(self, outcome: Outcome) -> ValidationFailedError | None:
        """Report a validation without a score; return why the sweep ends by that, if it does."""
        request, reason = outcome.request, outcome.reason or "failed"
        place = place_of(request.trial_id, request.iteration, request.generation)
        if outcome.status is Status.SKIPPED:
            logger.info("The validation of %s was skipped: %s", place, outcome.reason)
            return None
        how = "failed" if outcome.status is Status.FAILED else "timed out"
        subject = "" if reason.startswith(("it ", "its ")) else "it "
        said = f"The validation of {place} {how}: {subject}{reason}."
        trace = f"\n{outcome.error}" if outcome.error else ""
        self._last = (said, trace)
        if self._engine.history.names:
            self._failures.succeeded()
        verdict = self._failures.failed(place, reason)
        if self._config.on_failure == "raise":
            return ValidationFailedError(
                f"{said} The sweep ends because on_failure='raise'; with on_failure='record' the "
                f"trial would be judged by its other scores.{trace}"
            )
        if verdict.hopeless:
            return ValidationFailedError(
                f"{said} The first {HOPELESS} validations have failed "
                "alike, and none has succeeded, so that no trial can be judged: the sweep ends "
                f"here. All is saved. Correct {name_of(self._config.fn)}, and go on with "
                "tunekit.Tuner.restore(path, trainable, validation_config=...). To go on however "
                "many fail, pass ValidationConfig(on_failure='ignore'). "
                f"The failure:{trace or f' {reason}'}"
            )
        if verdict.first:
            logger.warning("%s%s", said, trace)
        if verdict.more is not None:
            logger.warning("Validations have failed: %s.", verdict.more)
        return None

    def passed_over(self, scored: Scored) -> MetricNotFoundError | None:
        """Log a score that lacks a metric to judge by; return why the sweep ends if all have."""
        engine, result = self._engine, flatten(scored.result)
        missing, names = engine.lacks(result), engine.history.names
        if not engine.has_delivered and names.keys().isdisjoint(missing):
            return MetricNotFoundError(unknown_metric(missing, names, result))
        logger.warning(
            "Trial %s has no %s at iteration %d; it is not judged by that iteration.",
            scored.trial_id,
            ", ".join(map(repr, missing)),
            scored.iteration,
        )
        return None

    # Nothing to validate ------------------------------------------------------------------------

    def reported(self, trial: Trial, report: Mapping[str, Any], callbacks: Collection[Any]) -> None:
        """Take a report; warn at the first if nothing asks for a checkpoint to validate."""
        if self._engine.has_saved:
            return
        first, self._has_reported = not self._has_reported, True
        advice = None
        if self._how_to_save is NO_CHECKPOINT:
            advice = drives_a_trainer(report)
            self._how_to_save = advice or NO_CHECKPOINT
        if advice is None and first:
            policies = any(isinstance(callback, CheckpointPolicy) for callback in callbacks)
            advice = _nobody_saves(trial, report, self._engine.required, policies=policies)
        if advice is not None:
            logger.warning("%s", advice)

    def ended(self, trial: Trial) -> None:
        """Take the end of a trial; say what to write if no trial has saved."""
        if self._engine.has_saved or self._has_ended or not trial.last_result:
            return
        self._has_ended = True
        if self._how_to_save is NO_CHECKPOINT:  # else it was said
            why = no_trial_has_saved(NO_CHECKPOINT)
            logger.warning("Trial %s has ended. %s", trial.trial_id, why)

    def conclude(self, trials: Sequence[Trial], cut_short: Collection[str]) -> TunekitError | None:
        """Report at the sweep's end what was only counted; return why it cannot be judged, if so.

        Args:
            trials: The trials.
            cut_short: Those that were stopped, and continue when the sweep is restored.
        """
        for more in self._failures.rest():
            logger.warning("Validations have failed: %s.", more)
        reported = {name for trial in trials for name in flatten(trial.last_result)}
        missing = sorted(self._engine.required - reported)
        if missing and not self._engine.history.names and self._last is not None:
            said, trace = self._last
            logger.error(
                "No trial has a validated %s, so that there is no best trial: no validation of "
                "this sweep has succeeded. %s Correct %s, and run the sweep again.%s",
                " or ".join(map(repr, missing)),
                said,
                name_of(self._config.fn),
                trace,
            )
        # Those that failed, or were cut short, may have come to nothing before they saved.
        ended = [
            trial.last_result
            for trial in trials
            if trial.status == Trial.TERMINATED
            and trial.trial_id not in cut_short
            and TRAINING_ITERATION in trial.last_result
        ]
        if self._engine.has_saved or not missing or not ended:
            return None
        shown = chosen({name for report in ended for name in flatten(report)})
        failed = sum(trial.status == Trial.ERROR for trial in trials)
        also = f" {failed} trial{'s' * (failed > 1)} failed before." if failed else ""
        return MetricNotFoundError(
            f"The sweep is to be judged by {listed(missing)}, which training does not report (it "
            f"reported {listed(shown, missing)}). {no_trial_has_saved(self._how_to_save)}{also}"
        )


def _nobody_saves(
    trial: Trial, report: Mapping[str, Any], judged: Collection[str], *, policies: bool
) -> str | None:
    """Say that nothing will be validated, if that is how it looks; None if all is well.

    A trial may still report a checkpoint later on: then it was wrong.

    Args:
        trial: A trial that has reported.
        report: What it reported, after the checkpoint policies have looked at it.
        judged: The metrics that the sweep is judged by.
        policies: Whether there is a checkpoint policy.
    """
    missing = sorted(set(judged) - flatten(report).keys())
    asked = policies or trial.checkpoint_freq or trial.checkpoint_at_end
    if not missing or asked or report.get(SHOULD_CHECKPOINT):
        return None
    names = ", ".join(map(repr, missing))
    later = "" if report.get(DONE) else " If it reports checkpoints later on, all is well."
    return (
        f"Trial {trial.trial_id} has reported neither {names}, which the sweep is judged by, nor a "
        "checkpoint to validate, and nothing asks it for one. Pass "
        "checkpoint_policy=tunekit.EveryIterations(1), for example, and in a function register how "
        "to save with tunekit.checkpoint_with(save); or report checkpoints yourself, with "
        f"report(metrics, checkpoint=...).{later}"
    )
