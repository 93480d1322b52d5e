"""Time as an object, so that tests can pass another one in."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class Clock(Protocol):
    """Two readings of the time, and waiting; all in seconds."""

    def monotonic(self) -> float:
        """A reading that never goes back: for durations and time limits."""
        ...

    def time(self) -> float:
        """Seconds since the epoch: for records."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See :class:`Clock`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        time.sleep(seconds)


class VirtualClock:
    """A clock whose time passes only in :meth:`sleep`, at once.

    Args:
        epoch: Where it starts, in seconds since the epoch.

    Example:
        >>> clock = VirtualClock()
        >>> clock.sleep(2.5)
        >>> clock.monotonic(), clock.time()
        (2.5, 1000000002.5)
    """

    def __init__(self, epoch: float = 1e9):
        self._now = 0.0
        self._epoch = epoch

    def monotonic(self) -> float:
        """Seconds that were slept."""
        return self._now

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass, at once."""
        self._now += seconds
