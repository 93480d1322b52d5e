"""The pool of validations: which runs next, for how long, and how often it is retried."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.events import ValidationEnded
from tunekit.core.timing import Durations
from tunekit.core.validation import Attempt, Request, Status, score_problem


@dataclass(eq=False)
class _Validation:
    """A pending validation: it is queued, or an attempt of it is in flight."""

    request: Request
    since: float
    tries: int = 0
    # The time of the attempt's start elsewhere; None: it runs in the process of its trial.
    started: float | None = None
    began: float | None = None
    unplaced: bool = False

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.request, self.tries)

    def ended(self, status: Status, now: float, **more: Any) -> ValidationEnded:
        began = now if self.began is None else self.began
        return ValidationEnded(
            id=self.request.id,
            status=status.value,
            attempts=self.tries,
            waited_s=round(began - self.since, 4),
            ran_s=round(now - began, 4),
            **more,
        )


@dataclass
class _Trial:
    queued: OrderedDict[str, _Validation] = field(default_factory=OrderedDict)
    # By the names of the attempts.
    in_flight: dict[str, _Validation] = field(default_factory=dict)
    last_turn: int = 0

    @property
    def decides(self) -> bool:
        """Return whether the scheduler will use the score of a queued request."""
        return any(one.request.used for one in self.queued.values())

    @property
    def turn(self) -> tuple[bool, int, int]:
        """Return the sort key of trials with queued requests: the least is next."""
        return (not self.decides, len(self.in_flight), self.last_turn)


class Pool:
    """The validations of a sweep, from request to outcome.

    It does not start validations or wait for them: its owner passes in events and the time, and
    carries out what it returns. Times are seconds on any clock that is never set back.

    Rules:
        - At most ``max_in_flight`` attempts are in flight across the whole sweep. Without that
          limit, as many as free resources allow, and at least one, even if it has to wait for
          resources.
        - Validations whose scores the scheduler will use precede the others.
        - Trials take turns. The trial with the fewest attempts in flight is next; among equals, the
          one whose turn was longest ago. Within a trial, the oldest iteration is next.
        - The time limit counts from when an attempt begins to run, not from when it begins to wait
          for resources. An attempt that exceeds it is cancelled.
        - A failed or timed-out attempt is retried up to ``max_retries`` times. A return value that
          is not a score is not retried: the function would return the same.

    Args:
        max_in_flight: The maximum number of attempts in flight; None: as many as resources allow.
        max_retries: The maximum number of attempts after the first.

    Example:
        >>> pool = Pool(max_in_flight=1)
        >>> for trial in ("a", "b"):
        ...     _ = pool.submit(Request(trial, iteration=1), now=0.0)
        >>> [attempt] = pool.start(capacity=0, now=0.0)
        >>> attempt.id
        'a:0:1:1#1'
        >>> pool.began(attempt.id, now=2.0)
        >>> required = {"accuracy"}
        >>> outcome = pool.returned(attempt.id, {"accuracy": 0.9}, required, now=5.0)
        >>> outcome.status, outcome.waited_s, outcome.ran_s
        ('validated', 2.0, 3.0)
    """

    def __init__(self, *, max_in_flight: int | None = None, max_retries: int = 0):
        self._limit = max_in_flight
        self._retries = max_retries
        #: The durations of validations.
        self.durations = Durations()
        self._trials: dict[str, _Trial] = {}
        self._queue: dict[str, _Trial] = {}  # trials with queued requests
        self._in_flight: dict[str, _Validation] = {}
        # The time since which all started attempts have waited for resources.
        self._starved_since: float | None = None
        self._turns = 0
        # The trials whose validations were started or will be retried.
        self._moved: set[str] = set()
        #: The trials whose processes validations have ended, until they leave these.
        self.ended_hosts: set[str] = set()

    @property
    def queued(self) -> int:
        """Return the number of requests that have not started (or wait to be retried)."""
        return sum(len(trial.queued) for trial in self._queue.values())

    @property
    def running(self) -> int:
        """Return the number of running attempts."""
        return sum(one.began is not None for one in self._in_flight.values())

    @property
    def starting(self) -> int:
        """Return the number of attempts that were started but are not running yet.

        Some of them may wait for resources (:attr:`unplaced`); the processes of the others are
        starting.
        """
        return len(self._in_flight) - self.running

    @property
    def unplaced(self) -> int:
        """Return the number of started attempts that wait for resources."""
        return sum(one.unplaced for one in self._in_flight.values())

    def starved_s(self, now: float) -> float:
        """Return for how many seconds all started attempts have waited for resources.

        It is 0 if an attempt runs or its process is starting, because that one has its resources.
        """
        return 0.0 if self._starved_since is None else now - self._starved_since

    def relieved(self, now: float) -> None:
        """Restart :meth:`starved_s`, because resources were released for them."""
        if self._starved_since is not None:
            self._starved_since = now

    @property
    def idle(self) -> bool:
        """Return whether all requests have ended."""
        return not (self._queue or self._in_flight)

    @property
    def needs_capacity(self) -> bool:
        """Return whether :meth:`start` currently depends on the capacity."""
        return self._limit is None and bool(self._queue)

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt that is in flight."""
        return self._in_flight[attempt_id].attempt

    def in_flight(self) -> list[Attempt]:
        """Return all attempts that were started and have not ended."""
        return [one.attempt for one in self._in_flight.values()]

    def pending(self) -> list[Request]:
        """Return all requests that have not ended: those in flight, then the queued ones."""
        queued = (one for trial in self._queue.values() for one in trial.queued.values())
        return [one.request for one in (*self._in_flight.values(), *queued)]

    # Events ------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> list[ValidationEnded]:
        """Add a request; return the outcomes of older runs of its iteration, which end."""
        trial = self._trials.setdefault(request.trial_id, _Trial())
        reason = f"iteration {request.iteration} was run again"
        replaced = self._skip(trial, reason, now, at=request.place)
        self._enqueue(trial, _Validation(request, since=now))
        return replaced

    def _skip(
        self, trial: _Trial, reason: str, now: float, at: tuple[int, int] | None = None
    ) -> list[ValidationEnded]:
        """End a trial's requests that have not started: all, or those of one of its places."""
        found = [one for one in trial.queued.values() if at in (None, one.request.place)]
        for one in found:
            self._dequeue(trial, one)
        return [one.ended(Status.SKIPPED, now, reason=reason) for one in found]

    def wait_s(self, trial_id: str, now: float) -> float | None:
        """Return how long a trial still waits, at least, for scores that the scheduler will use.

        In seconds; None if the trial waits for none, or if the duration of validations is unknown.

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
        waits = [typical_s] * trial.decides
        for one in trial.in_flight.values():
            if one.request.used:
                ran_s = 0.0 if one.began is None else now - one.began
                waits.append(max(0.0, typical_s - ran_s))
        return max(waits, default=None)

    def decides_elsewhere(self, trial_id: str) -> bool:
        """Return whether a trial's scores that the scheduler will use are computed elsewhere."""
        trial = self._trials.get(trial_id)
        if trial is None or trial.decides:
            return False
        used = [one for one in trial.in_flight.values() if one.request.used]
        return bool(used) and all(one.started is not None for one in used)

    def pop_moved(self) -> set[str]:
        """Return and clear the trials whose validations were started or will be retried."""
        moved, self._moved = self._moved, set()
        return moved

    @property
    def needs_slot(self) -> bool:
        """Return whether a validation whose score the scheduler will use waits for resources."""
        if any(one.unplaced and one.request.used for one in self._in_flight.values()):
            return True
        can_start = self._limit is None or len(self._in_flight) < self._limit
        return can_start and any(trial.decides for trial in self._queue.values())

    def runs_in(self, trial_id: str) -> bool:
        """Return whether an attempt runs in the process of a trial."""
        trial = self._trials.get(trial_id)
        return trial is not None and any(one.started is None for one in trial.in_flight.values())

    def start_in_trials(
        self,
        hosts: Iterable[str],
        *,
        each: bool,
        asking: Collection[str] = (),
        others_wait: bool = False,
    ) -> list[Attempt]:
        """Return the attempts to start now in the processes of their waiting trials.

        Those whose scores the scheduler will use come first, with older ones that Tune gets before
        them. If another trial could use the slot of a waiting one, a validation rather waits for
        one that runs elsewhere; those that would wait for more than one run in their trials.

        Args:
            hosts: The trials that wait and whose processes can run a validation.
            each: Whether they wait for every score, not only for those that decide.
            asking: Those that do in any case, because their loops ask for them.
            others_wait: Whether another trial is waiting that could use such a slot.
        """
        queued = (one.request for trial in self._queue.values() for one in trial.queued.values())
        most = sum(each or one.used or one.trial_id in asking for one in queued)
        if others_wait:
            most -= sum(one.started is not None for one in self._in_flight.values())
        if self._limit is not None:
            most = min(most, self._limit - len(self._in_flight))
        own = [
            trial
            for trial_id in hosts
            if (trial := self._queue.get(trial_id)) is not None
            and (each or trial.decides or trial_id in asking)
        ]
        own.sort(key=lambda one: one.turn)
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
            trial = min(self._queue.values(), key=lambda one: one.turn)
            attempts.append(self._start_one(trial, now))
        return attempts

    def _start_one(self, trial: _Trial, started: float | None) -> Attempt:
        one = next(iter(trial.queued.values()))
        self._dequeue(trial, one)
        one.tries += 1
        one.started = started
        self._turns += 1
        trial.last_turn = self._turns
        self._moved.add(one.request.trial_id)
        attempt = one.attempt
        self._in_flight[attempt.id] = trial.in_flight[attempt.id] = one
        return attempt

    def began(self, attempt_id: str, now: float) -> None:
        """Record that an attempt has its resources and is running."""
        one = self._in_flight[attempt_id]
        one.began, one.unplaced = now, False
        self._starved_since = None
        if one.started is not None:
            self.durations.starts.append(now - one.started)

    def set_unplaced(self, count: int, now: float) -> None:
        """Set how many attempts wait for resources: the newest that are not running yet."""
        flying = self._in_flight.values()
        starting = [one for one in flying if one.began is None and one.started is not None]
        for n, one in enumerate(reversed(starting)):
            one.unplaced = n < count
        if not starting or self.unplaced < len(self._in_flight):
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now

    def returned(
        self, attempt_id: str, value: object, required: Collection[str], now: float
    ) -> ValidationEnded:
        """End an attempt whose function returned ``value``."""
        one = self._remove(attempt_id, now)
        reason = score_problem(value, required)
        if reason is not None:
            return one.ended(Status.FAILED, now, reason=reason)
        metrics = dict(value) if isinstance(value, Mapping) else {}
        return one.ended(Status.VALIDATED, now, metrics=metrics)

    def failed(
        self, attempt_id: str, reason: str, error: str | None, now: float
    ) -> ValidationEnded | None:
        """End an attempt that raised or whose process died; return None if it is retried."""
        one = self._remove(attempt_id, now)
        return self._retry_or_end(one, Status.FAILED, reason, error, now)

    def expire(self, now: float) -> tuple[list[Attempt], list[ValidationEnded]]:
        """End the attempts that have exceeded their time limit.

        Returns:
            The attempts to cancel, and the outcomes of those that are not retried.
        """
        cancel: list[Attempt] = []
        outcomes: list[ValidationEnded] = []
        for name, one in list(self._in_flight.items()):
            limit = one.request.timeout_s
            if limit is None or one.began is None or now - one.began < limit:
                continue
            self._remove(name, now)
            cancel.append(one.attempt)
            reason = f"ran longer than its limit of {limit:g} s"
            outcome = self._retry_or_end(one, Status.TIMED_OUT, reason, None, now)
            if outcome is not None:
                outcomes.append(outcome)
        return cancel, outcomes

    def drop(
        self, trial_id: str, reason: str, now: float
    ) -> tuple[list[Attempt], list[ValidationEnded]]:
        """End all requests of a trial.

        Returns:
            The attempts to cancel, and the outcome of each of the trial's requests.
        """
        trial = self._trials.get(trial_id, _Trial())
        own = [self._remove(name, now) for name in list(trial.in_flight)]
        ended = [one.ended(Status.SKIPPED, now, reason=reason) for one in own]
        return [one.attempt for one in own], [*ended, *self._skip(trial, reason, now)]

    # Internal state ----------------------------------------------------------------------------

    def _enqueue(self, trial: _Trial, one: _Validation, *, first: bool = False) -> None:
        trial.queued[one.request.id] = one
        trial.queued.move_to_end(one.request.id, last=not first)
        self._queue[one.request.trial_id] = trial

    def _dequeue(self, trial: _Trial, one: _Validation) -> None:
        del trial.queued[one.request.id]
        if not trial.queued:
            del self._queue[one.request.trial_id]

    def _remove(self, attempt_id: str, now: float) -> _Validation:
        one = self._in_flight.pop(attempt_id)
        if not self._in_flight:
            self._starved_since = None
        del self._trials[one.request.trial_id].in_flight[attempt_id]
        if one.began is not None:
            self.durations.runs.append(now - one.began)
        return one

    def _retry_or_end(
        self, one: _Validation, status: Status, reason: str, error: str | None, now: float
    ) -> ValidationEnded | None:
        if one.tries <= self._retries:
            one.began, one.unplaced = None, False
            self._moved.add(one.request.trial_id)
            self._enqueue(self._trials[one.request.trial_id], one, first=True)
            return None
        if one.tries > 1:
            reason = f"{reason} (after {one.tries} attempts)"
        return one.ended(status, now, reason=reason, error=error)
