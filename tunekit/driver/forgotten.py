"""What a sweep lacks to be judged: as far as its first report shows, and at its end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit.core.advice import NO_CHECKPOINT, drives_a_trainer, no_trial_has_saved
from tunekit.core.metrics import flatten
from tunekit.core.names import chosen, listed
from tunekit.errors import MetricNotFoundError

__all__ = ["Forgotten", "nobody_saves"]

logger = logging.getLogger(__name__)


class Forgotten:
    """Says, as early as it shows and once, what to write so that there is something to validate.

    Example:
        >>> Forgotten().error([], {"accuracy"}, failed=0) is None  # no trial has come to anything
        True
    """

    def __init__(self) -> None:
        self._has_reported = self._has_warned_at_end = False
        self._how_to_save = NO_CHECKPOINT

    def reported(
        self,
        trial: Trial,
        report: Mapping[str, Any],
        judged: Collection[str],
        *,
        policies: bool,
    ) -> None:
        """Take a report of a sweep that has no checkpoint; see :func:`nobody_saves`."""
        first, self._has_reported = not self._has_reported, True
        advice = None
        if self._how_to_save is NO_CHECKPOINT:
            advice = drives_a_trainer(report)
            self._how_to_save = advice or NO_CHECKPOINT
        if advice is None and first:
            advice = nobody_saves(trial, report, judged, policies=policies)
        if advice is not None:
            logger.warning("%s", advice)

    def ended(self, trial: Trial) -> None:
        """Take the end of a trial of a sweep that has no checkpoint."""
        if not trial.last_result or self._has_warned_at_end:
            return
        self._has_warned_at_end = True
        if self._how_to_save is NO_CHECKPOINT:  # else it was said
            why = no_trial_has_saved(NO_CHECKPOINT)
            logger.warning("Trial %s has ended. %s", trial.trial_id, why)

    def error(
        self, ended: Iterable[Mapping[str, Any]], missing: Collection[str], *, failed: int
    ) -> MetricNotFoundError | None:
        """Return why a sweep cannot be judged that has no checkpoint at its end; None if it can.

        Args:
            ended: The last reports of trials that have ended by themselves. Those that failed, or
                were cut short, may have come to nothing before their first checkpoint.
            missing: The metrics to judge by that no trial has reported.
            failed: How many trials have failed.
        """
        reports = [report for report in ended if TRAINING_ITERATION in report]
        if not missing or not reports:
            return None
        reported = {name for report in reports for name in flatten(report)}
        also = f" {failed} trial{'s' * (failed > 1)} failed before." if failed else ""
        return MetricNotFoundError(
            f"The sweep is to be judged by {listed(sorted(missing))}, which training does not "
            f"report (it reported {listed(chosen(reported), sorted(missing))}). "
            f"{no_trial_has_saved(self._how_to_save)}{also}"
        )


def nobody_saves(
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
