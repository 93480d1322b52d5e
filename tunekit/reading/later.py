"""Read the later validations of a sweep: those of other functions, recorded next to its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunekit.core.timeline import Timeline
from tunekit.core.validation import PENDING, PendingStatus
from tunekit.journal.journal import Record, record_of
from tunekit.journal.storage import Folder

#: The folder in a sweep's folder with the journals of later validations.
LATER = "validations"


def began_of(sessions: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the start time of a sweep, which identifies it among others in the same folder.

    Args:
        sessions: The first line of each session, the first session first.

    Example:
        >>> began_of([{"time": 5.0}, {"time": 6.0}]), began_of([])
        (5.0, None)
    """
    return sessions[0].get("time") if sessions else None


def later_records_in(folder: Folder) -> list[Record]:
    """Return the records of later validations in a sweep's folder.

    Raises:
        tunekit.errors.JournalError: If a journal is damaged or of a different version.
        OSError: If the storage fails.

    Example:
        >>> import pathlib, tempfile
        >>> from tunekit.journal.storage import LocalFolder
        >>> later_records_in(LocalFolder(pathlib.Path(tempfile.mkdtemp())))
        []
    """
    found = (record_of(folder, series=f"{LATER}/{name}") for name in folder.names(LATER))
    return [one for one in found if one.sessions]


def rows_of(records: Iterable[Record], sweep: float | None) -> list[dict[str, Any]]:
    """Return a row for each later validation of a sweep, as in a timeline's ``validations``.

    Args:
        records: Those in the sweep's folder.
        sweep: The sweep's start time. Another sweep may have run in the same folder since.
    """
    found = []
    for record in records:
        head = record.sessions[-1]
        if head.get("sweep") == sweep:
            timeline = Timeline(record.events, sessions=record.sessions)
            own = {name: str(head.get(name)) for name in ("name", "function")}
            waits = {"status": PendingStatus.QUEUED.value} if timeline.end else {}
            found += [
                {**row, **own, **(waits if row["status"] in PENDING else {})}
                for row in timeline.validations
            ]
    return found
