"""Times: the clock, the pace of repeated work, and how long trials and validations take."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Protocol

#: The assumed seconds for a process to start, until one has been measured: the import of PyTorch.
USUAL_S = 2.0
# A longer start has waited for resources, not for its process.
_LONGEST_START_S = 10.0
# The share of a process start for which a trial may wait although resources are free, and the share
# of an iteration if it need not wait at all.
_SHORT, _NOTICED = 0.1, 0.02
# The starts after which it is known whether validations find processes that have already run.
_FIRST_STARTS = 4


class Clock(Protocol):
    """Read the time and wait, in seconds; the ``time`` module does, and tests have another."""

    def monotonic(self) -> float:
        """Return a time that never decreases, for durations and time limits."""

    def time(self) -> float:
        """Return seconds since the epoch, for records."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


class Pace:
    """Space work by its duration.

    Args:
        share: The share of the time that the work may take, above 0 and at most 1.
        least_s: The minimum pause between two runs of the work, in seconds.

    Example:
        >>> pace = Pace(share=0.25)
        >>> pace.is_ready(now=0.0)
        True
        >>> pace.ran(began=0.0, ended=1.0)
        >>> pace.is_ready(now=3.5), pace.is_ready(now=4.0)
        (False, True)
    """

    def __init__(self, share: float, least_s: float = 0.0):
        self._share, self._least_s = share, least_s
        self._next: float | None = None

    def is_ready(self, now: float) -> bool:
        """Return whether the work may run again."""
        return self._next is None or now >= self._next

    def ran(self, began: float, ended: float) -> None:
        """Record that the work ran between two readings of a clock."""
        self._next = ended + max(self._least_s, (ended - began) * (1 / self._share - 1))


class StartTimes:
    """Measure how long trials take to start, and to train an iteration, from the newest ones.

    A start is the time from getting resources to the first report, less one iteration. It includes
    starting the process, imports, loading data, and restoring a resumed trial. Until an iteration
    has been measured, its time is included too. Times are seconds on any clock that is never set
    back.

    Example:
        >>> starts = StartTimes()
        >>> starts.begins("a", now=0.0)
        >>> starts.reported("a", now=5.0)
        >>> starts.typical_s
        5.0
        >>> starts.trains("a", now=6.0)
        >>> starts.reported("a", now=8.0)
        >>> starts.typical_s, starts.iteration_s
        (3.0, 2.0)
        >>> starts.begins("b", now=8.0), starts.reported("b", now=13.0), starts.ends("b")
        (None, None, None)
        >>> starts.begins("c", now=13.0), starts.reported("c", now=18.0)  # where "b" had run
        (None, None)
        >>> starts.avoidable_s, starts.total_s
        (3.0, 17.0)
    """

    def __init__(self) -> None:
        #: The seconds of all starts and iterations.
        self.total_s = 0.0
        self._starting_s, self._started = 0.0, 0
        # The trials that may have a process, and the largest number at once.
        self._present: set[str] = set()
        self._most = 0
        self._begun: dict[str, float] = {}
        self._training: dict[str, float] = {}
        self._firsts: deque[float] = deque(maxlen=9)
        self._iterations: deque[float] = deque(maxlen=9)

    @property
    def typical_s(self) -> float | None:
        """Return the median duration of a start, in seconds; None until one was measured."""
        if not self._firsts:
            return None
        return max(0.0, statistics.median(self._firsts) - (self.iteration_s or 0.0))

    @property
    def iteration_s(self) -> float | None:
        """Return the median duration of an iteration, in seconds; None until one was measured."""
        return statistics.median(self._iterations) if self._iterations else None

    @property
    def avoidable_s(self) -> float:
        """Return how many seconds of the starts reused processes would save."""
        if not self._started:
            return 0.0
        mean_s = self._starting_s / self._started - (self.iteration_s or 0.0)
        return max(0.0, mean_s) * max(0, self._started - self._most)

    def begins(self, trial_id: str, now: float) -> None:
        """Record that a trial has its resources."""
        self._begun.setdefault(trial_id, now)
        self._present.add(trial_id)
        self._most = max(self._most, len(self._present))

    def trains(self, trial_id: str, now: float) -> None:
        """Record that a trial trains its next iteration in its process."""
        self._training[trial_id] = now

    def reported(self, trial_id: str, now: float) -> None:
        """Record that a trial has reported."""
        begun, training = self._begun.pop(trial_id, None), self._training.pop(trial_id, None)
        if begun is not None:
            self._firsts.append(now - begun)
            self._starting_s, self._started = self._starting_s + now - begun, self._started + 1
            self.total_s += now - begun
        elif training is not None:
            self._iterations.append(now - training)
            self.total_s += now - training

    def ends(self, trial_id: str) -> None:
        """Record that a trial no longer has a process."""
        self._begun.pop(trial_id, None)
        self._training.pop(trial_id, None)
        self._present.discard(trial_id)


class Durations:
    """Measure the newest durations in a sweep, in seconds.

    They are ``starts`` of processes and ``runs`` of validations.

    In the process of a trial, nothing has to start, but the trial does not train meanwhile. If
    validations take less than a tenth of a process start, they run there, at each checkpoint; but
    if they have resources of their own and no score decides, only if that hardly slows training
    down. Longer ones run while their trials train, if resources are free; otherwise, trials wait
    only for the scores that decide.

    Example:
        >>> known = Durations()
        >>> known.are_short()  # nothing is known yet
        True
        >>> known.starts.append(1.5)
        >>> known.runs.append(0.9)
        >>> known.are_short(), known.are_short(trial_s=9.5)
        (False, True)
        >>> known.are_short(trial_s=9.5, iteration_s=10.0)
        False
        >>> known.runs.append(1.9)
        >>> known.are_short(trial_s=600.0)  # it waited for resources
        False
    """

    def __init__(self) -> None:
        self.starts: deque[float] = deque(maxlen=9)
        self.runs: deque[float] = deque(maxlen=9)

    @property
    def typical_s(self) -> float | None:
        """Return the median duration of a validation, in seconds; None until one has ended."""
        return statistics.median(self.runs) if self.runs else None

    @property
    def late_s(self) -> float:
        """Return how much later a validation begins elsewhere than in its trial, in seconds.

        That is the shortest of several starts: the first ones find no process that has run before.
        """
        return min(self.starts) if len(self.starts) > _FIRST_STARTS else 0.0

    def are_short(self, trial_s: float | None = None, iteration_s: float | None = None) -> bool:
        """Return whether validations are so short that their trials wait for them.

        Args:
            trial_s: The duration of a trial's start, in seconds, if known. Usually, a validation's
                process has to import the same modules.
            iteration_s: The duration of an iteration, in seconds, if validations have resources of
                their own and no score decides; 0 if it is not known.
        """
        # The longest one: others may have found a process that had already run.
        start_s = max(max(self.starts, default=USUAL_S), trial_s or 0.0)
        short_s = _SHORT * min(start_s, _LONGEST_START_S)
        if iteration_s is not None:
            short_s = min(short_s, _NOTICED * iteration_s)
        return (self.typical_s or 0.0) < short_s
