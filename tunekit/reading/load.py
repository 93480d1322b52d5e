"""Load a sweep from its folder, and follow its journal while it runs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit.core.timing import Clock, Pace
from tunekit.journal.experiments import path_problem
from tunekit.journal.journal import SERIES, JournalReader, Record
from tunekit.journal.lock import Driver, driver_of
from tunekit.journal.paths import absolute, check_path
from tunekit.journal.storage import folder_at
from tunekit.messages.problems import Problems
from tunekit.reading.later import later_records_in
from tunekit.reading.sweep import Sweep

# The largest share of the time that may be spent rereading files that are read as a whole.
_SHARE = 0.1


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector: it takes half of the time if many objects are kept."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Follower:
    """Follow a sweep's journal, across restores and new sweeps in the same folder.

    Nothing is written.

    Args:
        filesystem: The storage that the sweep is in.
        path: The experiment's folder there.
        source: As for :class:`Sweep`.
        clock: The clock.
        **goal: ``metric`` and ``mode``, as for :func:`tunekit.load`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tunekit.core.events import TrialAdded
        >>> from tunekit.journal.journal import Journal
        >>> from tunekit.journal.storage import LocalFolder
        >>> home = tempfile.mkdtemp()
        >>> journal = Journal(LocalFolder(Path(home)))
        >>> follower = Follower(pyarrow.fs.LocalFileSystem(), home)
        >>> follower.poll(), len(follower.sweep.trials)
        (True, 0)
        >>> journal.append(TrialAdded(time=1e9, trial_id="a"))
        >>> follower.poll(), len(follower.sweep.trials)
        (True, 1)
        >>> follower.poll()
        False
    """

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        path: str,
        source: str | None = None,
        *,
        clock: Clock | None = None,
        **goal: Any,
    ):
        self._filesystem, self._path = filesystem, path
        self._folder = folder_at(filesystem, path)
        self._reader = JournalReader(self._folder)
        self._clock = clock or time
        self._options = {"path": path, "filesystem": filesystem, "source": source, **goal}
        self._later: list[Record] = []
        self._pace = Pace(_SHARE)
        #: The sweep as of the last call of :meth:`poll`.
        self.sweep = Sweep((), **self._options)

    @_without_collections()
    def poll(self) -> bool:
        """Read new events; return whether there were any.

        Raises:
            tunekit.errors.JournalError: If the journal is damaged or of a different version.
            OSError: If the storage fails. The next call continues where this one started.
        """
        # Read the lock first: a driver records the sweep's end before it releases the lock.
        driver = driver_of(self._filesystem, self._path, self._clock.time())
        later = self._read_later()
        record = self._reader.read()
        if not record.anew and (record.sessions or later is not self._later):
            self._reader.forget()  # new events may change how earlier ones are shown
            record = self._reader.read()
        changed = record.anew or bool(record.events) or _who(driver) != _who(self.sweep.driver)
        try:
            if record.anew:
                self.sweep = Sweep(record.events, record.sessions, later=later, **self._options)
            elif record.events:
                self.sweep.extend(record.events)
        except Exception:
            self._reader.forget()  # the next call reads all of them
            raise
        self.sweep.driver, self._later = driver, later
        return changed

    def _read_later(self) -> list[Record]:
        """Return the scores of later validations; the same objects if nothing has changed."""
        began = self._clock.monotonic()
        if not self._pace.is_ready(began):
            return self._later
        later = later_records_in(self._folder)
        self._pace.ran(began, self._clock.monotonic())
        return self._later if later == self._later else later


def _who(driver: Driver | None) -> tuple[str, bool] | None:
    return None if driver is None else (driver.token, driver.alive)


def load(
    path: str | Path,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
) -> Sweep:
    """Load a running, finished or crashed sweep.

    This only reads the journal in the experiment's folder; it does not start Ray, run the sweep's
    code or write anything. A running sweep is read as it is at that moment.

    Args:
        path: The experiment's folder, ``results.experiment_path``, or its URI, such as
            ``s3://bucket/digits``.
        storage_filesystem: The filesystem of ``path`` if it is a custom one
            (``results.filesystem``).
        metric: The validated metric to rank by, as a flat name (``"eval/accuracy"``); by default
            the sweep's objective.
        mode: ``"min"`` or ``"max"``; by default the sweep's.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong, or if the folder has no journal.
        tunekit.errors.JournalError: If the journal is damaged or of a different version.
        OSError: If the storage fails.

    Example:
        >>> load("/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.load: path='/no/such/folder' does not exist...
    """
    problems = Problems("tunekit.load")
    found = check_path(path, storage_filesystem, problems)
    if found is not None and not folder_at(*found).names(SERIES):
        problems.add(f"path={os.fsdecode(path)!r} {path_problem(*found, os.fsdecode(path))}")
    problems.goal(metric, mode)
    problems.raise_any()
    assert found is not None  # otherwise an error was raised
    source = None if storage_filesystem is not None else absolute(os.fsdecode(path))
    follower = Follower(*found, source, metric=metric, mode=mode)
    follower.poll()
    return follower.sweep


def outline(follower: Follower) -> dict[str, Any]:
    """Return a short summary of a sweep, for a list of several.

    Args:
        follower: Follows the sweep; its new events are read first.

    Returns:
        Part of the summary: the ``state`` and so on. If the sweep cannot be read, the state is
        ``"unreadable"``, and there is a ``reason``.
    """
    try:
        follower.poll()
        summary = follower.sweep.summary()
    except Exception as error:  # of this sweep; others are still listed
        return {"state": "unreadable", "reason": f"{type(error).__name__}: {error}"}
    names = ("state", "began", "last", "metric", "mode", "trials", "validations", "best")
    return {name: summary[name] for name in names}
