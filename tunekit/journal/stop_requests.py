"""Requests to stop trials of a running sweep: one file each, in the experiment's folder.

A client puts a file that names a trial into ``stop/``. The driver records the request in the
journal and then deletes the file. A trial that was stopped is not stopped again, so a kill in
between does no harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow.fs

from tunekit.core.engine import Engine
from tunekit.core.events import Event, StopRequested
from tunekit.core.timing import Clock, Pace
from tunekit.journal.journal import JournalReader
from tunekit.journal.lock import driver_of
from tunekit.journal.storage import folder_at

if TYPE_CHECKING:  # it imports Ray, for which `tunekit stop` need not wait
    from tunekit.journal.ledger import Ledger

logger = logging.getLogger(__name__)

_FOLDER, _PREFIX = "stop", "trial-"
_LOOK_AGAIN_S, _PATIENCE_S = 0.1, 5.0
# Requests are read once a second, less often if reading takes more than this share of the time.
_SHARE, _INTERVAL_S = 0.05, 1.0


def request_file(trial_id: str) -> str:
    """Return the file of a request in the experiment's folder.

    Example:
        >>> request_file("7f_00001"), request_file("../7f")
        ('stop/trial-7f_00001', 'stop/trial-..%2F7f')
    """
    return f"{_FOLDER}/{_PREFIX}{quote(trial_id, safe='')}"


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


@dataclass(eq=False)
class StopRequests:
    """Record each request in the journal; the trial is stopped at the end of the step.

    Args:
        ledger: The source of requests.
        engine: The state of the sweep.
        trials: Its trials; more may be added.
        clock: The sweep's clock.
        emit: Records each event, before it takes effect.
    """

    ledger: Ledger
    engine: Engine
    trials: Collection[str]
    clock: Clock
    emit: Callable[[Event], None]
    _pace: Pace = field(default_factory=lambda: Pace(_SHARE, _INTERVAL_S), init=False)
    _complained: str = field(default="", init=False)

    def record_new(self) -> None:
        """Record the requests since the last call, at most once a second."""
        began, folder = self.clock.monotonic(), self.ledger.folder
        if folder is None or not self._pace.is_ready(began):
            return
        try:
            names = (name for name in folder.names(_FOLDER) if name.startswith(_PREFIX))
            for trial_id in (unquote(name.removeprefix(_PREFIX)) for name in names):
                if trial_id in self.trials and self.engine.can_stop(trial_id):
                    self.emit(StopRequested(trial_id=trial_id))
                    logger.info("Trial %s is stopped, as requested by hand.", trial_id)
                folder.remove(request_file(trial_id))
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("Requests to stop trials cannot be read: %s", error)
        self._pace.ran(began, self.clock.monotonic())
