"""What a sweep lacks to be judged, as far as its first report shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from tunekit.core.metrics import flatten

__all__ = ["nobody_saves"]


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
