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


class FakeClock:
    """A clock whose time passes only in :meth:`sleep`, which returns at once.

    Args:
        epoch: Where it starts, in seconds since the epoch.

    Example:
        >>> clock = FakeClock()
        >>> clock.sleep(2.5)
        >>> clock.monotonic(), clock.time()
        (2.5, 1000000002.5)
    """

    def __init__(self, epoch: float = 1e9):
        self._now = 0.0
        self._epoch = epoch

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self._now

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self._epoch + self._now

    def sleep(self, seconds: float) -> None:
        """Advance the time at once."""
        self._now += seconds
