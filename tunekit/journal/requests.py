"""Manual requests to a running sweep: one file each, in the experiment's folder.

A client puts a file into ``requests/``. The driver records its answer in the journal, under the
request's name, and deletes the file. So a request is carried out once, even if the driver is
killed, and the client reads the outcome in the journal.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import pyarrow.fs

from tunekit.core.events import Asked
from tunekit.core.values import NESTED, is_too_deep
from tunekit.errors import UnsafeFileError
from tunekit.journal.journal import JournalReader
from tunekit.journal.lock import driver_of
from tunekit.journal.storage import Folder, folder_at

_FOLDER = "requests"
_NAME = re.compile(r"([0-9]{20}-[0-9a-f]{8})\.json")
#: The maximum size of a request, in bytes.
MOST_BYTES = 64 * 1024
_DONE = {
    "stop": "Trial {} is stopped.",
    "pause": "Trial {} pauses at its next report.",
    "continue": "Trial {} continues.",
    "add": "Trial {} is added.",
}
_LOOK_AGAIN_S, _PATIENCE_S = 0.1, 5.0


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A manual request.

    Attributes:
        action: ``"stop"``, ``"pause"``, ``"continue"`` or ``"add"``.
        trial_id: The trial; empty if one is to be added.
        config: The hyperparameters of a trial that is to be added.
    """

    action: Literal["stop", "pause", "continue", "add"]
    trial_id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    config: dict[str, Any] = {}


def decoded(data: bytes) -> Request:
    """Return the request in a file.

    Raises:
        ValueError: If there is none, or if it is too large or too deeply nested.

    Example:
        >>> decoded(b'{"action": "stop", "trial_id": "a"}')
        Request(action='stop', trial_id='a', config={})
        >>> decoded(b'{"action": "delete"}')
        Traceback (most recent call last):
        msgspec.ValidationError: Invalid enum value 'delete' - at `$.action`
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=Request)
        deep = is_too_deep(found.config)
    except RecursionError:
        deep = True
    if deep:
        raise ValueError(f"it is nested more than {NESTED} levels deep")
    return found


def in_words(asked: Asked | None) -> str:
    """Return the answer to a request, for the user.

    Example:
        >>> in_words(Asked(request="1", action="add", trial_id="7f"))
        'Trial 7f is added.'
        >>> in_words(Asked(request="1", action="stop", trial_id="7f", refused="trial 7f has ended"))
        'Refused: trial 7f has ended.'
    """
    if asked is None:
        return "Requested. The driver will answer at the end of its current step."
    if asked.refused:
        return f"Refused: {asked.refused}."
    return _DONE[asked.action].format(asked.trial_id)


def name_of(request: str) -> str:
    """Return the file of a request in the experiment's folder."""
    return f"{_FOLDER}/{request}.json"


def requests_in(folder: Folder) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each request in an experiment's folder, in order.

    Only plain files are read.

    Raises:
        Exception: Whatever the storage raises.
    """
    for name in folder.names(_FOLDER):
        found = _NAME.fullmatch(name)
        if found is not None:
            try:
                yield found[1], folder.read(f"{_FOLDER}/{name}")
            except UnsafeFileError:
                yield found[1], b""


def ask(
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    request: Request,
    *,
    patience_s: float = _PATIENCE_S,
    sleep: Callable[[float], object] = time.sleep,
) -> Asked | None:
    """Send a request to a running sweep, and wait for the answer.

    Args:
        filesystem: The sweep's filesystem.
        path: The experiment's folder there.
        request: The request.
        patience_s: How many seconds to wait for the answer.
        sleep: Waits for a number of seconds.

    Returns:
        The answer, which may be a refusal; None if there is none in time. The driver answers at
        the end of its step.

    Raises:
        ValueError: If no driver runs the sweep, or the request is too large; nothing was sent.
        tunekit.errors.JournalError: If the journal is damaged.
        OSError: If the storage fails.
    """
    driver = driver_of(filesystem, path, time.time())
    if driver is None or not driver.alive:
        raise ValueError("no driver is running this sweep, so no request was sent")
    data = msgspec.json.encode(request)
    decoded(data)  # raises as the driver would
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    folder = folder_at(filesystem, path)
    reader = JournalReader(folder)
    reader.read()
    folder.put(name_of(name), data)
    if not folder.settle(patience_s):
        raise OSError(f"{name_of(name)} could not be written in {patience_s:g} s")
    for _ in range(max(1, round(patience_s / _LOOK_AGAIN_S))):
        for event in reader.read().events:
            if isinstance(event, Asked) and event.request == name:
                return event
        sleep(_LOOK_AGAIN_S)
    return None
