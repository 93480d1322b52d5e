"""Tell users of failed validations: which end everything, and which are only logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from tunekit.core.events import ValidationEnded
from tunekit.core.failures import HOPELESS, FailureNotice, format_checkpoint
from tunekit.core.validation import Status
from tunekit.errors import ValidationFailedError

logger = logging.getLogger(__name__)


class FailureText(NamedTuple):
    """A failure in words.

    Attributes:
        said: What has failed, and why.
        trace: The traceback, on lines of its own; empty if there is none.
    """

    said: str
    trace: str


def describe_failure(event: ValidationEnded) -> FailureText:
    """Return a failed validation in words.

    Example:
        >>> describe_failure(ValidationEnded(id="a:0:3:1", status="failed", reason="raised ..."))
        FailureText(said='The validation of a@3 failed: it raised ....', trace='')
    """
    key, reason = event.key, event.reason or "failed"
    place = format_checkpoint(key.trial_id, key.iteration, key.generation)
    how = "failed" if event.status == Status.FAILED.value else "timed out"
    subject = "" if reason.startswith(("it ", "its ")) else "it "
    trace = f"\n{event.error}" if event.error else ""
    return FailureText(f"The validation of {place} {how}: {subject}{reason}.", trace)


def failure_error(
    event: ValidationEnded,
    notice: FailureNotice,
    *,
    raises: bool,
    function: str,
    how_to_continue: str,
) -> ValidationFailedError | None:
    """Return the error that ends everything after a failure; None if it goes on.

    Args:
        event: The failure.
        notice: How to report it.
        raises: Whether the user wants to end at the first failure.
        function: The name of the validation function.
        how_to_continue: What to do once the function is correct.
    """
    said, trace = describe_failure(event)
    if raises:
        why = "on_failure='raise'; with 'record', other validations would go on"
    elif notice.hopeless:
        why = f"the first {HOPELESS} validations failed in this way, and none has succeeded"
        trace += " To continue however many fail, pass ValidationConfig(on_failure='ignore')."
    else:
        return None
    return ValidationFailedError(
        f"{said} This ends everything, because {why}. What has ended is recorded. Correct "
        f"{function}, and {how_to_continue}.{trace}"
    )


def log_failure(event: ValidationEnded, notice: FailureNotice) -> None:
    """Log the first failure of a kind in full, and count the others."""
    if notice.first:
        logger.warning("%s%s", *describe_failure(event))
    if notice.more is not None:
        log_summaries([notice.more])


def log_summaries(summaries: Iterable[str]) -> None:
    """Log messages about failures that were only counted."""
    for more in summaries:
        logger.warning("Validations have failed: %s.", more)
