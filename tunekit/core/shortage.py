"""Since when no validation has got its resources."""

from __future__ import annotations

__all__ = ["Shortage"]


class Shortage:
    """Whether a sweep's validations are short of resources, and since when.

    They are while all that were started wait for resources, because none are free. While one runs,
    or its process starts, which may take long, they are not: that one has its resources.

    Example:
        >>> shortage = Shortage()
        >>> shortage.seen(started=2, queued=2, now=10.0)
        >>> shortage.for_s(now=14.0)
        4.0
        >>> shortage.seen(started=2, queued=1, now=15.0)  # the other one's process starts
        >>> shortage.for_s(now=16.0)
        0.0
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def seen(self, *, started: int, queued: int, now: float) -> None:
        """Take the current numbers.

        Args:
            started: How many validations were started and have not ended.
            queued: How many of those wait for resources.
            now: The time, in seconds on any clock that does not go back.
        """
        if not started or queued < started:
            self._since = None
        elif self._since is None:
            self._since = now

    def relieved(self, now: float) -> None:
        """Note that something has given resources back for them: it counts from now."""
        if self._since is not None:
            self._since = now

    def for_s(self, now: float) -> float:
        """Return for how many seconds they have been short of resources; 0 if they are not."""
        return 0.0 if self._since is None else now - self._since
