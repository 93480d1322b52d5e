"""A clock that does not wait, and validations with durations and failures that a test sets."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunekit.core.executor import AttemptEvent, Began, Executor, Failed, Returned
from tunekit.core.validation import Attempt
from tunekit.core.values import describe_error
from tunekit.validating.process import pack_result


class FakeClock:
    """A clock whose time passes only in :meth:`sleep`, which returns at once.

    Args:
        epoch: Where it starts, in seconds since the epoch.

    Example:
        >>> clock = FakeClock()
        >>> clock.sleep(2.5)
        >>> clock.monotonic(), clock.time()
        (2.5, 1000000002.5)
    """

    def __init__(self, epoch: float = 1e9):
        self._now = 0.0
        self._epoch = epoch

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self._now

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self._epoch + self._now

    def sleep(self, seconds: float) -> None:
        """Advance the time at once."""
        self._now += seconds


class FakeExecutor(Executor):
    """Run validations on a fake clock, by calling a function when each ends.

    Args:
        clock: The clock.
        validate: ``validate(attempt)`` returns what the validation function returns; if it raises,
            the attempt fails.
        seconds: ``seconds(attempt)``: how long an attempt runs, in seconds of the clock;
            ``float("inf")`` hangs.
        delay: ``delay(attempt)``: how long it waits for resources, in seconds.
        starts: ``starts(attempt)``: how long its process takes to start after that, in seconds.
        slots: How many attempts can run at once.
        in_trials: Whether attempts can run in the processes of waiting trials.

    Example:
        >>> from tunekit.core.validation import Request
        >>> clock = FakeClock()
        >>> executor = FakeExecutor(clock, lambda attempt: {"accuracy": 0.9}, lambda attempt: 60.0)
        >>> executor.start(Attempt(Request("trial_1", iteration=3), 1))
        >>> list(executor.poll())
        [Began(attempt_id='trial_1:0:3:1#1')]
        >>> clock.sleep(60)
        >>> list(executor.poll())
        [Returned(attempt_id='trial_1:0:3:1#1', value={'accuracy': 0.9})]
    """

    def __init__(
        self,
        clock: FakeClock,
        validate: Callable[[Attempt], Any],
        seconds: Callable[[Attempt], float] = lambda attempt: 0.0,
        delay: Callable[[Attempt], float] = lambda attempt: 0.0,
        starts: Callable[[Attempt], float] = lambda attempt: 0.0,
        slots: int = 1_000_000,
        in_trials: bool = False,
    ):
        self._clock = clock
        self._validate = validate
        self._seconds = seconds
        self._delay = delay
        self._starts = starts
        self._slots = slots
        self.in_trials = in_trials
        self._due: list[tuple[float, int, str, Attempt]] = []
        self._order = 0
        self._live: dict[str, Attempt] = {}
        # The time at which each gets its resources.
        self._placed: dict[str, float] = {}
        #: Every attempt that was started, in order.
        self.started: list[Attempt] = []
        #: Every attempt that was cancelled, in order.
        self.cancelled: list[Attempt] = []

    def fits_in(self, place: Sequence[Mapping[str, float]]) -> bool:
        """Return whether ``in_trials`` is set."""
        return self.in_trials

    def start(self, attempt: Attempt, *, host: Any = None) -> None:
        """See :class:`~tunekit.core.executor.Executor`."""
        self.started.append(attempt)
        self._live[attempt.id] = attempt
        self._placed[attempt.id] = self._clock.monotonic() + self._delay(attempt)
        begins = self._placed[attempt.id] + self._starts(attempt)
        self._push(begins, "begin", attempt)
        self._push(begins + self._seconds(attempt), "end", attempt)

    def poll(self) -> Iterator[AttemptEvent]:
        """See :class:`~tunekit.core.executor.Executor`."""
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, what, attempt = heapq.heappop(self._due)
            if attempt.id not in self._live:
                continue
            if what == "begin":
                yield Began(attempt.id)
                continue
            try:
                value = self._validate(attempt)
            except Exception as error:  # a test makes a validation fail in this way
                reason = describe_error(error).reason
                value = Failed(attempt.id, reason, error="Traceback of a test")
            del self._live[attempt.id]
            if isinstance(value, (Returned, Failed)):
                yield replace(value, attempt_id=attempt.id)
            else:
                yield Returned(attempt.id, pack_result(value))

    def cancel(self, attempt: Attempt, *, too_long: bool = True) -> None:
        """See :class:`~tunekit.core.executor.Executor`."""
        if self._live.pop(attempt.id, None) is not None:
            self.cancelled.append(attempt)

    def capacity(self, promised: Iterable[tuple[Mapping[str, float], int]]) -> int:
        """See :class:`~tunekit.core.executor.Executor`."""
        return self._slots - len(self._live) - sum(number for _, number in promised)

    def unplaced(self) -> int:
        """See :class:`tunekit.core.executor.Executor`."""
        now = self._clock.monotonic()
        return sum(self._placed[attempt_id] > now for attempt_id in self._live)

    def hurry(self) -> None:
        """Start everything that waits for resources."""
        now = self._clock.monotonic()
        unplaced = {attempt.id for _, _, what, attempt in self._due if what == "begin"}
        self._placed.update(dict.fromkeys(unplaced, now))
        self._due = [
            (now + self._seconds(attempt) * (what == "end"), order, what, attempt)
            if attempt.id in unplaced
            else (at, order, what, attempt)
            for at, order, what, attempt in self._due
        ]
        heapq.heapify(self._due)

    def next_due(self) -> float | None:
        """Return the time of the next event, on the clock; None if there is none."""
        while self._due and self._due[0][3].id not in self._live:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due and self._due[0][0] < float("inf") else None

    def _push(self, at: float, what: str, attempt: Attempt) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, what, attempt))
