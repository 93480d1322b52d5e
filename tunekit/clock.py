"""The clock as an object, so that tests can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Read the time and wait, in seconds."""

    def monotonic(self) -> float:
        """Return a time that never decreases, for durations and time limits."""

    def time(self) -> float:
        """Return seconds since the epoch, for records."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The system clock."""

    def monotonic(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See :class:`Clock`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)


class Pace:
    """Space work by its duration.

    Args:
        share: The share of the time that the work may take, above 0 and at most 1.
        least_s: The least pause between two runs of the work, in seconds.

    Example:
        >>> pace = Pace(share=0.25)
        >>> pace.due(now=0.0)
        True
        >>> pace.took(began=0.0, ended=1.0)
        >>> pace.due(now=3.5), pace.due(now=4.0)
        (False, True)
    """

    def __init__(self, share: float, least_s: float = 0.0):
        self._share, self._least_s = share, least_s
        self._next: float | None = None

    def due(self, now: float) -> bool:
        """Return whether the work may run again."""
        return self._next is None or now >= self._next

    def took(self, began: float, ended: float) -> None:
        """Record that the work ran between two readings of a clock."""
        self._next = ended + max(self._least_s, (ended - began) * (1 / self._share - 1))
