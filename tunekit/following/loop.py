"""Validate the checkpoints of a source, and record the outcomes, until it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from msgspec import structs

from tunekit._ray.cluster import check_fits
from tunekit._ray.interruption import ended_by_sigterm
from tunekit.config import ValidationConfig
from tunekit.core.events import Event, ValidationEnded, ValidationRequested
from tunekit.core.executor import Executor
from tunekit.core.failures import Failures, format_checkpoint, format_missing
from tunekit.core.signatures import function_name
from tunekit.core.timing import Pace
from tunekit.core.validation import FAILED, Request, Status
from tunekit.following.record import Recorder, is_score
from tunekit.journal.paths import exists
from tunekit.messages.failed_validations import failure_error, log_failure, log_summaries
from tunekit.messages.formatting import format_counts
from tunekit.messages.problems import Problems
from tunekit.validating.ray_executor import executor_of
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# How long to wait for an event, and how often to log the progress.
_WAIT_S, _PROGRESS_S = 0.2, 30.0
_HOW_TO_CONTINUE = "    the same call again: finished validations are not repeated"


class Source:
    """Supply checkpoints; this base class supplies each of a fixed set once.

    Args:
        requests: The validation requests.
    """

    #: Records an event, and returns whether one more validation could start now; set by the loop.
    emit: Callable[[Event], None]
    has_room: Callable[[], bool]

    def __init__(self, requests: Sequence[Request] = ()):
        self._requests = requests

    def resume(self, before: Sequence[Event]) -> bool:
        """Apply the events of earlier sessions that count; return whether there is work left."""
        ended = {event.id for event in before if isinstance(event, ValidationEnded)}
        self._requests = [request for request in self._requests if request.id not in ended]
        return bool(self._requests)

    def new_requests(self) -> Sequence[Request]:
        """Return the requests that are new."""
        new, self._requests = self._requests, ()
        return new

    def over(self) -> bool:
        """Return whether no more requests will come."""
        return True

    def recorded(self, event: Event) -> None:
        """Handle an event that has been recorded."""


def validate_all(
    source: Source, recorder: Recorder, config: ValidationConfig, *, replace: bool = False
) -> None:
    """Validate the checkpoints; scores are recorded even if the session ends early.

    If the first validations fail for the same reason, the function is considered broken, and the
    rest is left for a call with a working function.

    Args:
        source: The source of the checkpoints.
        recorder: Writes the journal.
        config: How checkpoints are validated.
        replace: Whether to leave out what earlier sessions recorded.

    Raises:
        tunekit.errors.ConfigError: If a validation requests more than the cluster has, or if the
            record has scores of another function.
        tunekit.errors.ValidationFailedError: If the first validations have failed for the same
            reason.
        tunekit.errors.AlreadyRunningError: If another process writes the journal, or takes over.
    """
    with ExitStack() as stack:
        stack.callback(recorder.lock.release)
        recorder.lock.claim()
        before = recorder.continued(replace=replace)
        if not source.resume(before):
            return
        executor = executor_of(config)
        stack.callback(executor.close)
        _start_ray(executor, recorder.call)
        loop = _Loop(config, executor, source, recorder, before)
        stack.enter_context(loop.validator.ray_watch.watching(lambda: _HOW_TO_CONTINUE))
        stack.enter_context(ended_by_sigterm())
        stack.enter_context(recorder.session(config))
        loop.run()


def _start_ray(executor: Executor, call: str) -> None:
    """Connect to Ray, or start it; raise if a validation requests more than the cluster has."""
    if not ray.is_initialized():
        ray.init()
    problems = Problems(call)
    advice = "Ask for less with ray_remote_kwargs."
    check_fits("validation", executor.need, ray.cluster_resources(), advice, problems)
    problems.raise_any()


class _Loop:
    """Validate the checkpoints of a source, as :func:`validate_all` describes."""

    def __init__(
        self,
        config: ValidationConfig,
        executor: Executor,
        source: Source,
        recorder: Recorder,
        before: Sequence[Event],
    ):
        self.validator = Validator(config, executor, time, record=self._record)
        self._source, self._recorder, self._config = source, recorder, config
        source.emit, source.has_room = self._record, self._has_room
        # The requests whose validations have not ended, by name.
        self._submitted: dict[str, Request] = {}
        scored = any(map(is_score, before))
        self._failures = Failures(detects_hopeless=config.on_failure != "ignore" and not scored)
        self._progress = Pace(1.0, _PROGRESS_S)

    def run(self) -> None:
        """Validate until the source is over; raise if the function is considered broken."""
        validator, began = self.validator, time.monotonic()
        self._progress.ran(began, began)
        try:
            while self._submit_new() or not (validator.pool.idle and self._source.over()):
                self._poll()
                while self._submit_new():
                    self._poll()
                now = time.monotonic()
                if not validator.pool.idle and self._progress.is_ready(now):
                    self._progress.ran(now, now)
                    logger.info("%s.", format_counts(validator.counts()))
                _wait(validator.executor.awaited())
        finally:
            log_summaries(self._failures.summaries())
            validator.close()

    def _poll(self) -> None:
        validator, pool = self.validator, self.validator.pool
        for event in validator.poll():
            self._ended(event)
        capacity = validator.executor.capacity(()) if pool.needs_capacity else 0
        for attempt in pool.start(capacity, time.monotonic()):
            validator.start(attempt)
        validator.look()

    def _has_room(self) -> bool:
        pool, most = self.validator.pool, self._config.most_in_flight
        flying = len(pool.in_flight())
        free = self.validator.executor.capacity(()) > 0 if most is None else flying < most
        return not pool.queued and (free or not flying)

    def _submit_new(self) -> bool:
        """Submit the new requests of the source; return whether there are any."""
        self._recorder.check()
        new, task = self._source.new_requests(), self._config.task_config
        for request in new:
            self._submitted[request.id] = request
            self._record(ValidationRequested.of(request.key, request.path))
            kwargs = task.fn_kwargs or {}
            request = replace(request, kwargs=kwargs, timeout_s=task.timeout_s)
            for ended in self.validator.submit(request):
                self._ended(ended)
        return bool(new)

    def _record(self, event: Event) -> None:
        event = structs.replace(event, time=event.time or time.time())
        self._recorder.append(event)
        self._source.recorded(event)

    def _ended(self, event: ValidationEnded) -> None:
        """Record how a validation ended, and act on it."""
        failed, request = event.status in FAILED, self._submitted.pop(event.id)
        if failed and not _is_there(request):
            status, reason = Status.SKIPPED.value, format_missing(request.path)
            event = structs.replace(event, status=status, reason=reason, error=None)
        self._record(event)
        if event.validated:
            self._failures.succeeded()
        elif failed:
            self._failed(event)

    def _failed(self, event: ValidationEnded) -> None:
        """Log or count a failure; raise on the user's request, or if all failures are similar."""
        key = event.key
        place = format_checkpoint(key.trial_id, key.iteration, key.generation)
        notice = self._failures.failed(place, event.reason or "failed")
        error = failure_error(
            event,
            notice,
            raises=self._config.on_failure == "raise",
            function=function_name(self._config.fn),
            how_to_continue="validate again",
        )
        if error is not None:
            raise error
        log_failure(event, notice)


def _is_there(request: Request) -> bool:
    """Return whether a checkpoint is still in the storage; True if the storage fails."""
    try:
        return exists(request.checkpoint.filesystem, request.checkpoint.path)
    except OSError:
        return True  # the function will find out


def _wait(awaited: Collection[Any]) -> None:
    """Wait briefly for an event."""
    if awaited:
        ray.wait(list(awaited), num_returns=1, timeout=_WAIT_S)
    else:
        time.sleep(_WAIT_S)
