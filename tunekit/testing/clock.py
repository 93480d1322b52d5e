"""A clock that stands still unless it is moved."""

from __future__ import annotations

from tunekit.clock import VirtualClock

__all__ = ["FakeClock"]


class FakeClock(VirtualClock):
    """Pass time in ``sleep`` only, as a :class:`~tunekit.clock.Clock`.

    Example:
        >>> clock = FakeClock()
        >>> clock.sleep(2.5)
        >>> clock.monotonic(), clock.time()
        (2.5, 1000000002.5)
    """
