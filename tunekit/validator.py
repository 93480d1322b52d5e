"""Runs a sweep's validations: from the request to the outcome."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tunekit.clock import Clock
from tunekit.config import ValidationConfig
from tunekit.core.pool import Pool
from tunekit.core.validation import Attempt, Outcome, Pending, Request, Status
from tunekit.executor import Began, Executor, Returned
from tunekit.journal import Journal

__all__ = ["Validator"]

logger = logging.getLogger(__name__)


class Validator:
    """Lets the pool decide, the executor run, and the journal know first.

    Args:
        config: The limits.
        executor: Where validations run.
        clock: What the time is read from.
        conclude: Called with each outcome, after it has been recorded.
        judged: Returns the names of metrics that must be numbers.
        promised: Returns the resources of each trial that waits for them.
    """

    #: Raises if Ray itself is gone, so that nothing is recorded as failed that failed by that.
    check_ray: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        config: ValidationConfig,
        executor: Executor,
        clock: Clock,
        *,
        conclude: Callable[[Outcome], None],
        judged: Callable[[], Collection[str]],
        promised: Callable[[], Sequence[Mapping[str, float]]],
    ):
        self._pool = Pool(
            max_in_flight=config.most_in_flight,
            max_retries=config.max_retries,
            skip_stale=config.on_stale == "skip",
        )
        self._executor = executor
        self._clock = clock
        self._conclude = conclude
        self._judged = judged
        self._promised = promised
        #: The sweep's journal, once there is one.
        self.journal: Journal | None = None
        self._ended: Counter[Status] = Counter()
        self._next_poll = 0.0
        self._polling = False
        self._starved_since: float | None = None
        #: Seconds that validations ran, one added to the other.
        self.ran_s = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """The logical resources of one validation, such as ``{"CPU": 1}``."""
        return self._executor.need

    def reserve(self, slots: int) -> None:
        """Keep resources for so many validations from now on, whatever else wants them."""
        self._executor.reserve(slots)

    def free(self) -> None:
        """Give back what is kept for validations: nothing more is to run."""
        self._executor.close()

    @property
    def idle(self) -> bool:
        """Whether every validation has ended."""
        return self._pool.idle

    def counts(self) -> dict[str, int]:
        """How many validations ended how, run, wait for resources, or wait to be started."""
        return {
            **self.ended_counts(),
            "running": self._pool.running,
            "starting": self._pool.starting,
            "waiting": self._pool.waiting,
        }

    def pending(self) -> list[Request]:
        """Every request that has not ended."""
        return list(self._pool.pending())

    def stages(self) -> list[Pending]:
        """How far every request is that has not ended."""
        return list(self._pool.stages(self._clock.monotonic()))

    def ended_counts(self) -> dict[str, int]:
        """How many validations ended how."""
        return {status.value: self._ended[status] for status in Status}

    def load_counts(self, counts: Mapping[str, int]) -> None:
        """Take up what :meth:`ended_counts` returned, of a sweep that goes on."""
        self._ended = Counter({Status(name): count for name, count in counts.items()})

    def count(self, status: Status) -> None:
        """Count a validation that ended before the sweep was interrupted."""
        self._ended[status] += 1

    def submit(self, request: Request) -> None:
        """Take a request that is in the journal."""
        for outcome in self._pool.submit(request, self._clock.monotonic()):
            self._end(outcome)

    def give_up(self, request: Request, reason: str) -> None:
        """End a request that cannot be run."""
        self._end(Outcome(request, Status.FAILED, reason=reason))

    def drop(self, trial_id: str, reason: str) -> None:
        """Give up everything of a trial."""
        self._cancel(*self._pool.drop(trial_id, reason, self._clock.monotonic()))

    def poll(self, *, at_once: bool = False) -> None:
        """Look what has become of the validations, act on it, and start those that may run.

        Args:
            at_once: Look now, however recently that was done.
        """
        now = self._clock.monotonic()
        if self._pool.idle:
            self._starved_since = None
            return
        if self._polling or not (at_once or now >= self._next_poll):
            return
        self._polling = True
        try:
            self._next_poll = now + self._executor.poll_interval_s
            self._take_events(now)
            self._cancel(*self._pool.expire(now))
            self._start(now)
        finally:
            self._polling = False

    def close(self) -> None:
        """Cancel what has not ended: it is pending until the sweep is restored."""
        if not self._pool.idle:
            logger.warning(
                "Validations that had not ended: %d. They are pending, and run when the sweep is "
                "restored.",
                len(self.pending()),
            )
        for attempt in self._pool.in_flight():
            self._executor.cancel(attempt)
        self.free()

    def starved_s(self) -> float:
        """For how many seconds validations have waited for resources with none running."""
        if self._starved_since is None:
            return 0.0
        return self._clock.monotonic() - self._starved_since

    def relieved(self) -> None:
        """Somebody has given resources back: starvation counts from now."""
        self._starved_since = self._clock.monotonic()

    def _take_events(self, now: float) -> None:
        for event in self._executor.poll():
            if isinstance(event, Began):
                if self.journal is not None and self._pool.flies(event.attempt_id):
                    self.journal.began(event.attempt_id, self._clock.time())
                self._pool.began(event.attempt_id, now)
                continue
            wanted = self._pool.flies(event.attempt_id)
            if isinstance(event, Returned):
                outcome = self._pool.returned(event.attempt_id, event.value, self._judged(), now)
            else:
                self.check_ray()
                outcome = self._pool.failed(event.attempt_id, event.reason, event.error, now)
                if wanted and outcome is None:
                    logger.warning(
                        "Validation %s %s; trying again.", event.attempt_id, event.reason
                    )
            if outcome is not None:
                self._end(outcome)

    def _start(self, now: float) -> None:
        capacity = self._executor.capacity(self._promised()) if self._pool.needs_capacity else 0
        for attempt in self._pool.start(capacity, now):
            if self.journal is not None:
                self.journal.started(attempt, self._clock.time())
            self._executor.start(attempt)
        if self._pool.running or not self._pool.starting:
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now

    def _cancel(self, cancelled: list[Attempt], outcomes: list[Outcome]) -> None:
        for attempt in cancelled:
            self._executor.cancel(attempt)
        for outcome in outcomes:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        if self.journal is not None:
            self.journal.ended(outcome, self._clock.time())
        self._ended[outcome.status] += 1
        self.ran_s += outcome.ran_s
        self._conclude(outcome)
