"""Validations that take virtual time, on resources that they share with trials."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.clock import Clock
from tunekit.config import ValidationConfig
from tunekit.core.room import fits, slots, total
from tunekit.core.validation import Attempt
from tunekit.validating.executor import AttemptEvent, Began, Executor, Returned
from tunekit.validating.ray_executor import executor_of

# Seconds without work after which an evaluator releases its resources.
_IDLE_S = 30.0
_NO_LIMIT = 1_000_000


@dataclass
class Room:
    """The resources of a cluster, and their use by trials and validations.

    Attributes:
        cluster: All resources, by name.
        trial: The resources of a trial.
        validation: The resources of a validation.
        trials: How many trials hold resources.
        validations: How many validations and idle evaluators hold resources.

    Example:
        >>> room = Room({"CPU": 3, "slots": 2}, {"CPU": 1, "slots": 1}, {"CPU": 1}, trials=1)
        >>> room.for_trials, room.for_validations(), room.for_validations([room.trial] * 5)
        (1, 2, 1)
        >>> room.validations = 2
        >>> room.for_trials, room.for_validations()
        (0, 0)
    """

    cluster: Mapping[str, float]
    trial: Mapping[str, float]
    validation: Mapping[str, float]
    trials: int = 0
    validations: int = 0

    @property
    def slots(self) -> tuple[int, int] | None:
        """Return how many trials fit, and how many validations in addition; None if unlimited."""
        return slots(self.cluster, self.trial, self.validation)

    @property
    def _free(self) -> dict[str, float]:
        taken = total(*[self.trial] * self.trials, *[self.validation] * self.validations)
        return {name: amount - taken.get(name, 0.0) for name, amount in self.cluster.items()}

    @property
    def for_trials(self) -> int:
        """Return how many more trials fit."""
        return max(0, fits(self._free, (), self.trial)) if total(self.trial) else _NO_LIMIT

    def for_validations(self, promised: Iterable[Mapping[str, float]] = ()) -> int:
        """Return how many more validations fit.

        Args:
            promised: The resources of trials with priority, as far as they fit.
        """
        if not total(self.validation):
            return _NO_LIMIT
        return max(0, fits(self._free, promised, self.validation))


class VirtualExecutor(Executor):
    """Run validations for a given virtual time.

    In the order in which they are started, they wait for resources and then for a process: their
    trial's, an idle one, or a new one.

    Args:
        config: How to validate; its resources and processes are as in a real sweep.
        clock: The clock.
        room: The resources.
        trials: Returns how many trials hold resources.
        validate: Returns the result of an attempt.
        seconds: Returns how long an attempt runs, in seconds.
        start_s: How long a process takes to start, in seconds.
        import_s: How much longer the first attempt in a process runs.

    Example:
        >>> from tunekit.clock import FakeClock
        >>> from tunekit.core.validation import Request
        >>> clock, running = FakeClock(), ["a trial"]
        >>> executor = VirtualExecutor(
        ...     ValidationConfig(fn=lambda checkpoint: {}),
        ...     clock,
        ...     Room({"CPU": 1}, {"CPU": 1}, {"CPU": 1}),
        ...     lambda: len(running),
        ...     validate=lambda attempt: {"accuracy": 0.9},
        ...     seconds=lambda attempt: 5.0,
        ...     start_s=2.0,
        ... )
        >>> executor.start(Attempt(Request("a", iteration=1), 1))
        >>> executor.poll(), executor.queued()
        ([], 1)
        >>> running.clear()
        >>> executor.poll(), executor.next_due()
        ([], 2.0)
        >>> clock.sleep(2.0)
        >>> executor.poll(), executor.next_due()
        ([Began(attempt_id='a:0:1:1#1')], 7.0)
    """

    def __init__(
        self,
        config: ValidationConfig,
        clock: Clock,
        room: Room,
        trials: Callable[[], int],
        validate: Callable[[Attempt], Any],
        seconds: Callable[[Attempt], float],
        start_s: float = 0.0,
        import_s: float = 0.0,
    ):
        self._real, self._most = executor_of(config), config.evaluators
        self.in_trials = self._real.in_trials
        self._clock, self._room, self._trials = clock, room, trials
        self._validate, self._seconds = validate, seconds
        self._start_s, self._import_s = start_s, import_s
        self._waiting: deque[Attempt] = deque()
        # The next events: the time, the order, the attempt, and whether it begins.
        self._events: list[tuple[float, int, Attempt, bool]] = []
        # Whether each attempt that runs is in the process of a trial.
        self._hosted: dict[str, bool] = {}
        # The times since which other processes have been idle.
        self._idle: list[float] = []
        self._order = 0
        #: How many processes were started, and how many attempts ran in processes of trials.
        self.started = self.hosted = 0
        #: The total seconds that validations have run.
        self.busy_s = 0.0

    @property
    def need(self) -> dict[str, float]:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._real.need

    def fits_in(self, place: Sequence[Mapping[str, float]]) -> bool:
        """See :class:`tunekit.validating.executor.Executor`."""
        return self._real.fits_in(place)

    def start(self, attempt: Attempt, *, host: Any = None) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        if host is None:
            self._waiting.append(attempt)
        else:
            self.hosted += 1
            self._begin(attempt, 0.0, hosted=True)

    def poll(self) -> list[AttemptEvent]:
        """See :class:`tunekit.validating.executor.Executor`."""
        events: list[AttemptEvent] = []
        self._end_idle(_IDLE_S)
        self._begin_waiting()
        while self._events and self._events[0][0] <= self._clock.monotonic():
            _, _, attempt, begins = heapq.heappop(self._events)
            if attempt.id not in self._hosted:  # it was cancelled
                continue
            if begins:
                events.append(Began(attempt.id))
                continue
            self._leave(attempt)
            events.append(Returned(attempt.id, self._validate(attempt)))
            self._begin_waiting()
        return events

    def _begin_waiting(self) -> None:
        """Begin waiting attempts for which there are resources, or an idle evaluator."""
        while self._waiting and self._can_begin:
            attempt = self._waiting.popleft()
            if self._most is None or not self._idle:
                self._room.validations += 1
            if self._idle:
                self._idle.pop()
                self._begin(attempt, 0.0)
            else:
                self.started += 1
                self._begin(attempt, self._start_s, self._import_s)

    @property
    def _can_begin(self) -> bool:
        self._room.trials = self._trials()
        if self._most is not None and self._idle:
            return True
        more = self._most is None or self._room.validations < self._most
        return more and self._room.for_validations() > 0

    def _begin(
        self, attempt: Attempt, start_s: float, import_s: float = 0.0, *, hosted: bool = False
    ) -> None:
        seconds = self._seconds(attempt) + import_s
        self.busy_s += seconds
        self._hosted[attempt.id] = hosted
        begins = self._clock.monotonic() + start_s
        self._push(begins, attempt, begins=True)
        self._push(begins + seconds, attempt, begins=False)

    def _push(self, when: float, attempt: Attempt, *, begins: bool) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, attempt, begins))

    def _leave(self, attempt: Attempt, *, lives_on: bool = True) -> None:
        """Release the process and the resources of an attempt."""
        if self._hosted.pop(attempt.id):
            return
        if lives_on:
            self._idle.append(self._clock.monotonic())
        if not lives_on or self._most is None:
            self._room.validations -= 1

    def cancel(self, attempt: Attempt) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        elif attempt.id in self._hosted:
            self._leave(attempt, lives_on=False)

    def spare(self, keep: int) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._end_idle(0.0, keep)

    def close(self) -> None:
        """See :class:`tunekit.validating.executor.Executor`."""
        self.in_trials = False
        self._end_idle(0.0)

    def _end_idle(self, after_s: float, keep: int = 0) -> None:
        """End evaluators that have been idle for ``after_s`` seconds, except ``keep`` of them."""
        idle, now = self._idle, self._clock.monotonic()
        while (
            self._most is not None
            and idle
            and now - idle[0] >= after_s
            and self._room.validations > keep
        ):
            idle.pop(0)
            self._room.validations -= 1

    def capacity(self, promised: Iterable[Mapping[str, float]]) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        self._room.trials = self._trials()
        room = self._room.for_validations(promised) - len(self._waiting)
        if self._most is None:
            return room
        return len(self._idle) + max(0, min(room, self._most - self._room.validations))

    def queued(self) -> int:
        """See :class:`tunekit.validating.executor.Executor`."""
        return len(self._waiting)

    def next_due(self) -> float | None:
        """Return the time of the next event: now if an attempt can begin; None if there is none."""
        if self._waiting and self._can_begin:
            return self._clock.monotonic()
        return self._events[0][0] if self._events else None
