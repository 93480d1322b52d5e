"""Run validations, from request to outcome."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ray.tune.experiment import Trial

from tunekit._ray.interruption import RayWatch
from tunekit.config import ValidationConfig
from tunekit.core.events import AttemptBegan, AttemptStarted, Event, ValidationEnded
from tunekit.core.failures import Failures, format_checkpoint
from tunekit.core.metrics import left_out_of
from tunekit.core.pool import Pool
from tunekit.core.signatures import function_name, missing_arguments, signature_of
from tunekit.core.timing import Clock
from tunekit.core.validation import Attempt, Request
from tunekit.validating.executor import Began, Executor, HostEnded, Returned

logger = logging.getLogger(__name__)

# The seconds between checks of whether validations wait for resources.
_COUNT_INTERVAL_S = 0.5

# The start of an attempt that begins within so many seconds has no line of its own.
_APART_S = 1.0

#: Attempts to start, and the trials in whose processes they run, by trial ID.
Launch: TypeAlias = tuple[list[Attempt], Mapping[str, Trial]]


class Hosts:
    """The trials in whose processes validations can run; by default, none."""

    @property
    def required(self) -> frozenset[str]:
        """Return the metrics that decisions use."""
        return frozenset()

    def start(self, pool: Pool, executor: Executor, now: float) -> Iterator[Launch]:
        """Yield the attempts to start now; each is started before the next is chosen.

        Args:
            pool: The validations.
            executor: Runs them.
            now: The time, in seconds.
        """
        yield pool.start(executor.capacity(()) if pool.needs_capacity else 0, now), {}

    def host_ended(self, trial_id: str) -> None:
        """Record that a validation has ended the process of a trial."""


class Validator:
    """Carry out the pool's decisions with an executor, after recording them in the journal.

    Its methods return how validations have ended. The caller records that, and acts on it.

    Args:
        config: The user's settings.
        executor: Runs the attempts.
        clock: The clock.
        emit: Called with each event, before it is acted on.
    """

    def __init__(
        self,
        config: ValidationConfig,
        executor: Executor,
        clock: Clock,
        *,
        emit: Callable[[Event], None],
    ):
        #: The pending validations.
        self.pool = Pool(max_in_flight=config.most_in_flight, max_retries=config.max_retries)
        #: Runs the attempts.
        self.executor = executor
        self._clock, self._emit = clock, emit
        self._hosts = Hosts()
        #: Detects that Ray is gone.
        self.ray_watch = RayWatch()
        self._fn, self._signature = config.fn, signature_of(config.fn)
        self._retried = Failures()
        self._next_poll = 0.0
        self._next_count = 0.0
        # When each attempt was started that has not begun, on the clock, in order; and the time of
        # the newest start that may be in the journal.
        self._starting: dict[str, float] = {}
        self._recorded_to = -math.inf
        # The metrics whose size has been warned about.
        self._too_large: set[str] = set()

    def run_in(self, hosts: Hosts) -> None:
        """Also run validations in the processes of a sweep's trials."""
        self._hosts = hosts

    def _launch(self, attempts: Iterable[Attempt], trials: Mapping[str, Trial]) -> None:
        """Start attempts, in the processes of their trials if these are given."""
        for attempt in attempts:
            self._starting[attempt.id] = self._clock.monotonic()
            self.executor.start(attempt, host=trials.get(attempt.request.trial_id))

    def counts(self) -> dict[str, int]:
        """Return how many validations are running, starting, unplaced and queued.

        Of the ``starting`` ones, ``unplaced`` wait for resources.
        """
        return {
            name: getattr(self.pool, name) for name in ("running", "starting", "unplaced", "queued")
        }

    def submit(self, request: Request) -> list[ValidationEnded]:
        """Accept a recorded request; it fails immediately if the function lacks an argument."""
        if lacks := missing_arguments(self._signature, request.kwargs):
            reason = _format_uncallable(function_name(self._fn), lacks)
            return [ValidationEnded(id=request.id, status="failed", reason=reason)]
        self._next_poll = 0.0  # it may start now
        return self.pool.submit(request, self._clock.monotonic())

    def drop(self, trial_id: str, reason: str) -> list[ValidationEnded]:
        """Cancel all validations of a trial."""
        now = self._clock.monotonic()
        return self._cancel(*self.pool.drop(trial_id, reason, now), too_long=False)

    def poll(self, *, at_once: bool = False) -> Iterator[ValidationEnded]:
        """Yield each validation that has ended; then start those that may run.

        Args:
            at_once: Whether to ignore the poll interval.
        """
        now = self._clock.monotonic()
        if not (at_once or now >= self._next_poll):
            return
        self._next_poll = now + self.executor.poll_interval_s
        yield from self._apply_events(now)
        yield from self._cancel(*self.pool.expire(now), too_long=True)
        for attempts, trials in self._hosts.start(self.pool, self.executor, now):
            self._launch(attempts, trials)
        self._record_starts(now)
        self._count_unplaced(now)

    def close(self) -> None:
        """Cancel unfinished validations; they stay pending until the sweep is restored."""
        if not self.pool.idle:
            logger.warning(
                "Unfinished validations: %d. They stay pending, and run when this is continued.",
                len(self.pool.pending()),
            )
        self.executor.close()
        for attempt in self.pool.in_flight():
            self.executor.cancel(attempt, too_long=False)

    def _apply_events(self, now: float) -> Iterator[ValidationEnded]:
        for event in self.executor.poll():
            ended = None
            if isinstance(event, HostEnded):
                self._hosts.host_ended(event.trial_id)
                continue
            since = self._starting.pop(event.attempt_id, -math.inf)
            if isinstance(event, Began):
                self._record(AttemptBegan, event.attempt_id, now - since)
                self.pool.began(event.attempt_id, now)
            elif isinstance(event, Returned):
                self._warn_of_left_out(event.value)
                required = self._hosts.required
                ended = self.pool.returned(event.attempt_id, event.value, required, now)
            else:
                self.ray_watch.check()
                if since > self._recorded_to:  # it has not begun
                    self._record(AttemptStarted, event.attempt_id, now - since)
                attempt = self.pool.attempt(event.attempt_id)
                ended = self.pool.failed(event.attempt_id, event.reason, event.error, now)
                if ended is None:
                    self._warn_of_retry(attempt.request, event.reason)
            if ended is not None:
                yield ended

    def _record_starts(self, now: float) -> None:
        """Record the attempts that were started a while ago and have not begun."""
        since, self._recorded_to = self._recorded_to, now - _APART_S
        for attempt_id, started in self._starting.items():
            if since < started <= self._recorded_to:
                self._record(AttemptStarted, attempt_id, now - started)

    def _record(self, kind: Callable[..., Event], attempt_id: str, after_s: float) -> None:
        attempt, now = self.pool.attempt(attempt_id), self._clock.time()
        known = {"id": attempt.request.id, "attempt": attempt.number}
        self._emit(kind(time=now, after_s=round(after_s, 4), **known))

    def _warn_of_left_out(self, value: Any) -> None:
        """Warn once about each metric that is too large to store."""
        new = [name for name in left_out_of(value) if name not in self._too_large]
        if new:
            self._too_large.update(new)
            logger.warning(
                "A validation returned more than 1 MiB for %s, which is recorded as a short text "
                "instead. Write large values to a file, and return its path.",
                ", ".join([*map(repr, new[:3]), *(["and others"] if len(new) > 3 else [])]),
            )

    def _warn_of_retry(self, request: Request, reason: str) -> None:
        place = format_checkpoint(request.trial_id, request.iteration, request.generation)
        verdict = self._retried.failed(place, reason)
        if verdict.first:
            logger.warning("The validation of %s %s; retrying.", place, reason)
        if verdict.more is not None:
            logger.warning("Validations were retried: %s.", verdict.more)

    def _count_unplaced(self, now: float) -> None:
        """Check whether validations wait for resources; not at each poll, because this asks Ray."""
        if not self.pool.starting:
            self._next_count = now
        elif now >= self._next_count:
            self._next_count = now + _COUNT_INTERVAL_S
            self.pool.set_unplaced(self.executor.unplaced(), now)

    def _cancel(
        self, cancelled: list[Attempt], ended: list[ValidationEnded], *, too_long: bool
    ) -> list[ValidationEnded]:
        """Cancel attempts; return the outcomes that follow."""
        for attempt in cancelled:
            self._starting.pop(attempt.id, None)
            if host := self.executor.cancel(attempt, too_long=too_long):
                self._hosts.host_ended(host)
        return ended


def _format_uncallable(name: str, lacks: Sequence[str]) -> str:
    """Return why the function cannot be called, and the fix."""
    given = ", ".join(f"{one!r}: ..." for one in lacks)
    return (
        f"was not started: {name} has no value for {', '.join(map(repr, lacks))}. Pass it with "
        f"the report, tunekit.report(metrics, validation=ValidationTaskConfig(fn_kwargs={{{given}"
        "})), or for all checkpoints in ValidationConfig(task_config=...), or give it a default"
    )
