"""The sweeps that are served, and the live page of each."""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import absolute, joined, storage_at
from tunekit.board.charts import draw_charts
from tunekit.board.page import render_panels, render_sections, report_data, script_json
from tunekit.core.timing import Clock, Pace
from tunekit.errors import TunekitError
from tunekit.journal.experiments import path_problem, sweeps_below
from tunekit.messages.problems import Problems
from tunekit.reading.sweep import Follower, outline

# The number of sweeps, the newest ones, whose state is shown.
_MOST_READ = 100
# The minimum number of seconds between two reads of a journal, however many browsers show its page.
_INTERVAL_S = 0.5


@dataclass(frozen=True)
class ServedSweep:
    """The location of a sweep.

    Attributes:
        key: Its key in addresses: hexadecimal digits, the same after a restart.
        name: Its name, relative to the given path.
        filesystem: The storage.
        path: The experiment's folder there.
        source: The path or URI that another process can load it by.
        changed: When its journal was last written, in seconds since the epoch.
    """

    key: str
    name: str
    filesystem: pyarrow.fs.FileSystem
    path: str
    source: str
    changed: float


class Catalogue:
    """The sweeps at, and below, some paths.

    Addresses of the server name a sweep by its key, which is only looked up here: no path comes
    from a request.

    Args:
        paths: Local paths, or URIs: a sweep's folder, or one with sweeps below it.

    Raises:
        tunekit.errors.ConfigError: If a path cannot be reached, or is part of a sweep.
        OSError: If a storage fails.

    Example:
        >>> import tempfile
        >>> Catalogue([tempfile.mkdtemp()]).find()
        {}
    """

    def __init__(self, paths: Sequence[str]):
        problems = Problems("tunekit serve")
        self._known: dict[str, dict[str, Any]] = {}
        self._roots: list[tuple[pyarrow.fs.FileSystem, str, str]] = []
        for given in paths:
            try:
                filesystem, home = storage_at(absolute(given), None)
                kind = filesystem.get_file_info(home).type
            except (OSError, ValueError) as error:
                problems.add(
                    f"path={given!r} cannot be reached: {error}. Pass a local path, or a URI of a "
                    "storage that pyarrow supports, such as s3://bucket/sweeps."
                )
                continue
            if kind == pyarrow.fs.FileType.Directory:
                self._roots.append((filesystem, home.rstrip("/") or home, absolute(given)))
            else:
                problems.add(f"path={given!r} {path_problem(filesystem, home, given)}")
        problems.raise_any()

    def find(self) -> dict[str, ServedSweep]:
        """Return the sweeps that are there now, by key.

        Raises:
            OSError: If a storage fails. Folders that this process may not read are left out.
        """
        found: dict[str, ServedSweep] = {}
        for filesystem, home, given in self._roots:
            for sweep in sweeps_below(filesystem, home):
                below = sweep.path[len(home) :].strip("/")
                source = joined(given, below)
                key = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:16]
                name = below or posixpath.basename(home) or "sweep"
                where = (filesystem, sweep.path, source)
                found.setdefault(key, ServedSweep(key, name, *where, sweep.changed))
        return found

    def outlines(self, **goal: str | None) -> list[dict[str, Any]]:
        """Return short summaries of the sweeps: running ones first, then the newest.

        A sweep is read when its journal has changed, and while it is running.

        Args:
            goal: The metric and the mode, as for :func:`tunekit.load`.

        Returns:
            As returned by :func:`~tunekit.reading.sweep.outline`, with the ``entry``. If there are
            many, older ones have only the ``entry``.

        Raises:
            OSError: As for :meth:`find`.
        """
        found: list[dict[str, Any]] = []
        for entry in sorted(self.find().values(), key=lambda entry: -entry.changed):
            row = self._known.get(entry.key, {})
            if row.get("entry") != entry or row.get("state") == "running":
                row = {"entry": entry}
                if len(found) < _MOST_READ:
                    row |= outline(entry.path, entry.filesystem, **goal)
            found.append(row)
        self._known = {row["entry"].key: row for row in found if "state" in row}
        return sorted(found, key=lambda row: row.get("state") != "running")


