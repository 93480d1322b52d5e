"""Tells the user of validations that fail: early, once, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tunekit.config import ValidationConfig
from tunekit.core.calls import name_of
from tunekit.core.failures import HOPELESS, Failures, place_of
from tunekit.core.validation import Outcome, Status
from tunekit.errors import ValidationFailedError

__all__ = ["FailureReports"]

logger = logging.getLogger(__name__)


class FailureReports:
    """What is said of a sweep's failed validations, and whether it ends for them.

    Args:
        config: How validation is set up.
    """

    def __init__(self, config: ValidationConfig):
        self._config = config
        self._failures = Failures(gives_up=config.on_failure != "ignore")
        self._last: tuple[str, str | None] | None = None

    def note(self, outcome: Outcome, *, succeeded: bool) -> ValidationFailedError | None:
        """Tell of a failure, if it is news; return the error that the sweep ends with, if any.

        Args:
            outcome: How the validation ended.
            succeeded: Whether any validation of the sweep has succeeded.
        """
        request, reason = outcome.request, outcome.reason or "failed"
        place = place_of(request.trial_id, request.iteration, request.generation)
        how = "failed" if outcome.status is Status.FAILED else "timed out"
        subject = "" if reason.startswith(("it ", "its ")) else "it "
        said = f"The validation of {place} {how}: {subject}{reason}."
        trace = f"\n{outcome.error}" if outcome.error else ""
        self._last = (said, outcome.error)
        if succeeded:
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

    def conclude(self, missing: Collection[str], *, succeeded: bool) -> None:
        """Tell at the sweep's end what was only counted, and why there is no best trial.

        Args:
            missing: The metrics to judge by that training has not reported.
            succeeded: Whether any validation has succeeded.
        """
        for more in self._failures.rest():
            logger.warning("Validations have failed: %s.", more)
        if missing and not succeeded and self._last is not None:
            said, trace = self._last
            logger.error(
                "No trial has a validated %s, so that there is no best trial: no validation of "
                "this sweep has succeeded. %s Correct %s, and run the sweep again.%s",
                " or ".join(map(repr, sorted(missing))),
                said,
                name_of(self._config.fn),
                f"\n{trace}" if trace else "",
            )
