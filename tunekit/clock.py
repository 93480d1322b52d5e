"""Time as an object, so that tests can pass another one in."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


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