class LiveSweep:
    """Follow a sweep, and keep its page up to date.

    Each request for updates brings the text or the charts up to date, so the text does not wait for
    the charts. Either is limited to a share of the time, however large the sweep is; changes in the
    meantime are shown with the next update.

    Args:
        entry: Where the sweep is.
        options: The metric and the mode, as for :func:`tunekit.load`.
        clock: The clock.
    """

    def __init__(
        self,
        entry: ServedSweep,
        options: Mapping[str, Any],
        clock: Clock | None = None,
    ):
        self.entry, self._clock = entry, clock or time
        #: Why the page cannot be updated at the moment; empty if it can.
        self.trouble = ""
        #: The parts as HTML, in order, and the charts as JSON, both by name.
        self.parts: dict[str, str] = {}
        self.charts: dict[str, str] = {}
        self._follower = Follower(
            entry.filesystem, entry.path, entry.source, **options, clock=self._clock
        )
        self._reads = Pace(1.0, _INTERVAL_S)
        self._drawn: dict[str, Any] = {}
        # The update function of each half of the page, and when it may run again.
        self._updates = {
            "text": (self._update_text, Pace(0.3)),
            "charts": (self._update_charts, Pace(0.1, 2.0)),
        }
        self._stale: set[str] = set()
        # The version of each half, which is unique across runs of the server.
        self._versions = dict.fromkeys(self._updates, "")
        self._working = threading.Lock()

    @property
    def version(self) -> str:
        """Return the version of the page, as browsers send it."""
        return "-".join(self._versions.values())

    def first(self) -> None:
        """Prepare the first version of the page."""
        with self._working:
            if not self.parts:
                self.step()

    def news(self, version: str) -> dict[str, Any]:
        """Update the page; return the changes since the version that the browser shows.

        Returns:
            The new ``version``; the names of all parts, in ``order``; the ``parts`` as HTML, if the
            text has changed, and the names of the ``charts``, if these have; the ``trouble``; and
            whether ``more`` will follow immediately.
        """
        with self._working:
            more = self.step()
            text, charts = (one not in version.split("-") for one in self._versions.values())
            return {
                "version": self.version,
                "order": list(self.parts),
                "parts": self.parts if text else {},
                "charts": list(self.charts) if charts else [],
                "trouble": self.trouble,
                "more": more,
            }

    def step(self) -> bool:
        """Read new events, and update one half of the page; return whether one was due."""
        began = self._clock.monotonic()
        try:
            if self._reads.is_ready(began):
                if self._follower.poll():
                    self._stale = set(self._updates)
                self._reads.ran(began, self._clock.monotonic())
                self.trouble = ""
        except (OSError, TunekitError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            if not self.parts:
                self.parts = {"summary": _trouble(self.entry.name, self.trouble)}
            return False
        for name, (update, pace) in self._updates.items():
            if name in self._stale and pace.is_ready(began):
                self._stale.discard(name)
                update()
                self._versions[name] = secrets.token_hex(8)
                pace.ran(began, self._clock.monotonic())
                return True
        return False

    def _update_text(self) -> None:
        self.parts = render_sections(report_data(self._follower.sweep, self._drawn))

    def _update_charts(self) -> None:
        drawn = draw_charts(self._follower.sweep)
        if drawn.keys() != self._drawn.keys():
            self._stale.add("text")  # it contains a placeholder for each chart
        self._drawn = drawn
        self.charts = {name: script_json(chart) for name, chart in drawn.items()}

    def panel(self, trial_id: str) -> str | None:
        """Return the details of a trial as HTML; None if there is no such trial."""
        with self._working:
            sweep = self._follower.sweep
            if trial_id not in sweep.timeline.trials:
                return None
            return render_panels(sweep, sweep.trial_errors(), [trial_id])[trial_id]


def _trouble(name: str, text: str) -> str:
    return (
        f"<header><h1>{escape(name)}</h1></header><section><h2>It cannot be read</h2>"
        f"<p>{escape(text)}</p></section>"
    )
