"""The pool of validations: which runs next, for how long, and how often it is retried."""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.start_times import USUAL_S
from tunekit.core.validation import (
    Attempt,
    Outcome,
    Request,
    Status,
    rejected,
)

# A longer start has waited for resources, not for its process.
_LONGEST_START_S = 10.0
# The share of a process start for which a trial may wait although resources are free.
_SHORT = 0.1


@dataclass
class _Waiting:
    request: Request
    since: float
    tries: int = 0


@dataclass
class _InFlight:
    attempt: Attempt
    waiting: _Waiting
    # The time of its start elsewhere; None: it runs in the process of its trial.
    started: float | None = None
    began: float | None = None
    queued: bool = False


@dataclass
class _Trial:
    waiting: OrderedDict[str, _Waiting] = field(default_factory=OrderedDict)
    # The number of its waiting requests that the scheduler will decide by.
    decides: int = 0
    in_flight: int = 0
    # The number of those that run in its process.
    hosts: int = 0
    served: int = 0


class Durations:
    """Measure the newest durations in a sweep, in seconds.

    They are ``starts`` of processes and ``runs`` of validations.

    In the process of a trial, nothing has to start, but the trial does not train meanwhile. If
    validations take less than a tenth of a process start, they run there, at each checkpoint.
    Longer ones run while their trials train, if resources are free; otherwise, trials wait only for
    the scores that decide.

    Example:
        >>> known = Durations()
        >>> known.are_short()  # nothing is known yet
        True
        >>> known.starts.append(1.5)
        >>> known.runs.append(2.5)
        >>> known.are_short()
        False
        >>> known.starts.append(600.0)  # it waited for resources
        >>> known.are_short()
        False
    """

    def __init__(self) -> None:
        self.starts: deque[float] = deque(maxlen=9)
        self.runs: deque[float] = deque(maxlen=9)

    @property
    def typical_s(self) -> float | None:
        """Return the median duration of a validation, in seconds; None until one has ended."""
        return statistics.median(self.runs) if self.runs else None

    def are_short(self) -> bool:
        """Return whether validations are so short that their trials wait for them."""
        return (self.typical_s or 0.0) < _SHORT * self.start_s

    @property
    def start_s(self) -> float:
        """Return the duration of a process start, in seconds, to the millisecond."""
        # The longest: others may have found a process that had already run.
        return round(min(max(self.starts, default=USUAL_S), _LONGEST_START_S), 3)


