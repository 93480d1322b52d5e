"""Run a function on checkpoints, for scores that no decision waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tunekit._ray.storage import exists
from tunekit.config import ValidationConfig
from tunekit.core.events import Event, ValidationRequested
from tunekit.core.failures import Failures, gone, place_of
from tunekit.core.validation import Outcome, Request, Status
from tunekit.validating.validator import Around, Validator

logger = logging.getLogger(__name__)

_GIVEN_UP = "was given up, because the first ones had failed alike"


class Source(Around):
    """Supply checkpoints to an evaluation; this base class supplies each of a fixed set once.

    Args:
        requests: The validation requests.
    """

    #: Whether a later session continues the validations that this one leaves unfinished.
    continues = False
    #: Records an event; set by the evaluation.
    emit: Callable[[Event], None]

    def __init__(self, requests: Sequence[Request] = ()):
        self._requests = requests

    def wanted(self) -> Sequence[Request]:
        """Return the requests that must end; earlier ones may be among them."""
        return self._requests

    def over(self) -> bool:
        """Return whether no more requests will come."""
        return True

    def recorded(self, event: Event) -> None:
        """Handle an event that has been recorded."""

    def unfinished(self) -> Sequence[Request]:
        """Return the requests of an earlier session in the same journal that have not ended."""
        return ()

    def take(self, outcome: Outcome) -> Outcome:
        """Return the outcome to record for a validation that has ended."""
        return outcome


class Evaluation(Validator):
    """Run a function on the checkpoints of a source, and record the outcomes.

    If the first validations fail alike, the function is considered broken, and the evaluation
    is given up.

    Args:
        config: The function, its resources and its limits.
        *where: As for :class:`~tunekit.validating.validator.Validator`.
        source: The checkpoints.
        emit: Records an event; called before the event is acted on.
        gives_up: Whether to give up when the first validations fail alike.
        **options: As for :class:`~tunekit.validating.validator.Validator`.
    """

    # The prefix of log messages.
    _of = ""

    def __init__(
        self,
        config: ValidationConfig,
        *where: Any,
        source: Source,
        emit: Callable[[Event], None],
        gives_up: bool = True,
        **options: Any,
    ):
        super().__init__(config, *where, emit=emit, around=source, **options)
        self._source, source.emit = source, emit
        self._asked: set[str] = set()
        self._failures = Failures(gives_up=gives_up)
        #: The failure for which the function is considered broken, if any.
        self.broken_by: Outcome | None = None

    def ask(self, *, again: bool = False) -> bool:
        """Submit the requests of the source; return whether any is new.

        Args:
            again: Whether the evaluation was interrupted: earlier requests then run again, and
                their checkpoints may be gone.
        """
        if self.broken_by is not None and self._source.continues:
            return False  # the rest is left for a function that works
        left = self._source.unfinished() if again else ()
        new = [one for one in self._source.wanted() if one.id not in self._asked]
        self._asked.update(request.id for request in new)
        for request in new:
            self._emit(ValidationRequested.of(request))
        for request in [*left, *new]:
            if again and not is_there(request):
                self.give_up(request, gone(request.path))
            else:
                self.submit(request)
        return bool(new)

    def submit(self, request: Request) -> None:
        """Validate a checkpoint, unless the function is considered broken."""
        if self.broken_by is None:
            super().submit(request)
        else:
            self.give_up(request, _GIVEN_UP)

    def succeeded(self) -> None:
        """Record that a validation has succeeded, so the function is not considered broken."""
        self._failures.succeeded()

    def drop_all(self, why: str) -> None:
        """End all validations that have not ended."""
        for trial_id in {request.trial_id for request in self.pending()}:
            self.drop(trial_id, why)

    def close(self) -> None:
        """Log the failures that were only counted, and cancel unfinished validations."""
        for more in () if self.broken_by is not None else self._failures.rest():
            logger.warning("%sValidations have failed: %s.", self._of, more)
        super().close()

    def given_up(self, outcome: Outcome) -> None:
        """Handle the failure for which the function is considered broken."""

    def _conclude(self, outcome: Outcome) -> None:
        """Record the outcome of a validation, and act on it."""
        outcome = self._source.take(outcome)
        failed = outcome.status in (Status.FAILED, Status.TIMED_OUT)
        if failed and not is_there(outcome.request):
            outcome = replace(outcome, reason=gone(outcome.request.path), error=None)
        super()._conclude(outcome)
        if outcome.validated:
            self.succeeded()
        elif failed and self.broken_by is None:
            self._failed(outcome)

    def _failed(self, outcome: Outcome) -> None:
        """Log or count a failure; give up if there are too many."""
        request, reason = outcome.request, outcome.reason or "failed"
        place = place_of(request.trial_id, request.iteration, request.generation)
        trace = f"\n{outcome.error}" if outcome.error else ""
        verdict = self._failures.failed(place, reason)
        if verdict.hopeless:
            self.broken_by = outcome
            self.drop_all(_GIVEN_UP)
            self.given_up(outcome)
        elif verdict.first:
            the = f"{self._of}the" if self._of else "The"
            logger.warning("%s validation of %s failed: it %s.%s", the, place, reason, trace)
        if verdict.more is not None:
            logger.warning("%sValidations have failed: %s.", self._of, verdict.more)


def is_there(request: Request) -> bool:
    """Return whether a checkpoint is still in the storage; True if the storage fails."""
    try:
        return exists(request.checkpoint.filesystem, request.checkpoint.path)
    except OSError:
        return True  # the function will find out
