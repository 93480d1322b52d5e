"""The record of validations: which function has scored which checkpoints.

The first line of each session in its journal names the function; the other lines are events as in a
sweep's journal. A sweep has one record for each name of later validations, in ``validations/NAME``;
a followed folder has one, in ``journal``. A call continues the record of its function: scores and
skipped checkpoints are final, and failed validations run again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow.fs

from tunekit.config import ValidationConfig
from tunekit.core.events import Event, Home, SessionClosed, ValidationEnded
from tunekit.core.metrics import flatten, format_names, is_reserved
from tunekit.core.signatures import function_name, import_path
from tunekit.core.timeline import Timeline
from tunekit.core.validation import FAILED
from tunekit.driver.ledger import about
from tunekit.errors import AlreadyRunningError
from tunekit.journal.journal import SERIES, Journal, record_of
from tunekit.journal.lock import DriverLock
from tunekit.journal.storage import folder_at
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)


def is_score(event: Event) -> bool:
    """Return whether an event is the end of a validation with a score."""
    return isinstance(event, ValidationEnded) and event.validated


def name_problem(name: str, timeline: Timeline) -> str | None:
    """Return why later validations cannot use a name; None if they can.

    Args:
        name: The prefix of their metrics' names, joined with ``/``.
        timeline: The history of the sweep, whose own metrics must not begin with the name.

    Example:
        >>> name_problem("robust", Timeline([]))
        >>> name_problem("config", Timeline([]))
        "is taken: the sweep itself has 'config'. Pass another name."
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        return (
            "cannot begin a metric's name: only letters, digits, '_', '.' and '-' can. Pass "
            "name='robust', for example; the metrics are then 'robust/accuracy' and so on."
        )
    rows = (row for trial_id in timeline.trials for row in timeline.rows(trial_id))
    own = timeline.state.history.names
    known = {*own, *(one for row in rows for one in flatten(row))}
    later = set(timeline.names).difference(own)
    same = [one for one in known - later if one.split("/")[0] == name]
    same += [name] if is_reserved(name) and not same else []
    return (
        f"is taken: the sweep itself has {format_names(same)}. Pass another name." if same else None
    )


class Recorder:
    """Continue the record of a function, or begin it.

    Args:
        filesystem: The storage.
        path: The folder that has the journal's folder; paths below it are recorded relative to it.
        config: How checkpoints are validated.
        about: What distinguishes the record, and further items for the first line of each session.
        call: The call that errors name.
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
        call: str,
        series: str = SERIES,
        otherwise: str,
    ):
        self.call = call
        self._folder, self._home, self._series = folder_at(filesystem, path), Home(path), series
        self._about = {**about, "function": import_path(config.fn) or function_name(config.fn)}
        self._otherwise = otherwise
        below = "" if series == SERIES else series
        #: Keeps other processes from writing to the record.
        self.lock = DriverLock(filesystem, path, on_lost=self._give_way, below=below)
        self._begins = True
        self._lost: list[Exception] = []
        self._journal: Journal

    def _give_way(self, error: AlreadyRunningError) -> None:
        self._folder.abandon()
        self._lost.append(error)

    def check(self) -> None:
        """Raise if another process has taken over."""
        if self._lost:
            raise self._lost[0]

    def continued(self, *, replace: bool) -> list[Event]:
        """Return the events of earlier sessions that count, without failures.

        Args:
            replace: Whether to begin again.

        Raises:
            tunekit.errors.ConfigError: If it is not such a record, or has another function's
            scores.
        """
        former, problems = record_of(self._folder, series=self._series), Problems(self.call)
        if replace or not former.sessions:
            return []
        head, function = former.sessions[-1], self._about["function"]
        is_other = head.get("function") != function
        if self._series == SERIES and "followed" not in head:
            problems.add(
                f"{self._home.folder!r} is the folder of a sweep, whose journal says what was "
                f"validated. {self._otherwise}"
            )
        elif is_other and any(map(is_score, former.events)):
            problems.add(
                f"{self._home.folder!r} has scores of {head.get('function')}, which cannot be "
                f"compared with those of {function}. {self._otherwise}"
            )
        problems.raise_any()
        self._begins = is_other or head.get("sweep") != self._about.get("sweep")
        if self._begins:
            return []
        return [
            self._home.located(event)
            for event in former.events
            if not (isinstance(event, ValidationEnded) and event.status in FAILED)
        ]

    @contextmanager
    def session(self, config: ValidationConfig) -> Iterator[None]:
        """Write a session; its last line records how it ended."""
        head = {**about(time.time(), config), **self._about}
        self._journal = journal = Journal(
            self._folder, series=self._series, begins=self._begins, about=head
        )
        finished = False
        try:
            yield
            finished = True
        finally:
            journal.append(SessionClosed(time=time.time(), finished=finished))
            if not journal.close():
                logger.error("The end of the session could not be written; run it again.")

    def append(self, event: Event) -> None:
        """Record an event."""
        self._journal.append(self._home.recorded(event))