class Pool:
    """The validations of a sweep, from request to outcome.

    It does not start validations or wait for them: its owner passes in events and the time, and
    carries out what it returns. Times are seconds on any clock that is never set back.

    Rules:
        - At most ``max_in_flight`` attempts are in flight across the whole sweep. Without that
          limit, as many as free resources allow, and at least one, even if it has to wait for
          resources.
        - Validations that the scheduler will decide by precede the others.
        - Trials take turns. The trial with the fewest attempts in flight is next; among equals, the
          one served longest ago. Within a trial, the oldest iteration is next.
        - The time limit counts from when an attempt begins to run, not from when it begins to wait
          for resources. An attempt that exceeds it is cancelled.
        - A failed or timed-out attempt is retried up to ``max_retries`` times. A return value that
          is not a score is not retried: the function would return the same.

    Args:
        max_in_flight: The most attempts in flight at once; None: as many as resources allow.
        max_retries: The most attempts after the first.

    Example:
        >>> pool = Pool(max_in_flight=1)
        >>> for trial in ("a", "b"):
        ...     _ = pool.submit(Request(trial, iteration=1), now=0.0)
        >>> [attempt] = pool.start(capacity=0, now=0.0)
        >>> attempt.id
        'a:0:1:1#1'
        >>> pool.began(attempt.id, now=2.0)
        >>> judged = {"accuracy"}
        >>> outcome = pool.returned(attempt.id, {"accuracy": 0.9}, judged, now=5.0)
        >>> outcome.status.value, outcome.waited_s, outcome.ran_s
        ('validated', 2.0, 3.0)
    """

    def __init__(self, *, max_in_flight: int | None = None, max_retries: int = 0):
        self._limit = max_in_flight
        self._retries = max_retries
        #: The durations of validations.
        self.durations = Durations()
        self._trials: dict[str, _Trial] = {}
        self._queue: OrderedDict[str, None] = OrderedDict()  # trials with something waiting
        self._in_flight: dict[str, _InFlight] = {}
        # The time since which all started attempts have waited for resources.
        self._starved_since: float | None = None
        self._turn = 0
        #: The number of requests that have not started (or wait to be retried).
        self.waiting = 0
        # The number of them that the scheduler will decide by.
        self._deciding = 0
        #: The number of running attempts.
        self.running = 0

    @property
    def starting(self) -> int:
        """Return the number of attempts that were started and do not run yet.

        Some of them may wait for resources (:attr:`queued`); the processes of the others are
        starting.
        """
        return len(self._in_flight) - self.running

    @property
    def queued(self) -> int:
        """Return the number of started attempts that wait for resources."""
        return sum(flight.queued for flight in self._in_flight.values())

    def starved_s(self, now: float) -> float:
        """Return the seconds for which all started attempts have waited for resources.

        It is 0 if an attempt runs or its process is starting, because that has its resources.
        """
        return 0.0 if self._starved_since is None else now - self._starved_since

    def relieved(self, now: float) -> None:
        """Restart :meth:`starved_s`, because resources were released for them."""
        if self._starved_since is not None:
            self._starved_since = now

    @property
    def idle(self) -> bool:
        """Return whether all requests have ended."""
        return not (self.waiting or self._in_flight)

    @property
    def needs_capacity(self) -> bool:
        """Return whether :meth:`start` depends on the capacity now."""
        return self._limit is None and bool(self._queue)

    def flies(self, attempt_id: str) -> bool:
        """Return whether an attempt is in flight."""
        return attempt_id in self._in_flight

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt that is in flight."""
        return self._in_flight[attempt_id].attempt

    def in_flight(self) -> list[Attempt]:
        """Return all attempts that were started and have not ended."""
        return [flight.attempt for flight in self._in_flight.values()]

    def pending(self) -> Iterator[Request]:
        """Yield all requests that have not ended: those in flight, then the waiting ones."""
        yield from (flight.attempt.request for flight in self._in_flight.values())
        for trial in self._trials.values():
            yield from (one.request for one in trial.waiting.values())

    # Events ------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> list[Outcome]:
        """Add a request; return the outcomes of older runs of its iteration, which end."""
        trial = self._trials.setdefault(request.trial_id, _Trial())
        reason = f"iteration {request.iteration} was run again"
        replaced = self._skip(request.trial_id, reason, now, place=request.place)
        self._enqueue(trial, _Waiting(request, since=now))
        return replaced

    def _skip(
        self, trial_id: str, reason: str, now: float, place: tuple[int, int] | None = None
    ) -> list[Outcome]:
        """End a trial's requests that have not started: all, or those of one of its places."""
        trial = self._trials.setdefault(trial_id, _Trial())
        found = [one for one in trial.waiting.values() if place in (None, one.request.place)]
        for waiting in found:
            self._forget_waiting(trial, waiting)
        return [_ended(one, Status.SKIPPED, now, reason=reason) for one in found]

    def wait_s(self, trial_id: str, now: float) -> float | None:
        """Return the least time, in seconds, that a trial still waits for scores that decide.

        It is None if the trial waits for none, or if the duration of validations is unknown.

        Example:
            >>> pool = Pool()
            >>> pool.durations.runs.append(8.0)
            >>> _ = pool.submit(Request("a", iteration=1), now=0.0)
            >>> pool.wait_s("a", now=1.0)
            8.0
            >>> [attempt] = pool.start(capacity=1, now=1.0)
            >>> pool.began(attempt.id, now=2.0)
            >>> pool.wait_s("a", now=5.0), pool.wait_s("b", now=5.0)
            (5.0, None)
        """
        trial, typical_s = self._trials.get(trial_id), self.durations.typical_s
        if trial is None or typical_s is None:
            return None
        waits = [typical_s] * bool(trial.decides)
        for flight in self._in_flight.values() if trial.in_flight else ():
            if flight.attempt.request.trial_id == trial_id and flight.attempt.request.used:
                ran_s = 0.0 if flight.began is None else now - flight.began
                waits.append(max(0.0, typical_s - ran_s))
        return max(waits, default=None)

    @property
    def wants_room(self) -> bool:
        """Return whether a validation that the scheduler will decide by waits for resources."""
        if any(
            flight.queued and flight.attempt.request.used for flight in self._in_flight.values()
        ):
            return True
        can_start = self._limit is None or len(self._in_flight) < self._limit
        return can_start and self._deciding > 0

    def hosts(self, trial_id: str) -> bool:
        """Return whether an attempt runs in the process of a trial."""
        trial = self._trials.get(trial_id)
        return trial is not None and trial.hosts > 0

    def start_in_trials(
        self,
        standing: Iterable[str],
        *,
        each: bool,
        others_wait: bool = False,
    ) -> list[Attempt]:
        """Return the attempts to start now in the processes of their waiting trials.

        Those that the scheduler will decide by come first, with older ones that Tune gets before
        them. If another trial could use a waiting trial's slot, that is better,
        unless a validation would have to wait for more than one other.

        Args:
            standing: The trials that wait and whose processes can run a validation.
            each: Whether they wait for each score, not only for those that decide.
            others_wait: Whether another trial waits that could use such a slot.
        """
        most = self.waiting if each else self._deciding
        if others_wait:
            most -= sum(flight.started is not None for flight in self._in_flight.values())
        if self._limit is not None:
            most = min(most, self._limit - len(self._in_flight))
        own = [self._trials[trial_id] for trial_id in standing if trial_id in self._queue]
        own = sorted((one for one in own if each or one.decides), key=self._turn_of)
        return [self._start_one(one, None) for one in own[: max(0, most)]]

    def start(self, capacity: int, now: float, *, waits: bool = False) -> list[Attempt]:
        """Return the attempts to start now.

        Args:
            capacity: The number of further attempts that the free resources allow; used only if
                :attr:`needs_capacity`.
            now: The time.
            waits: Whether to start nothing until resources are free. Otherwise, one attempt is
                always started, and waits for them.
        """
        if self._limit is not None:
            room = self._limit - len(self._in_flight)
        else:
            room = max(capacity, 0 if self._in_flight or waits else 1)
        attempts: list[Attempt] = []
        while self._queue and len(attempts) < room:
            trial = min((self._trials[trial_id] for trial_id in self._queue), key=self._turn_of)
            attempts.append(self._start_one(trial, now))
        return attempts

    def _start_one(self, trial: _Trial, started: float | None) -> Attempt:
        waiting = next(iter(trial.waiting.values()))
        self._forget_waiting(trial, waiting)
        return self._fly(waiting, started)

    def _fly(self, waiting: _Waiting, started: float | None) -> Attempt:
        trial = self._trials[waiting.request.trial_id]
        waiting.tries += 1
        self._turn += 1
        trial.served = self._turn
        trial.in_flight += 1
        trial.hosts += started is None
        attempt = Attempt(waiting.request, waiting.tries)
        self._in_flight[attempt.id] = _InFlight(attempt, waiting, started)
        return attempt

    def began(self, attempt_id: str, now: float) -> None:
        """Record that an attempt has got its resources and runs."""
        flight = self._in_flight.get(attempt_id)
        if flight is not None and flight.began is None:
            flight.began, flight.queued = now, False
            self._starved_since = None
            if flight.started is not None:
                self.durations.starts.append(now - flight.started)
            self.running += 1

    def queue(self, count: int, now: float) -> None:
        """Set the number of attempts that wait for resources: the newest that do not run yet."""
        starting = [
            flight
            for flight in self._in_flight.values()
            if flight.began is None and flight.started is not None
        ]
        for place, flight in enumerate(reversed(starting)):
            flight.queued = place < count
        if not starting or self.queued < len(self._in_flight):
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now

    def returned(
        self, attempt_id: str, value: object, judged: Collection[str], now: float
    ) -> Outcome | None:
        """End an attempt whose function returned ``value``; return None if it is not needed."""
        flight = self._land(attempt_id, now)
        if flight is None:
            return None
        reason = rejected(value, judged)
        if reason is not None:
            return _ended(flight.waiting, Status.FAILED, now, flight, reason=reason)
        metrics = value if isinstance(value, Mapping) else {}
        return _ended(flight.waiting, Status.VALIDATED, now, flight, metrics=metrics)

    def failed(self, attempt_id: str, reason: str, error: str | None, now: float) -> Outcome | None:
        """End an attempt that raised or whose process died; None if it is retried or not needed."""
        flight = self._land(attempt_id, now)
        if flight is None:
            return None
        return self._retry_or_end(flight, Status.FAILED, reason, error, now)

    def expire(self, now: float) -> tuple[list[Attempt], list[Outcome]]:
        """End the attempts that have exceeded their time limit.

        Returns:
            The attempts to cancel, and the outcomes of those that are not retried.
        """
        cancel: list[Attempt] = []
        outcomes: list[Outcome] = []
        for flight in list(self._in_flight.values()):
            limit = flight.attempt.request.timeout_s
            if limit is None or flight.began is None or now - flight.began < limit:
                continue
            self._land(flight.attempt.id, now)
            cancel.append(flight.attempt)
            reason = f"ran longer than its limit of {limit:g} s"
            outcome = self._retry_or_end(flight, Status.TIMED_OUT, reason, None, now)
            if outcome is not None:
                outcomes.append(outcome)
        return cancel, outcomes

    def drop(self, trial_id: str, reason: str, now: float) -> tuple[list[Attempt], list[Outcome]]:
        """End all requests of a trial.

        Returns:
            The attempts to cancel, and the outcome of each of the trial's requests.
        """
        own = [one for one in self._in_flight.values() if one.attempt.request.trial_id == trial_id]
        for flight in own:
            self._land(flight.attempt.id, now)
        ended = [_ended(one.waiting, Status.SKIPPED, now, one, reason=reason) for one in own]
        return [one.attempt for one in own], [*ended, *self._skip(trial_id, reason, now)]

    # Internal state ----------------------------------------------------------------------------

    def _turn_of(self, trial: _Trial) -> tuple[bool, int, int]:
        """Return the sort key of trials with waiting requests: the least is next."""
        return (not trial.decides, trial.in_flight, trial.served)

    def _enqueue(self, trial: _Trial, waiting: _Waiting, *, first: bool = False) -> None:
        trial.decides += waiting.request.used
        self._deciding += waiting.request.used
        trial.waiting[waiting.request.id] = waiting
        if first:
            trial.waiting.move_to_end(waiting.request.id, last=False)
        self._queue[waiting.request.trial_id] = None
        self.waiting += 1

    def _forget_waiting(self, trial: _Trial, waiting: _Waiting) -> None:
        del trial.waiting[waiting.request.id]
        trial.decides -= waiting.request.used
        self._deciding -= waiting.request.used
        self.waiting -= 1
        if not trial.waiting:
            self._queue.pop(waiting.request.trial_id, None)

    def _land(self, attempt_id: str, now: float) -> _InFlight | None:
        flight = self._in_flight.pop(attempt_id, None)
        if flight is not None:
            if not self._in_flight:
                self._starved_since = None
            trial = self._trials[flight.attempt.request.trial_id]
            trial.in_flight -= 1
            trial.hosts -= flight.started is None
            if flight.began is not None:
                self.running -= 1
                self.durations.runs.append(now - flight.began)
        return flight

    def _retry_or_end(
        self, flight: _InFlight, status: Status, reason: str, error: str | None, now: float
    ) -> Outcome | None:
        waiting = flight.waiting
        if waiting.tries <= self._retries:
            self._enqueue(self._trials[waiting.request.trial_id], waiting, first=True)
            return None
        if waiting.tries > 1:
            reason = f"{reason} (after {waiting.tries} attempts)"
        return _ended(waiting, status, now, flight, reason=reason, error=error)


def _ended(
    waiting: _Waiting,
    status: Status,
    now: float,
    flight: _InFlight | None = None,
    *,
    metrics: Mapping[str, Any] | None = None,
    reason: str | None = None,
    error: str | None = None,
) -> Outcome:
    began = flight.began if flight is not None else None
    return Outcome(
        request=waiting.request,
        status=status,
        metrics=dict(metrics or {}),
        reason=reason,
        error=error,
        attempts=waiting.tries,
        waited_s=(now if began is None else began) - waiting.since,
        ran_s=0.0 if began is None else now - began,
    )
