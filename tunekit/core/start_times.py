"""How long a trial takes to start, as a sweep has measured it."""

from __future__ import annotations

import statistics
from collections import deque

__all__ = ["USUAL_S", "StartTimes"]

#: How long a process takes to start, until that was seen: to import PyTorch takes so long.
USUAL_S = 2.0


class StartTimes:
    """Learns how long trials take to start, and for an iteration, from the newest of them.

    A start is what a trial takes from getting its resources to its first report there, less an
    iteration: its process, its imports and its data, and its state, if it resumes. As long as no
    iteration was measured, it is counted with one. Times are seconds on any clock that does not go
    back.

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
        """Return the seconds that a start takes; None until there was one."""
        if not self._firsts:
            return None
        return max(0.0, statistics.median(self._firsts) - (self.iteration_s or 0.0))

    @property
    def iteration_s(self) -> float | None:
        """Return the seconds that an iteration takes; None until there was one."""
        return statistics.median(self._iterations) if self._iterations else None

    def begins(self, trial_id: str, now: float) -> bool:
        """Note that a trial has its resources; return whether that is new."""
        new = trial_id not in self._begun
        self._begun.setdefault(trial_id, now)
        return new

    def trains(self, trial_id: str, now: float) -> None:
        """Note that a trial trains its next iteration in its process."""
        self._training[trial_id] = now

    def reported(self, trial_id: str, now: float) -> None:
        """Note that a trial has reported."""
        begun, training = self._begun.pop(trial_id, None), self._training.pop(trial_id, None)
        if begun is not None:
            self._firsts.append(now - begun)
        elif training is not None:
            self._iterations.append(now - training)

    def ends(self, trial_id: str) -> None:
        """Note that a trial has no process any more."""
        self._begun.pop(trial_id, None)
        self._training.pop(trial_id, None)
