"""Pages that change, and what follows them as long as anybody looks at them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from tunekit.clock import Clock, SystemClock

__all__ = ["Live", "Update", "View", "Watch"]

logger = logging.getLogger(__name__)

# How often something is looked at that has not changed, and a silent connection is used.
_INTERVAL_S, _BEAT_S = 0.5, 15.0


@dataclass(frozen=True)
class Update:
    """What has changed on a page.

    Attributes:
        version: The page's version, once a browser has taken this.
        order: The names of all parts, in order.
        parts: The parts that have changed, as HTML, by name.
        charts: The names of the charts that have changed.
    """

    version: str
    order: list[str]
    parts: dict[str, str]
    charts: list[str] = field(default_factory=list)


class View:
    """The parts of a page, each with the version at which it has changed last.

    One thread may change it while others read it. A version also names the view: a browser that has
    one of another server's, from before a restart, gets all parts.

    Args:
        name: What tells this view from others; by default, a random text.

    Example:
        >>> view = View("v")
        >>> view.show({"summary": "<p>running</p>", "ranking": "<p>none</p>"})
        True
        >>> view.version, view.since("w-7").parts == view.parts
        ('v-1', True)
        >>> view.show({"summary": "<p>running</p>", "ranking": "<p>a</p>"})
        True
        >>> view.since("v-1").parts
        {'ranking': '<p>a</p>'}
        >>> view.since("v-2") is None
        True
    """

    def __init__(self, name: str | None = None):
        self._name = name or secrets.token_hex(8)
        self._number = 0
        self._lock = threading.Lock()
        #: The parts as HTML, by name, in order.
        self.parts: dict[str, str] = {}
        #: The charts as JSON, by name.
        self.charts: dict[str, str] = {}
        self._changed: dict[tuple[str, str], int] = {}

    @property
    def version(self) -> str:
        """Return the version, as a browser gives it back."""
        return f"{self._name}-{self._number}"

    def show(self, parts: Mapping[str, str]) -> bool:
        """Show these parts, in this order, and no others; return whether anything has changed."""
        changed = [name for name, text in parts.items() if self.parts.get(name) != text]
        if not changed and list(parts) == list(self.parts):
            return False
        with self._lock:
            self.parts = dict(parts)
            self._note("part", changed)
        return True

    def draw(self, charts: Mapping[str, str]) -> bool:
        """Show charts, beside those that are there; return whether anything has changed."""
        changed = [name for name, text in charts.items() if self.charts.get(name) != text]
        if changed:
            with self._lock:
                self.charts = {**self.charts, **charts}
                self._note("chart", changed)
        return bool(changed)

    def since(self, version: str) -> Update | None:
        """Return what a browser lacks that has a version; None if that is nothing."""
        name, _, number = version.rpartition("-")
        known = int(number) if name == self._name and number.isdecimal() else -1
        with self._lock:
            if known >= self._number or not self.parts:  # nothing yet is not the same as nothing
                return None
            new = {named for named, changed in self._changed.items() if changed > known}
            parts = {name: text for name, text in self.parts.items() if ("part", name) in new}
            charts = [name for name in self.charts if ("chart", name) in new]
            return Update(self.version, list(self.parts), parts, charts)

    def _note(self, kind: str, names: list[str]) -> None:
        self._number += 1
        for name in names:
            self._changed[kind, name] = self._number


class Live:
    """A page that changes.

    Args:
        clock: What the time is read from.
    """

    def __init__(self, clock: Clock | None = None):
        self.clock = clock or SystemClock()
        self.view = View()
        #: Why it cannot be brought up to date at the moment; None if it can.
        self.trouble: str | None = None

    def step(self) -> bool:
        """Do a piece of work; return whether more is due at once."""
        raise NotImplementedError

    def first(self) -> None:
        """Have something to show if there is nothing yet."""
        if not self.view.parts:
            self.step()


class Watch:
    """A page that is kept up to date while there are readers, and costs nothing without.

    Args:
        watched: The page.
        interval_s: How often it is looked whether there is anything new, in seconds.
        beat_s: How often a reader hears something though nothing is new, in seconds.
    """

    def __init__(self, watched: Live, *, interval_s: float = _INTERVAL_S, beat_s: float = _BEAT_S):
        self.watched = watched
        self._interval_s, self._beat_s = interval_s, beat_s
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        #: How many readers there are.
        self.readers = 0

    def close(self) -> None:
        """Let all readers go."""
        self._closed = True
        self._news.set()

    async def first(self) -> None:
        """Have something to show."""
        await asyncio.to_thread(self.watched.first)

    async def updates(self, version: str) -> AsyncIterator[Update | str | None]:
        """Yield what a reader lacks that has a version; then, what changes.

        Yields:
            An update; a text, if there is trouble, and an empty one when it is over; None, if
            nothing is new for a while.
        """
        self.readers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        told = ""
        try:
            while not self._closed:
                news = self._news  # before looking: what comes after that is heard of
                update, trouble = self.watched.view.since(version), self.watched.trouble or ""
                if update is not None:
                    version = update.version
                    yield update
                elif trouble != told:
                    told = trouble
                    yield trouble
                else:
                    try:
                        await asyncio.wait_for(news.wait(), self._beat_s)
                    except asyncio.TimeoutError:
                        yield None
        finally:
            self.readers -= 1

    async def _run(self) -> None:
        while self.readers and not self._closed:
            try:
                more = await asyncio.to_thread(self.watched.step)
            except Exception:  # a page that cannot be made must not end the others
                logger.exception("A page could not be brought up to date")
                self.watched.trouble = "The page could not be brought up to date; see the log."
                more = False
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(0.0 if more else self._interval_s)
