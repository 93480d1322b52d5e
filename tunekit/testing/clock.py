"""A clock that stands still unless it is moved."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A :class:`~tunekit.clock.Clock` whose time passes only in :meth:`sleep`.

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
        """Seconds that were slept."""
        return self._now

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass, at once."""
        self._now += seconds
