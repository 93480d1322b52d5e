"""Validations that take virtual time, in slots that they share with trials."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.clock import Clock
from tunekit.core.validation import Attempt
from tunekit.validating.executor import Executor
from tunekit.validating.process import Began, Event, Returned

__all__ = ["Slots", "VirtualExecutor"]


@dataclass
class Slots:
    """So many places for trials and validations, and some for validations alone.

    A validation takes one of its own if one is free, else one that it shares with trials.

    Attributes:
        shared: How many slots trials and validations share.
        own: How many validations have for themselves.
        kept: How many of the shared ones no trial may take.
        trials: How many trials hold one.
        validations: How many validations hold one, of either kind.

    Example:
        >>> slots = Slots(shared=2, own=1)
        >>> slots.trials = 1
        >>> slots.for_validations, slots.for_trials
        (2, 1)
        >>> slots.validations = 2
        >>> slots.for_validations, slots.for_trials
        (0, 0)
    """

    shared: int
    own: int = 0
    kept: int = 0
    trials: int = 0
    validations: int = 0

    @property
    def _taken(self) -> int:
        """Return how many shared slots validations hold."""
        return max(0, self.validations - self.own)

    @property
    def for_validations(self) -> int:
        """Return how many more validations fit."""
        free = self.shared - self.trials - self._taken
        return max(0, self.own - self.validations) + max(0, free)

    @property
    def for_trials(self) -> int:
        """Return how many more trials fit."""
        return max(0, self.shared - self.trials - max(self.kept, self._taken))


class VirtualExecutor(Executor):
    """An executor whose validations end when their time has come.

    Each waits for a slot, in the order in which they were started, and begins when there is one.

    Args:
        clock: The clock that it goes by.
        slots: Where they run.
        trials: Returns how many trials are running.
        validate: Returns the result of an attempt.
        seconds: Returns how long an attempt runs, in seconds.
        start_s: How long a process takes to start, in seconds. A process whose attempt has ended
            runs the next.

    Example:
        >>> from tunekit.clock import VirtualClock
        >>> from tunekit.core.validation import Request
        >>> clock, running = VirtualClock(), ["a trial"]
        >>> executor = VirtualExecutor(
        ...     clock,
        ...     Slots(shared=1),
        ...     lambda: len(running),
        ...     validate=lambda attempt: {"accuracy": 0.9},
        ...     seconds=lambda attempt: 5.0,
        ... )
        >>> executor.start(Attempt(Request("a", iteration=1), 1))
        >>> executor.poll(), executor.queued()
        ([], 1)
        >>> running.clear()
        >>> executor.poll(), executor.next_due()
        ([Began(attempt_id='a:0:1:1#1')], 5.0)
    """

    def __init__(
        self,
        clock: Clock,
        slots: Slots,
        trials: Callable[[], int],
        validate: Callable[[Attempt], Any],
        seconds: Callable[[Attempt], float],
        start_s: float = 0.0,
    ):
        self._clock, self._all, self._trials = clock, slots, trials
        self._validate, self._seconds, self._start_s = validate, seconds, start_s
        self._idle = 0
        self._waiting: deque[Attempt] = deque()
        self._ends: list[tuple[float, int, Attempt]] = []
        self._cancelled: set[str] = set()
        # The attempts in the place of a trial, which hold no slot of their own.
        self._lent: set[str] = set()
        self._begun: list[Event] = []
        self._order = 0
        #: Seconds that validations have run, added up.
        self.busy_s = 0.0

    @property
    def _slots(self) -> Slots:
        self._all.trials = self._trials()
        return self._all

    def reserve(self, slots: int) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._all.kept = slots

    def fits_in(self, place: Sequence[Mapping[str, float]]) -> bool:
        """See :class:`tunekit.validating.executor.Executor`."""
        return True

    def start(self, attempt: Attempt, *, lender: Any = None) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        if lender is None:
            self._waiting.append(attempt)
        else:
            self._lent.add(attempt.id)
            self._begin(attempt, self._clock.monotonic())
            self._begun.append(Began(attempt.id))

    def poll(self) -> list[Event]:
        """See :class:`tunekit.validating.executor.Executor`."""
        events: list[Event] = list(self._begun)
        self._begun.clear()
        now = self._clock.monotonic()
        while self._ends and self._ends[0][0] <= now:
            _, _, attempt = heapq.heappop(self._ends)
            if attempt.id not in self._cancelled:
                self._idle += 1
                self._ended(attempt)
                events.append(Returned(attempt.id, self._validate(attempt)))
        while self._waiting and self._slots.for_validations:
            attempt = self._waiting.popleft()
            self._slots.validations += 1
            self._begin(attempt, now)
            events.append(Began(attempt.id))
        return events

    def _begin(self, attempt: Attempt, now: float) -> None:
        seconds = self._seconds(attempt)
        self.busy_s += seconds
        self._order += 1
        began = now if self._idle else now + self._start_s
        self._idle = max(0, self._idle - 1)
        heapq.heappush(self._ends, (began + seconds, self._order, attempt))

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        elif any(attempt.id == running.id for _, _, running in self._ends):
            self._cancelled.add(attempt.id)
            self._ended(attempt)

    def _ended(self, attempt: Attempt) -> None:
        if attempt.id in self._lent:
            self._lent.discard(attempt.id)
        else:
            self._slots.validations -= 1

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        free = self._slots.for_validations
        goes_first = min(self._slots.for_trials, sum(1 for _ in promised)) if free else 0
        return max(0, free - goes_first) - len(self._waiting)

    def queued(self) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        return len(self._waiting)

    def next_due(self) -> float | None:
        """Return when the next validation ends; now, if one can begin; None if there is none."""
        if self._begun or (self._waiting and self._slots.for_validations):
            return self._clock.monotonic()
        return self._ends[0][0] if self._ends else None
