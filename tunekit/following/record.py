"""The record of validations: which function has scored which checkpoints.

The first line of each session in its journal names the function; the other lines are events as in a
sweep's journal. A sweep has one record for each name of later validations, in ``validations/NAME``;
a followed folder has one, in ``journal``. A call continues the record of its function: scores and
skipped checkpoints are final, and failed validations run again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import pyarrow.fs

from tunekit.clock import SystemClock
from tunekit.config import ValidationConfig
from tunekit.core.events import Event, SessionClosed, ValidationEnded, relocated
from tunekit.core.metric_names import FILLED_IN, listed
from tunekit.core.problems import Problems
from tunekit.core.signatures import name_of
from tunekit.core.timeline import Timeline
from tunekit.core.validation import PENDING, PendingStatus, Status
from tunekit.errors import AlreadyRunningError
from tunekit.journal.home import Home
from tunekit.journal.journal import SERIES, Journal, record_of
from tunekit.journal.lock import DriverLock
from tunekit.journal.session import about, import_path
from tunekit.journal.storage import Folder, folder_at

logger = logging.getLogger(__name__)

#: The folder, in a sweep's, of the journals of later validations.
LATER = "validations"

#: How a validation ends that runs again when it is requested again.
FAILED = (Status.FAILED, Status.TIMED_OUT)


def series_of(name: str) -> str:
    """Return the folder, in a sweep's, of the journal of later validations.

    Example:
        >>> series_of("eval/robust")
        'validations/eval%2Frobust'
    """
    return f"{LATER}/{quote(name, safe='')}"


def called(config: ValidationConfig) -> str:
    """Return the name by which a record knows a validation function."""
    return import_path(config.fn) or name_of(config.fn)


def name_problem(name: str, taken: Collection[str]) -> str | None:
    """Return why later validations cannot use a name; None if they can.

    Args:
        name: The prefix of their metrics' names, joined with ``/``.
        taken: The flat names of the metrics that the sweep itself has reported and validated.

    Example:
        >>> name_problem("robust", ["loss", "accuracy"])
        >>> name_problem("eval", ["loss", "eval/accuracy"])
        "is taken: the sweep itself has 'eval/accuracy'. Pass another name."
        >>> name_problem("config", [])
        'is a name reserved by Tune or tunekit. Pass another name.'
    """
    parts = name.split("/")
    if not all(part and part == part.strip() and part.isprintable() for part in parts):
        return (
            "cannot begin a metric's name: it must not be empty or start or end with a space. "
            "Pass a name such as 'robust'; the metrics are then 'robust/accuracy' and so on."
        )
    if parts[0] in FILLED_IN:
        return "is a name reserved by Tune or tunekit. Pass another name."
    same = [
        one
        for one in taken
        if one == name or one.startswith(f"{name}/") or name.startswith(f"{one}/")
    ]
    if same:
        return f"is taken: the sweep itself has {listed(same)}. Pass another name."
    return None


def began_of(sessions: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the start time of a sweep, which identifies it among others in the same folder.

    Args:
        sessions: The first line of each session, the first session first.

    Example:
        >>> began_of([{"time": 5.0}, {"time": 6.0}]), began_of([])
        (5.0, None)
    """
    return sessions[0].get("time") if sessions else None


# Reading ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """What one function has validated, from its record.

    Attributes:
        sessions: The first lines of the record's sessions.
        events: The other lines of all of them.
    """

    sessions: Sequence[Mapping[str, Any]]
    events: Sequence[Event]

    @property
    def head(self) -> Mapping[str, Any]:
        """Return the first line of the newest session."""
        return self.sessions[-1]

    @property
    def name(self) -> str:
        """Return the name under which its metrics are shown."""
        return str(self.head.get("name") or "later")

    @property
    def function(self) -> str:
        """Return the name of its function."""
        return str(self.head.get("function") or "a function")

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each validation, as in :attr:`tunekit.core.timeline.Timeline`."""
        timeline = Timeline(self.events, sessions=self.sessions)
        own = {"name": self.name, "function": self.function}
        waits = {"status": PendingStatus.WAITING.value} if timeline.end else {}
        return [
            {**row, **own, **(waits if row["status"] in PENDING else {})}
            for row in timeline.validations
        ]

    @property
    def scored(self) -> set[str]:
        """Return the IDs of the validations that have ended with a score."""
        return {row["id"] for row in self.rows if row["status"] == "validated"}


