"""Requests to stop trials of a running sweep: one file each, in the experiment's folder.

A client puts a file that names a trial into ``stop/``. The driver records the request in the
journal and then deletes the file. A trial that was stopped is not stopped again, so a kill in
between does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote, unquote

import pyarrow.fs

from tunekit.core.events import StopRequested
from tunekit.journal.journal import JournalReader
from tunekit.journal.lock import driver_of
from tunekit.journal.storage import Folder, folder_at

_FOLDER, _PREFIX = "stop", "trial-"
_LOOK_AGAIN_S, _PATIENCE_S = 0.1, 5.0


def request_file(trial_id: str) -> str:
    """Return the file of a request in the experiment's folder.

    Example:
        >>> request_file("7f_00001"), request_file("../7f")
        ('stop/trial-7f_00001', 'stop/trial-..%2F7f')
    """
    return f"{_FOLDER}/{_PREFIX}{quote(trial_id, safe='')}"


def asked_to_stop(folder: Folder) -> list[str]:
    """Return the trials that are named by the files in an experiment's folder."""
    names = [name for name in folder.names(_FOLDER) if name.startswith(_PREFIX)]
    return [unquote(name.removeprefix(_PREFIX)) for name in names]


def ask_to_stop(
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    trial_id: str,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Ask the driver of a running sweep to stop a trial; wait until it has recorded that.

    Args:
        filesystem: The sweep's filesystem.
        path: The experiment's folder there.
        trial_id: The trial.
        sleep: Waits for a number of seconds.

    Returns:
        Whether it was recorded in time. The driver reads requests at the end of its step, and
        ignores requests for trials that have ended by then.

    Raises:
        ValueError: If no driver runs the sweep; nothing was sent.
        tunekit.errors.JournalError: If the journal is damaged.
        OSError: If the storage fails.
    """
    driver = driver_of(filesystem, path, time.time())
    if driver is None or not driver.alive:
        raise ValueError("no driver is running this sweep, so no request was sent")
    folder = folder_at(filesystem, path)
    reader = JournalReader(folder)
    reader.read()
    folder.put(request_file(trial_id), b"")
    if not folder.settle(_PATIENCE_S):
        raise OSError(f"{request_file(trial_id)} could not be written in {_PATIENCE_S:g} s")
    for _ in range(round(_PATIENCE_S / _LOOK_AGAIN_S)):
        events = reader.read().events
        if any(isinstance(one, StopRequested) and one.trial_id == trial_id for one in events):
            return True
        sleep(_LOOK_AGAIN_S)
    return False
