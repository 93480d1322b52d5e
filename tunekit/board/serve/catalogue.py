"""The sweeps that are served: those at or below the given paths, with their states."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import absolute, joined, storage_at
from tunekit.core.problems import Problems
from tunekit.journal.experiments import no_sweep, sweeps_below
from tunekit.reading.sweep import outline

# The number of sweeps, the newest ones, whose state is shown.
_MOST_READ = 100


@dataclass(frozen=True)
class Entry:
    """The location of a sweep.

    Attributes:
        key: Its key in addresses: hexadecimal digits, the same after a restart.
        name: Its name, relative to the given path.
        filesystem: The storage.
        path: The experiment's folder there.
        source: The path or URI that another process can load it by.
        changed: When its journal was written last, in seconds since the epoch.
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
        >>> Catalogue([tempfile.mkdtemp()]).look()
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
                problems.add(f"path={given!r} {no_sweep(filesystem, home, given)}")
        problems.raise_any()

    def look(self) -> dict[str, Entry]:
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

    def outlines(self, **goal: str | None) -> list[dict[str, Any]]:
        """Return short summaries of the sweeps: running ones first, then the newest.

        A sweep is read when its journal has changed, and while it is running.

        Args:
            goal: The metric and the mode, as for :func:`tunekit.load`.

        Returns:
            As returned by :func:`~tunekit.reading.sweep.outline`, with the ``entry``. If there are
            many, older ones have only the ``entry``.

        Raises:
            OSError: As for :meth:`look`.
        """
        found: list[dict[str, Any]] = []
        for entry in sorted(self.look().values(), key=lambda entry: -entry.changed):
            row = self._known.get(entry.key, {})
            if row.get("entry") != entry or row.get("state") == "running":
                row = {"entry": entry}
                if len(found) < _MOST_READ:
                    row |= outline(entry.path, entry.filesystem, **goal)
            found.append(row)
        self._known = {row["entry"].key: row for row in found if "state" in row}
        return sorted(found, key=lambda row: row.get("state") != "running")
