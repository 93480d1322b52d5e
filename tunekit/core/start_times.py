"""Measured start times of trials."""

from __future__ import annotations

import statistics
from collections import deque

#: The seconds for a process to start, until one was measured: those to import PyTorch.
USUAL_S = 2.0


class StartTimes:
    """Measure how long trials take to start, and to train an iteration, from the newest ones.

    A start is the time from getting resources to the first report, less one iteration. It includes
    starting the process, imports, loading data, and restoring a resumed trial. Until an iteration
    has been measured, it is included, too. Times are seconds on any clock that is never set back.

    Example:
        >>> starts = StartTimes()
        >>> starts.begins("a", now=0.0), starts.begins("a", now=1.0)
        (True, False)
        >>> starts.reported("a", now=5.0)
        >>> starts.typical_s
        5.0
        >>> starts.trains("a", now=6.0)
        >>> starts.reported("a", now=8.0)
        >>> starts.typical_s, starts.iteration_s
        (3.0, 2.0)
        >>> starts.begins("b", now=8.0), starts.reported("b", now=13.0), starts.ends("b")
        (True, None, None)
        >>> starts.begins("c", now=13.0), starts.reported("c", now=18.0)  # where "b" had run
        (True, None)
        >>> starts.avoidable_s, starts.total_s
        (3.0, 17.0)
    """

    def __init__(self) -> None:
        #: The seconds of all starts and iterations.
        self.total_s = 0.0
        self._starting_s, self._started = 0.0, 0
        # The trials that may have a process, and the most at once.
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

    def begins(self, trial_id: str, now: float) -> bool:
        """Record that a trial has its resources; return whether that is new."""
        new = trial_id not in self._begun
        self._begun.setdefault(trial_id, now)
        self._present.add(trial_id)
        self._most = max(self._most, len(self._present))
        return new

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
