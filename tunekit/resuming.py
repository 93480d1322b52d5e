"""Warns before a sweep starts if a function will be resumed but seems not to support that."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ray.tune.schedulers import PopulationBasedTrainingReplay

from tunekit._ray.decisions import innermost
from tunekit._ray.functions import function_of
from tunekit._ray.tuner import Settings
from tunekit.combinations import pauses
from tunekit.config import ValidationConfig
from tunekit.core.resuming import HOW_TO_RESUME, saves_without_resuming

__all__ = ["warn_of_beginning_anew"]

logger = logging.getLogger(__name__)


def warn_of_beginning_anew(
    settings: Settings, scheduler: object, validation: ValidationConfig | None
) -> None:
    """Warn if trials will be resumed and the function seems to save but never to resume.

    Without validation, Tune lets a function that saves by itself begin anew.

    Args:
        settings: What the sweep will run with.
        scheduler: The scheduler, without a wrapper.
        validation: How it validates; None if it does not.
    """
    function = function_of(settings.trainable)
    reasons = list(_reasons(settings, scheduler, validation))
    if function is None or not reasons:
        return
    if not saves_without_resuming(function, with_tunekit=validation is None):
        return
    logger.warning(
        "%s saves checkpoints and does not seem to call tune.get_checkpoint(). Trials of this "
        "sweep will have to go on from their checkpoints: %s. One that begins anew instead fails "
        "at its first report. Begin the function with\n%s",
        getattr(function, "__name__", "The training function"),
        "; ".join(reasons),
        HOW_TO_RESUME,
    )


def _reasons(
    settings: Settings, scheduler: object, validation: ValidationConfig | None
) -> Iterator[str]:
    """Yield why trials of a sweep will be resumed; nothing if none will be unless disturbed."""
    on_pending = "continue" if validation is None else validation.on_pending
    if on_pending != "continue" and settings.tune_config.reuse_actors:
        yield f"on_pending={on_pending!r} resumes a trial when its score is there"
    elif on_pending == "wait":
        yield "on_pending='wait' pauses trials where validations get no resources otherwise"
    decides = innermost(scheduler)
    if pauses(scheduler) or isinstance(decides, PopulationBasedTrainingReplay):
        yield f"{type(decides).__name__} pauses or overwrites trials"
    if decides is not scheduler:
        yield f"{type(scheduler).__name__} starts trials anew"
    failures = settings.run_config.failure_config.max_failures
    if failures:
        yield f"FailureConfig(max_failures={failures}) restarts trials that fail"
    if settings.restored:
        yield "it is restored"
