"""A sweep that is read again and again while it runs, each time only what is new."""

from __future__ import annotations

from typing import Any

import pyarrow.fs

from tunekit.clock import Clock, SystemClock
from tunekit.core.later_validations import LaterSession
from tunekit.core.pace import Pace
from tunekit.journal.journal import JournalReader, later_sessions
from tunekit.journal.lock import Driver, driver_of
from tunekit.journal.storage import folder_at
from tunekit.reading.sweep import Sweep

__all__ = ["Follower"]

# What is read as a whole each time takes no larger a share of the time than this.
_SHARE = 0.1


class Follower:
    """Follows a sweep's journal.

    Restores are followed, too, and so is another sweep that begins in the same folder. Nothing is
    written.

    Args:
        filesystem: The storage that the sweep is in.
        path: The experiment's folder there.
        source: The path or URI that another process can load the sweep by, if that is enough.
        metric: As for :func:`tunekit.load`.
        mode: Likewise.
        seed_param: Likewise; a name that no trial has is no error: a trial may have it later.
        clock: What the time is read from.

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
        metric: str | None = None,
        mode: str | None = None,
        seed_param: str | None = None,
        clock: Clock | None = None,
    ):
        self._filesystem, self._path = filesystem, path
        self._folder = folder_at(filesystem, path)
        self._reader = JournalReader(self._folder)
        self._clock = clock or SystemClock()
        self._options: dict[str, Any] = {"path": path, "filesystem": filesystem, "source": source}
        self._options |= {"metric": metric, "mode": mode, "seed_param": seed_param}
        self._later: list[LaterSession] = []
        self._pace = Pace(_SHARE)
        #: The sweep as of the last call of :meth:`poll`.
        self.sweep = Sweep((), **self._options)

    def poll(self) -> bool:
        """Read what is new; return whether anything is.

        Raises:
            tunekit.errors.JournalError: If the journal is damaged or of another version.
            OSError: If the storage fails. The next call goes on where this one began.
        """
        # Before the journal: whoever lets go has recorded first how the sweep ended.
        driver = driver_of(self._filesystem, self._path, self._clock.time())
        later = self._read_later()
        record = self._reader.read()
        if not record.anew and (record.sessions or later is not self._later):
            self._reader.forget()  # what is new may change how all of it is told
            record = self._reader.read()
        changed = record.anew or bool(record.events) or _who(driver) != _who(self.sweep.driver)
        if record.anew:
            self.sweep = Sweep(record.events, record.sessions, **self._options, later=later)
        elif record.events:
            self.sweep.extend(record.events)
        self.sweep.driver, self._later = driver, later
        return changed

    def _read_later(self) -> list[LaterSession]:
        """Return the sessions of later validations, the very ones if they are as they were."""
        began = self._clock.monotonic()
        if not self._pace.due(began):
            return self._later
        later = later_sessions(self._folder)
        self._pace.took(began, self._clock.monotonic())
        return self._later if later == self._later else later


def _who(driver: Driver | None) -> tuple[str, bool] | None:
    return None if driver is None else (driver.token, driver.alive)
