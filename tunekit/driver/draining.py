"""The end of a sweep: its trials have ended, and some of its validations have not."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection
from typing import Any

from tunekit._ray.progress import Display
from tunekit.clock import Clock
from tunekit.core.progress import News, awaited
from tunekit.core.validation import Pending

__all__ = ["Draining", "Interruption"]

logger = logging.getLogger(__name__)

# How long a sweep waits at its end before it says so, and says so again, and is shown anew.
_FIRST_NEWS_S, _NEWS_INTERVAL_S, _REFRESH_INTERVAL_S = 2.0, 10.0, 1.0


class Draining:
    """Knows for how long a sweep has waited for its last validations, and says so now and then.

    It does not wait: whoever holds it does.

    Args:
        clock: What the time is read from.
        statuses: How far every validation is that has not ended.
    """

    def __init__(self, clock: Clock, statuses: Callable[[], Collection[Pending]]):
        self._clock, self._statuses = clock, statuses
        self._since: float | None = None
        self._news = self._fresh = News(0.0, 0.0)
        #: Seconds that the sweep went on after its last trial had ended.
        self.took_s = 0.0

    def goes_on(self, display: Display | None) -> None:
        """The sweep waits: the first time that begins; show it, and say now and then for what."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
            first_s = _FIRST_NEWS_S if display is not None and display.shows else _NEWS_INTERVAL_S
            self._news = News(first_s, _NEWS_INTERVAL_S)
            self._fresh = News(_REFRESH_INTERVAL_S, _REFRESH_INTERVAL_S)
        text = self.awaited() if self._news.due(now) else None
        if not self._fresh.due(now) and text is None:
            return
        if (display is None or not display.refresh(text)) and text is not None:
            logger.info("%s.", text)

    @property
    def waits(self) -> bool:
        """Return whether the sweep waits for nothing but validations."""
        return self._since is not None

    def over(self) -> None:
        """The sweep does not wait any more."""
        if self._since is not None:
            self.took_s += self._clock.monotonic() - self._since
            self._since = None

    def broken_off(self) -> None:
        """The sweep was interrupted while it waited."""
        self._since = None

    def awaited(self) -> str | None:
        """Return what the sweep waits for at its end; None before that."""
        if self._since is None:
            return None
        pending = self._statuses()
        return awaited(pending, self._clock.monotonic() - self._since) if pending else None


class Interruption:
    """Whether Tune has seen Ctrl-C since the sweep began: it puts the former handler back then."""

    # Tune keeps a copy of all callbacks before the sweep begins, and a handler has no copy.
    _handler: Any = None

    def begin(self) -> None:
        """The sweep begins."""
        self._handler = signal.getsignal(signal.SIGINT)

    @property
    def seen(self) -> bool:
        """Return whether it has."""
        if threading.current_thread() is not threading.main_thread():
            return False
        return signal.getsignal(signal.SIGINT) is not self._handler