def scores_in(folder: Folder, series: str = SERIES) -> Scores | None:
    """Return what a record has; None if there is no record.

    Raises:
        tunekit.errors.JournalError: If the journal is damaged, or of another version.
        OSError: If the storage fails.
    """
    record = record_of(folder, series=series)
    return Scores(record.sessions, record.events) if record.sessions else None


def later_scores_in(folder: Folder) -> list[Scores]:
    """Return the scores of later validations in a sweep's folder.

    Example:
        >>> import pathlib, tempfile
        >>> from tunekit.journal.storage import LocalFolder
        >>> later_scores_in(LocalFolder(pathlib.Path(tempfile.mkdtemp())))
        []
    """
    found = (scores_in(folder, f"{LATER}/{name}") for name in folder.names(LATER))
    return [one for one in found if one is not None]


def rows_of(scores: Iterable[Scores], sweep: float | None) -> list[dict[str, Any]]:
    """Return the rows of the later validations that are of a sweep.

    Args:
        scores: Those in the sweep's folder.
        sweep: The sweep's start time. Another sweep may have run in the same folder since.
    """
    return [row for one in scores if one.head.get("sweep") == sweep for row in one.rows]


# Writing ----------------------------------------------------------------------------------------


class Recorder:
    """Continue the record of a function, or begin it.

    Args:
        filesystem: The storage.
        path: The folder that has the journal's folder; paths below it are recorded relative to it.
        config: How checkpoints are validated.
        about: What distinguishes the record, and more items for the first line of each session.
        series: The journal's folder there.
        otherwise: What to do instead of mixing two functions in one record.
    """

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        path: str,
        config: ValidationConfig,
        about: Mapping[str, Any],
        *,
        series: str = SERIES,
        otherwise: str,
    ):
        self._folder, self._home, self._series = folder_at(filesystem, path), Home(path), series
        self._about = {**about, "function": called(config)}
        self._otherwise = otherwise
        self._lock = DriverLock(filesystem, path if series == SERIES else f"{path}/{series}")
        self._begins = True
        self._lost: list[Exception] = []
        self._journal: Journal

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the record's lock, so that no other process writes to it.

        Raises:
            tunekit.errors.AlreadyRunningError: If another process does.
        """

        def give_way(error: AlreadyRunningError) -> None:
            self._folder.abandon()
            self._lost.append(error)

        try:
            self._lock.claim()
            self._lock.keep(give_way)
            yield
        finally:
            self._lock.release()

    def check(self) -> None:
        """Raise if another process has taken over."""
        if self._lost:
            raise self._lost[0]

    def continued(self, call: str, *, replace: bool = False) -> list[Event]:
        """Return the events of earlier sessions that count, without failures.

        Args:
            call: The call that errors name.
            replace: Whether to begin again.

        Raises:
            tunekit.errors.ConfigError: If the record is not one, or has scores of another function.
        """
        former, problems = scores_in(self._folder, self._series), Problems(call)
        if former is None or replace:
            return []
        function = self._about["function"]
        if self._series == SERIES and "followed" not in former.head:
            problems.add(
                f"{self._home.folder!r} is the folder of a sweep, whose journal says what was "
                f"validated. {self._otherwise}"
            )
        elif former.function != function and former.scored:
            problems.add(
                f"{self._home.folder!r} has scores of {former.function}, which cannot be compared "
                f"with those of {function}. {self._otherwise}"
            )
        problems.raise_any()
        same_sweep = former.head.get("sweep") == self._about.get("sweep")
        self._begins = former.function != function or not same_sweep
        if self._begins:
            return []
        events = [relocated(event, self._home.path) for event in former.events]
        return [
            event
            for event in events
            if not (isinstance(event, ValidationEnded) and event.status in FAILED)
        ]

    @contextmanager
    def session(self, config: ValidationConfig) -> Iterator[None]:
        """Write a session; its last line records how it ended."""
        clock = SystemClock()
        head = {**about(clock.time(), config=config), **self._about}
        self._journal = journal = Journal(
            self._folder, series=self._series, begins=self._begins, about=head
        )
        finished = False
        try:
            yield
            finished = True
        finally:
            journal.append(SessionClosed(time=clock.time(), finished=finished))
            if not journal.close():
                logger.error("The end of the session could not be written; run it again.")

    def append(self, event: Event) -> None:
        """Record an event."""
        self._journal.append(relocated(event, self._home.record))
