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
    """

    def __init__(self) -> None:
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

    def begins(self, trial_id: str, now: float) -> bool:
        """Record that a trial has its resources; return whether that is new."""
        new = trial_id not in self._begun
        self._begun.setdefault(trial_id, now)
        return new

    def trains(self, trial_id: str, now: float) -> None:
        """Record that a trial trains its next iteration in its process."""
        self._training[trial_id] = now

    def reported(self, trial_id: str, now: float) -> None:
        """Record that a trial has reported."""
        begun, training = self._begun.pop(trial_id, None), self._training.pop(trial_id, None)
        if begun is not None:
            self._firsts.append(now - begun)
        elif training is not None:
            self._iterations.append(now - training)

    def ends(self, trial_id: str) -> None:
        """Record that a trial no longer has a process."""
        self._begun.pop(trial_id, None)
        self._training.pop(trial_id, None)
