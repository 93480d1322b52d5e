"""What to write so that a trial's checkpoints can be validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NO_CHECKPOINT", "drives_a_trainer", "no_trial_has_saved"]

#: Under which key ``ray.tune.integration.ray_train.TuneReportCallback`` reports where the workers
#: of a trainer have put a checkpoint; Tune does not get the checkpoint.
CHECKPOINT_PATH = "checkpoint_path"

NO_CHECKPOINT = (
    "Report checkpoints with tune.report(metrics, checkpoint=...), or register how to save with "
    "tunekit.checkpoint_with(save) and pass a checkpoint_policy."
)

_HAND_OVER = (
    "Hand the trainer itself over, and its checkpoints are the trial's:\n"
    "    tunekit.Tuner(TorchTrainer(train_loop, scaling_config=...),\n"
    '                  param_space={"train_loop_config": {...}}, ...)\n'
    "or, if more than that depends on the trial,\n"
    "    tunekit.Tuner(tunekit.TrainerFactory(lambda config: TorchTrainer(...)), ...)"
)


def drives_a_trainer(report: Mapping[str, Any]) -> str | None:
    """Return what to write instead of a function that runs a trainer; None if a report is no such.

    Example:
        >>> print(drives_a_trainer({"loss": 0.5, "checkpoint_path": "/results/checkpoint_1"}))
        checkpoint_path='/results/checkpoint_1' in a report, without a checkpoint: the function runs
        a trainer of Ray Train's, and reports with TuneReportCallback, so that no checkpoint comes
        to Tune. Hand the trainer itself over, and its checkpoints are the trial's:
            tunekit.Tuner(TorchTrainer(train_loop, scaling_config=...),
                          param_space={"train_loop_config": {...}}, ...)
        or, if more than that depends on the trial,
            tunekit.Tuner(tunekit.TrainerFactory(lambda config: TorchTrainer(...)), ...)
        >>> drives_a_trainer({"loss": 0.5, "should_checkpoint": True, "checkpoint_path": "a"})
    """
    path = report.get(CHECKPOINT_PATH)
    if not isinstance(path, str) or report.get("should_checkpoint"):
        return None
    return (
        f"{CHECKPOINT_PATH}={path!r} in a report, without a checkpoint: the function runs a "
        "trainer of Ray Train's, and reports with TuneReportCallback, so that no checkpoint comes "
        f"to Tune. {_HAND_OVER}"
    )


def no_trial_has_saved(advice: str) -> str:
    """Return why nothing was validated, and what to do about it.

    Example:
        >>> no_trial_has_saved("Save.")
        'No trial has saved a checkpoint, so that nothing was validated. Save.'
    """
    return f"No trial has saved a checkpoint, so that nothing was validated. {advice}"
