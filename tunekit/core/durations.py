"""How long processes take to start, and validations to run: whether a process is worth it."""

from __future__ import annotations

import statistics
from collections import deque

__all__ = ["Durations"]

# How long a process takes to start, until that was seen: to import PyTorch takes so long.
_START_S = 2.0
# What takes longer has waited for resources, rather than for its process.
_LONGEST_START_S = 10.0
# By how many of the newest ones to go.
_NEWEST = 9
# For how much of a start a trial may stand still although resources are free.
_SHORT = 0.1


class Durations:
    """Learns from validations how long processes take to start, and validations to run.

    In the process of a trial, nothing starts, and the trial does not train meanwhile. If
    validations run for a tenth of the time that a process takes to start, that is the better place
    at each checkpoint. Longer ones run while their trials train, where resources are free; without
    any, trials stand still only for the scores that decide.

    Example:
        >>> known = Durations()
        >>> known.are_short()  # nothing is known yet
        True
        >>> known.started("a:0:1:1#1", now=0.0)
        >>> known.began("a:0:1:1#1", now=1.5)
        >>> known.ended("a:0:1:1#1", now=4.0)  # it ran for longer than its process to start
        >>> known.are_short()
        False

    A wait for resources is no start:
        >>> known = Durations()
        >>> known.started("a:0:1:1#1", now=0.0)
        >>> known.began("a:0:1:1#1", now=600.0)
        >>> known.ended("a:0:1:1#1", now=630.0)
        >>> known.are_short()
        False
    """

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=_NEWEST)
        self._runs: deque[float] = deque(maxlen=_NEWEST)
        # Since when attempts have been starting, and running.
        self._starting: dict[str, float] = {}
        self._running: dict[str, float] = {}

    def started(self, attempt_id: str, now: float) -> None:
        """Take that an attempt was started elsewhere than in a trial's process, at a time in s."""
        self._starting[attempt_id] = now

    def began(self, attempt_id: str, now: float) -> None:
        """Take that an attempt has its process, wherever that is, and runs."""
        since = self._starting.pop(attempt_id, None)
        if since is not None:
            self._starts.append(now - since)
        self._running[attempt_id] = now

    def ended(self, attempt_id: str, now: float) -> None:
        """Take that an attempt has ended, in whatever way."""
        self._starting.pop(attempt_id, None)
        since = self._running.pop(attempt_id, None)
        if since is not None:
            self._runs.append(now - since)

    def are_short(self) -> bool:
        """Return whether validations are so short that their trials stand still for them."""
        if not self._runs:
            return True
        # The longest: others may have found a process that had run before.
        start = min(max(self._starts, default=_START_S), _LONGEST_START_S)
        return statistics.median(self._runs) <= _SHORT * start
