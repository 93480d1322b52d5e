"""The sweeps in some folders, and short summaries of them that stay up to date."""

from __future__ import annotations

import hashlib
import os
import posixpath
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs

from tunekit.core.timing import Clock, Pace
from tunekit.journal.experiments import path_problem, sweep_above, sweeps_below
from tunekit.journal.paths import absolute, check_path, joined
from tunekit.messages.problems import Problems
from tunekit.reading.load import Follower, outline

# The number of sweeps, the newest ones, whose state is shown, and of running ones in memory.
_MOST_READ, _MOST_FOLLOWED = 100, 8
# The minimum number of seconds between two reads of running sweeps, however many requests come.
_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Entry:
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
    """Find the sweeps at, and below, some paths.

    Addresses of the server name a sweep by its key, which is only looked up here: no path comes
    from a request.

    Args:
        paths: Local paths, or URIs: a sweep's folder, or one with sweeps below it.
        call: The call that errors name.
        clock: The clock.

    Raises:
        tunekit.errors.ConfigError: If a path cannot be reached, or is part of a sweep.
        OSError: If a storage fails.

    Example:
        >>> import tempfile
        >>> Catalogue([tempfile.mkdtemp()]).find()
        {}
    """

    def __init__(
        self, paths: Sequence[str], call: str = "tunekit serve", clock: Clock | None = None
    ):
        problems, self._clock = Problems(call), clock or time
        self._pace, self._listing = Pace(1.0, _INTERVAL_S), threading.Lock()
        self._known: dict[str, tuple[dict[str, Any], Follower | None]] = {}
        self._roots: list[tuple[pyarrow.fs.FileSystem, str, str]] = []
        for given in paths:
            found = check_path(given, None, problems)
            if found is None:
                continue
            given, (filesystem, home) = os.fsdecode(given), found
            is_folder = filesystem.get_file_info(home).type == pyarrow.fs.FileType.Directory
            if not is_folder or (sweep_above(*found) is not None and not sweeps_below(*found)):
                problems.add(f"path={given!r} {path_problem(*found, given)}")
            self._roots.append((filesystem, home.rstrip("/") or home, absolute(given)))
        problems.raise_any()

    def find(self) -> dict[str, Entry]:
        """Return the sweeps that are there now, by key.

        Raises:
            OSError: If a storage fails. Folders that this process may not read are left out.
        """
        found: dict[str, Entry] = {}
        for filesystem, home, given in self._roots:
            for sweep in sweeps_below(filesystem, home):
                below = sweep.path[len(home) :].strip("/")
                source = joined(given, below)
                key = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:16]
                name = below or posixpath.basename(home) or "sweep"
                where = (filesystem, sweep.path, source)
                found.setdefault(key, Entry(key, name, *where, sweep.changed))
        return found

    def outlines(self, **goal: Any) -> list[dict[str, Any]]:
        """Return short summaries of the sweeps: running ones first, then the newest.

        A sweep is read when its journal has changed, and while it is running. The new lines of the
        newest running ones are added to what is in memory; any others are read as a whole.

        Args:
            goal: The metric and the mode, as for :func:`tunekit.load`.

        Returns:
            As returned by :func:`~tunekit.reading.sweep.outline`, with the ``entry``. If there are
            many, older ones have only the ``entry``.

        Raises:
            OSError: As for :meth:`find`.
        """
        with self._listing:
            began, running = self._clock.monotonic(), 0
            known: dict[str, tuple[dict[str, Any], Follower | None]] = {}
            is_ready = self._pace.is_ready(began)
            for entry in sorted(self.find().values(), key=lambda entry: -entry.changed):
                row, follower = self._known.get(entry.key, ({}, None))
                if is_ready if row.get("state") == "running" else row.get("entry") != entry:
                    row = {"entry": entry}
                if len(row) == 1 and len(known) < _MOST_READ:
                    where = (entry.filesystem, entry.path)
                    follower = follower or Follower(*where, clock=self._clock, **goal)
                    row |= outline(follower)
                keeps = row.get("state") == "running" and running < _MOST_FOLLOWED
                running += keeps
                known[entry.key] = (row, follower if keeps else None)
            self._known = known
            if is_ready:
                self._pace.ran(began, self._clock.monotonic())
        found = [row for row, _ in known.values()]
        return sorted(found, key=lambda row: row.get("state") != "running")
