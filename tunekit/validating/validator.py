"""Run validations, from request to outcome."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.interruption import RayWatch
from tunekit.config import ValidationConfig
from tunekit.core.events import AttemptBegan, AttemptStarted, Event, ValidationEnded
from tunekit.core.executor import Began, Executor, HostEnded, Returned
from tunekit.core.failures import Failures, format_checkpoint
from tunekit.core.metrics import left_out_of
from tunekit.core.pool import Pool
from tunekit.core.signatures import function_name, missing_arguments, signature_of
from tunekit.core.timing import Clock
from tunekit.core.validation import Attempt, Request

logger = logging.getLogger(__name__)

# The seconds between checks of whether validations wait for resources.
_COUNT_INTERVAL_S = 0.5

# The start of an attempt that begins within so many seconds has no line of its own.
_APART_S = 1.0


class Validator:
    """Carry out the pool's decisions with an executor, after recording them in the journal.

    Its methods return how validations have ended. The caller records that, and acts on it.

    Args:
        config: The user's settings.
        executor: Runs the attempts.
        clock: The clock.
        record: Records an event, before it is acted on.
        required: The metrics that decisions use; the set may grow.
    """

    def __init__(
        self,
        config: ValidationConfig,
        executor: Executor,
        clock: Clock,
        *,
        record: Callable[[Event], None],
        required: Callable[[], AbstractSet[str]] = frozenset,
    ):
        #: The pending validations.
        self.pool = Pool(max_in_flight=config.most_in_flight, max_retries=config.max_retries)
        #: Runs the attempts.
        self.executor = executor
        self._clock, self._record, self._required = clock, record, required
        #: Detects that Ray is gone.
        self.ray_watch = RayWatch()
        self._fn, self._signature = config.fn, signature_of(config.fn)
        self._retried = Failures(detects_hopeless=False)
        self._next_poll = 0.0
        self._next_count = 0.0
        # When each attempt was started that has not begun, on the clock, in order; and the time of
        # the newest start that may be in the journal.
        self._starting: dict[str, float] = {}
        self._recorded_to = -math.inf
        # The metrics whose size has been warned about.
        self._too_large: set[str] = set()

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

    def is_due(self, *, at_once: bool) -> bool:
        """Return whether it is time for :meth:`poll`, :meth:`start` and :meth:`look`."""
        return at_once or self._clock.monotonic() >= self._next_poll

    def poll(self) -> Iterator[ValidationEnded]:
        """Yield each validation that has ended since the last call."""
        now = self._clock.monotonic()
        self._next_poll = now + self.executor.poll_interval_s
        yield from self._apply_events(now)
        yield from self._cancel(*self.pool.expire(now), too_long=True)

    def start(self, attempt: Attempt, host: Trial | None = None) -> None:
        """Start an attempt, in the process of a trial or elsewhere."""
        self._starting[attempt.id] = self._clock.monotonic()
        self.executor.start(attempt, host=host)

    def look(self) -> None:
        """Record which attempts have not begun, and which of these wait for resources."""
        now = self._clock.monotonic()
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
                self.pool.ended_hosts.add(event.trial_id)
                continue
            since = self._starting.pop(event.attempt_id, -math.inf)
            if isinstance(event, Began):
                self._record_attempt(AttemptBegan, event.attempt_id, now - since)
                self.pool.began(event.attempt_id, now)
            elif isinstance(event, Returned):
                self._warn_of_left_out(event.value)
                ended = self.pool.returned(event.attempt_id, event.value, self._required(), now)
            else:
                self.ray_watch.check()
                if since > self._recorded_to:  # it has not begun
                    self._record_attempt(AttemptStarted, event.attempt_id, now - since)
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
                self._record_attempt(AttemptStarted, attempt_id, now - started)

    def _record_attempt(
        self, kind: type[AttemptBegan | AttemptStarted], attempt_id: str, after_s: float
    ) -> None:
        attempt, time = self.pool.attempt(attempt_id), self._clock.time()
        name, after_s = attempt.request.id, round(after_s, 4)
        self._record(kind(time=time, id=name, attempt=attempt.number, after_s=after_s))

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
                self.pool.ended_hosts.add(host)
        return ended


def _format_uncallable(name: str, lacks: Sequence[str]) -> str:
    """Return why the function cannot be called, and the fix."""
    given = ", ".join(f"{one!r}: ..." for one in lacks)
    return (
        f"was not started: {name} has no value for {', '.join(map(repr, lacks))}. Pass it with "
        f"the report, tunekit.report(metrics, validation=ValidationTaskConfig(fn_kwargs={{{given}"
        "})), or for all checkpoints in ValidationConfig(task_config=...), or give it a default"
    )
