"""Follows something as long as anybody looks at it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from tunekit.board.serve.view import Update, View

__all__ = ["Watch", "Watched"]

logger = logging.getLogger(__name__)

# How often something is looked at that has not changed, and a silent connection is used.
_INTERVAL_S, _BEAT_S = 0.5, 15.0


class Watched(Protocol):
    """A page that changes."""

    view: View
    trouble: str | None

    def step(self) -> bool:
        """Do a piece of work; return whether more is due at once."""
        ...

    def first(self) -> None:
        """Have something to show if there is nothing yet."""
        ...


class Watch:
    """A page that is kept up to date while there are readers, and costs nothing without.

    Args:
        watched: The page.
        interval_s: How often it is looked whether there is anything new, in seconds.
        beat_s: How often a reader hears something though nothing is new, in seconds.
    """

    def __init__(
        self, watched: Watched, *, interval_s: float = _INTERVAL_S, beat_s: float = _BEAT_S
    ):
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
