"""Runs one function on checkpoints for whose scores no decision waits."""

from __future__ import annotations

import logging
from typing import Any

from tunekit.config import ValidationConfig
from tunekit.core.failures import Failures, place_of
from tunekit.core.validation import Outcome, Request, Status
from tunekit.stage import Stage
from tunekit.validating.validator import Validator

__all__ = ["Evaluation"]

logger = logging.getLogger(__name__)

_GIVEN_UP = "was given up: the first ones had failed alike"


class Evaluation(Validator):
    """A function with its pool of validations, which is given up if it is broken.

    Args:
        config: The function, its resources and its limits.
        *where: As of :class:`~tunekit.validating.validator.Validator`.
        gives_up: Whether it is given up when the first validations have failed alike.
        **options: As of :class:`~tunekit.validating.validator.Validator`.
    """

    def __init__(
        self, config: ValidationConfig | Stage, *where: Any, gives_up: bool = True, **options: Any
    ):
        super().__init__(config, *where, **options)
        self._of = f"Stage {config.name!r}: " if isinstance(config, Stage) else ""
        self._failures = Failures(gives_up=gives_up)
        #: The failure by which the function is considered broken, if it is.
        self.broken_by: Outcome | None = None

    def submit(self, request: Request) -> None:
        """Validate a checkpoint, unless the function is considered broken."""
        if self.broken_by is None:
            super().submit(request)
        else:
            self.give_up(request, _GIVEN_UP)

    def succeeded(self) -> None:
        """Note that a validation has succeeded, so that the function is not given up any more."""
        self._failures.succeeded()

    def failed(self, outcome: Outcome) -> bool:
        """Log or count a failure; return whether the function is given up by it."""
        if self.broken_by is not None or outcome.status is Status.SKIPPED:
            return False
        request, reason = outcome.request, outcome.reason or "failed"
        place = place_of(request.trial_id, request.iteration, request.generation)
        verdict = self._failures.failed(place, reason)
        if verdict.hopeless:
            self.broken_by = outcome
            self.drop_all(_GIVEN_UP)
        elif verdict.first:
            trace = f"\n{outcome.error}" if outcome.error else ""
            said = f"the validation of {place} failed: it {reason}.{trace}"
            logger.warning("%s", f"{self._of}{said}" if self._of else f"The{said[3:]}")
        if verdict.more is not None:
            logger.warning("%sValidations have failed: %s.", self._of, verdict.more)
        return verdict.hopeless

    def drop_all(self, why: str) -> None:
        """End all validations that have not ended."""
        for trial_id in {request.trial_id for request in self.pending()}:
            self.drop(trial_id, why)

    def conclude(self) -> None:
        """Log at the end the failures that were only counted."""
        for more in () if self.broken_by is not None else self._failures.rest():
            logger.warning("%sValidations have failed: %s.", self._of, more)
