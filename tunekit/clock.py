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
