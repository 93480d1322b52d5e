"""All sweeps that are served, as a page."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

import pyarrow.fs

from tunekit.board.page.page import section
from tunekit.board.serve.catalogue import Catalogue, Place
from tunekit.board.serve.watch import Live
from tunekit.clock import Clock
from tunekit.core.pace import Pace
from tunekit.errors import TunekitError
from tunekit.journal.lines import SERIES
from tunekit.reading.follower import Follower

__all__ = ["Index"]

# Of the time, so much may go into looking for sweeps.
_SHARE, _LEAST_S = 0.1, 2.0


class Index(Live):
    """The list of sweeps, and its page.

    A sweep is read when its journal has changed, or while it is running. What has been read of one
    that has ended is dropped but for its row.

    Args:
        catalogue: Where sweeps are looked for.
        options: The metric, mode and seed, as for :func:`tunekit.load`.
        clock: What the time is read from.
    """

    def __init__(
        self, catalogue: Catalogue, options: Mapping[str, Any], clock: Clock | None = None
    ):
        super().__init__(clock)
        self._catalogue, self._options = catalogue, dict(options)
        self._pace = Pace(_SHARE, _LEAST_S)
        self._places: dict[str, Place] = {}
        # By key: the name of a sweep, its summary, and why it cannot be read.
        self._rows: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, Any] = {}
        self._running: dict[str, Follower] = {}
        self._to_read: dict[str, None] = {}

    def step(self) -> bool:
        """Look for sweeps if that is due, or read one; return whether more is due at once."""
        now = self.clock.monotonic()
        if not self._to_read and self._pace.due(now):
            try:
                self._look()
                self.trouble = None
            except OSError as error:
                self.trouble = f"{type(error).__name__}: {error}"
            self._pace.took(now, self.clock.monotonic())
        elif self._to_read:
            key = next(iter(self._to_read))
            del self._to_read[key]
            self._rows[key] = self._read(self._places[key])
        self._show()
        return bool(self._to_read)

    def _look(self) -> None:
        self._places = self._catalogue.look()
        for known in (self._rows, self._seen, self._running):
            for key in known.keys() - self._places.keys():
                del known[key]
        for key, place in self._places.items():
            self._rows.setdefault(key, _row(place))
            seen = _files(place)
            if key in self._running or seen != self._seen.get(key):
                self._to_read[key] = None
            self._seen[key] = seen

    def _read(self, place: Place) -> dict[str, Any]:
        follower = self._running.pop(place.key, None)
        if follower is None:
            where = (place.filesystem, place.path, place.source)
            follower = Follower(*where, **self._options, clock=self.clock)
        try:
            follower.poll()
            summary = follower.sweep.summary()
        except (OSError, TunekitError) as error:
            return _row(place, trouble=f"{type(error).__name__}: {error}")
        if summary["state"] in ("running", "open"):
            self._running[place.key] = follower
        return _row(place, summary=summary)

    def _show(self) -> None:
        rows = sorted(self._rows.values(), key=_order)
        unread = sum(row["summary"] is None and row["trouble"] is None for row in rows)
        self.view.show({"sweeps": section("index.html", "sweeps", rows=rows, unread=unread)})


def _row(place: Place, **known: Any) -> dict[str, Any]:
    return {"key": place.key, "name": place.name, "summary": None, "trouble": None, **known}


def _order(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Return what to sort by: sweeps that run come first, then the newest."""
    known = row["summary"] or {}
    return (known.get("state") != "running", -(known.get("last") or 0.0), row["name"])


def _files(place: Place) -> Any:
    """Return what changes when a sweep's journal or lock is written."""
    folder = pyarrow.fs.FileSelector(posixpath.join(place.path, SERIES), allow_not_found=True)
    files = place.filesystem.get_file_info(folder)
    return sorted((info.base_name, info.size, info.mtime_ns) for info in files)
