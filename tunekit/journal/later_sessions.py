"""The journals of later validations, which stand beside a sweep's own."""

from __future__ import annotations

import re

from tunekit.core.later_validations import LaterSession
from tunekit.journal.journal import record_of
from tunekit.journal.storage import Folder

__all__ = ["SERIES", "later_sessions"]

#: The folder, in the experiment's, of the journals of later validations.
SERIES = "validations"

_SESSION = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")


def later_sessions(folder: Folder) -> list[LaterSession]:
    """Return the sessions of later validations beside a sweep.

    Raises:
        tunekit.errors.JournalError: If a session's journal is damaged, or of another version.
        OSError: If the storage fails.

    Example:
        >>> import pathlib, tempfile
        >>> from tunekit.journal.storage import LocalFolder
        >>> later_sessions(LocalFolder(pathlib.Path(tempfile.mkdtemp())))
        []
    """
    found = []
    for name in folder.names(SERIES):
        if _SESSION.fullmatch(name):
            record = record_of(folder, series=f"{SERIES}/{name}")
            if record.sessions:
                found.append(LaterSession(name, record.sessions[0], record.events))
    return found
