"""Runs one function on checkpoints for whose scores no decision waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunekit._ray.storage import exists
from tunekit.clock import Clock
from tunekit.config import ValidationConfig
from tunekit.core.calls import name_of
from tunekit.core.estimates import Estimate
from tunekit.core.events import Event, ValidationEnded, ValidationRequested
from tunekit.core.failures import HOPELESS, Failures, gone, place_of
from tunekit.core.validation import Outcome, Request, Status
from tunekit.stage import Stage
from tunekit.validating.cache import ValidationCache
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Around, Validator

__all__ = ["Evaluation", "Source"]

logger = logging.getLogger(__name__)

_GIVEN_UP = "was given up: the first ones had failed alike"


class Source(Around):
    """Where an evaluation has its checkpoints from, and what goes on around: here, some, once each.

    Args:
        requests: The requests to validate them.
    """

    def __init__(self, requests: Sequence[Request] = ()):
        self._requests = requests

    def wanted(self) -> Sequence[Request]:
        """Return what has to end; what was returned before may be among it."""
        return self._requests

    def unfinished(self) -> Sequence[Request]:
        """Return what a former session has requested, in the same journal."""
        return ()

    def take(self, outcome: Outcome) -> Outcome:
        """Take how a validation ended; return what to record."""
        return outcome


class Evaluation(Validator):
    """Requests what a source wants, runs a function on it, and records how that ends.

    It is given up if the first validations have failed alike: the function is broken.

    Args:
        config: The function, its resources and its limits.
        executor: Where validations run.
        clock: What to read the time from.
        source: The checkpoints.
        emit: Writes an event down, before it is acted on.
        cache: As of :class:`~tunekit.validating.validator.Validator`.
        estimates: What unfinished validations have yielded before, by their names.
        gives_up: Whether it is given up when the first validations have failed alike.
    """

    def __init__(
        self,
        config: ValidationConfig | Stage,
        executor: Executor,
        clock: Clock,
        source: Source,
        *,
        emit: Callable[[Event], None],
        cache: ValidationCache | None = None,
        estimates: Mapping[str, Mapping[str, Estimate]] | None = None,
        gives_up: bool = True,
    ):
        own: dict[str, Any] = {"emit": emit, "conclude": self._end, "around": source}
        super().__init__(config, executor, clock, cache=cache, **own)
        self._config, self._source, self._write = config, source, emit
        self._of = f"Stage {config.name!r}: " if isinstance(config, Stage) else ""
        self._estimates = (estimates or {}) if self._resumes else {}
        self._asked: set[str] = set()
        self._failures = Failures(gives_up=gives_up)
        #: The failure by which the function is considered broken, if it is.
        self.broken_by: Outcome | None = None

    def ask(self) -> bool:
        """Request what the source wants now; return whether that is anything new."""
        new = [one for one in self._source.wanted() if one.id not in self._asked]
        self._asked.update(request.id for request in new)
        for request in new:
            self._write(ValidationRequested.of(request))
        for request in new:
            self.submit(replace(request, known=self._estimates.get(request.id, request.known)))
        return bool(new)

    def resume(self) -> None:
        """Run what a former session has left: a checkpoint may be gone."""
        left, owed = self._source.unfinished(), self._source.wanted()
        self._asked.update(request.id for request in [*left, *owed])
        for request in owed:
            self._write(ValidationRequested.of(request))
        for request in [*left, *owed]:
            if _is_there(request):
                self.submit(request)
            else:
                self.give_up(request, gone(request.path))

    def submit(self, request: Request) -> None:
        """Validate a checkpoint, unless the function is considered broken."""
        if self.broken_by is None:
            super().submit(request)
        else:
            self.give_up(request, _GIVEN_UP)

    def succeeded(self) -> None:
        """Note that a validation has succeeded, so that the function is not given up any more."""
        self._failures.succeeded()

    def drop_all(self, why: str) -> None:
        """End all validations that have not ended."""
        for trial_id in {request.trial_id for request in self.pending()}:
            self.drop(trial_id, why)

    def conclude(self) -> None:
        """Log at the end the failures that were only counted."""
        for more in () if self.broken_by is not None else self._failures.rest():
            logger.warning("%sValidations have failed: %s.", self._of, more)

    def _end(self, outcome: Outcome) -> None:
        """Record how a validation ended, and act on it."""
        outcome = self._source.take(outcome)
        failed = outcome.status in (Status.FAILED, Status.TIMED_OUT)
        if failed and not _is_there(outcome.request):
            outcome = replace(outcome, reason=gone(outcome.request.path), error=None)
        self._write(ValidationEnded.of(outcome))
        if outcome.validated:
            self.succeeded()
        elif failed and self.broken_by is None:
            self._failed(outcome)

    def _failed(self, outcome: Outcome) -> None:
        """Log or count a failure; give up if it is one too many."""
        request, reason = outcome.request, outcome.reason or "failed"
        place = place_of(request.trial_id, request.iteration, request.generation)
        trace = f"\n{outcome.error}" if outcome.error else ""
        verdict = self._failures.failed(place, reason)
        if verdict.hopeless:
            self.broken_by = outcome
            self.drop_all(_GIVEN_UP)
            if self._of:
                logger.error(
                    "%sit %s. Its first %d validations have failed alike, and none has succeeded: "
                    "the stage is given up, and the sweep continues without it. Correct %s, and "
                    "run `tunekit validate` for it.%s",
                    self._of,
                    reason,
                    HOPELESS,
                    name_of(self._config.fn),
                    trace,
                )
        elif verdict.first:
            said = f"he validation of {place} failed: it {reason}.{trace}"
            logger.warning("%s", f"{self._of}t{said}" if self._of else f"T{said}")
        if verdict.more is not None:
            logger.warning("%sValidations have failed: %s.", self._of, verdict.more)


def _is_there(request: Request) -> bool:
    """Return whether a checkpoint is still in the storage."""
    return exists(request.checkpoint.filesystem, request.checkpoint.path)
