"""Record a sweep: its state now, and in its folder the lock, the journal, and archives."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import ray
from msgspec import structs
from ray.tune.experiment import Trial

from tunekit._ray.session import Session
from tunekit.config import ValidationConfig
from tunekit.core.events import Event, Home, SessionClosed, TrialAdded
from tunekit.core.signatures import function_name
from tunekit.core.state import SweepState
from tunekit.core.timing import Clock
from tunekit.core.values import finite_number
from tunekit.driver.snapshots import SnapshotWriter
from tunekit.errors import AlreadyRunningError
from tunekit.journal.journal import Journal, record_of
from tunekit.journal.lock import DriverLock
from tunekit.journal.storage import Folder, folder_at, warn_of_kills
from tunekit.version import VERSION

logger = logging.getLogger(__name__)

_PACKAGES = ("torch", "optuna", "numpy")


class Ledger:
    """Record a sweep's events, as its only driver, and keep the state that follows from them.

    Nothing is written before the folder is known or after the end.

    Args:
        clock: The clock.

    Example:
        >>> import time
        >>> ledger = Ledger(time)
        >>> ledger.folder is None, ledger.last
        (True, 0)
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        #: Set, from another thread, once another driver has taken over the sweep.
        self.lost: AlreadyRunningError | None = None
        #: The state of the sweep.
        self.state = SweepState()
        #: Get each event, once it is recorded.
        self.watchers: list[Callable[[Event], None]] = []
        #: While recorded events are replayed: gets each new one, which the journal already has.
        self.repeats: Callable[[Event], None] | None = None
        #: The experiment's folder, once it is known.
        self.folder: Folder | None = None
        self._lock: DriverLock | None = None
        self._journal: Journal | None = None
        self._keeper: SnapshotWriter | None = None
        #: Translates paths to and from those in the journal.
        self.home = Home()
        self._recorded: set[str] = set()
        self._added: list[Trial] = []

    @property
    def last(self) -> int:
        """Return the number of the newest line; 0 if there is none."""
        return 0 if self._journal is None else self._journal.last

    def claim(self, storage: Any) -> Folder:
        """Become the driver of the experiment in a storage; return its folder.

        Raises:
            tunekit.errors.AlreadyRunningError: If another driver is alive.
            OSError: If the storage fails.
        """
        filesystem, home = storage.storage_filesystem, storage.experiment_fs_path
        warn_of_kills(filesystem, home)
        self._lock = DriverLock(filesystem, home, self._clock, self._stop_writing)
        self._lock.claim()
        self.home, self.folder = Home(home), folder_at(filesystem, home)
        return self.folder

    def past(self) -> list[Event]:
        """Return the events of earlier sessions.

        Raises:
            tunekit.errors.JournalError: If the journal is damaged or of a different version.
            OSError: If the storage fails.
        """
        if self.folder is None:
            return []
        record = record_of(self.folder, unpickle=True)
        added = (event for event in record.events if isinstance(event, TrialAdded))
        self._recorded = {event.trial_id for event in added}
        return [self.home.located(event) for event in record.events]

    def begin(self, *, anew: bool, after: int, about: dict[str, Any]) -> None:
        """Begin a session, of a new sweep if ``anew``; see :class:`Journal`."""
        if self.folder is not None:
            journal = Journal(self.folder, begins=anew, after=after, about=about)
            keeper = SnapshotWriter(self.folder, journal, self._clock, begins=anew)
            self._journal, self._keeper = journal, keeper

    def record(self, event: Event) -> None:
        """Write an event to the journal, and then apply it to the state of the sweep."""
        if self.repeats is not None:
            self.repeats(event)
            return
        # The journal comes first, so that a kill loses nothing that has had an effect (decision 3).
        event = event if event.time else structs.replace(event, time=self._clock.time())
        if self._journal is not None:
            self._journal.append(self.home.recorded(event))
        self.state.apply(event)
        self._tell([event])

    def _tell(self, events: Sequence[Event]) -> None:
        for watch in self.watchers:
            for event in events:
                watch(event)

    def add(self, trial: Trial) -> None:
        """Record a trial at the next :meth:`keep`."""
        if trial.trial_id not in self._recorded:
            self._recorded.add(trial.trial_id)
            self._added.append(trial)

    def keep(self, session: Session, *, saved: bool) -> None:
        """Record added trials, and the state of the sweep if Tune has just saved it."""
        if self._keeper is None:
            return
        kept = saved and self._keeper.snapshot(session)
        if self._added:
            added, self._added = self._added, []
            self._tell(self._keeper.added(session, added, kept=kept))

    def close(self, *, finished: bool = False) -> None:
        """Record the end of the session, write the unwritten lines and release the lock."""
        self.record(SessionClosed(finished=finished))
        if self._journal is not None and not self._journal.close():
            logger.error(
                "The end of the journal could not be written. Validations that it lacks will run "
                "again if the sweep is restored."
            )
        self._journal, self._keeper = None, None
        self.let_go()

    def let_go(self) -> None:
        """Release the lock, so that another driver can take over the sweep."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _stop_writing(self, error: AlreadyRunningError) -> None:
        """Stop writing, because another driver has taken over the sweep."""
        if self.folder is not None:
            self.folder.abandon()
        self.lost = error


def about(now: float, config: ValidationConfig) -> dict[str, Any]:
    """Describe a session as JSON values, without anything that may be secret.

    Args:
        now: Seconds since the epoch.
        config: How checkpoints are validated.
    """
    return {
        "time": now,
        "tunekit": VERSION,
        "ray": ray.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version_of(name))},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "cluster": _cluster(),
        "validation": _settings_of(config),
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cluster() -> dict[str, Any] | None:
    if not ray.is_initialized():
        return None
    amounts = {
        name: amount
        for name, amount in ray.cluster_resources().items()
        if not name.startswith("node:")
    }
    return {"nodes": sum(bool(node["Alive"]) for node in ray.nodes()), "resources": amounts}


def _settings_of(config: ValidationConfig) -> dict[str, Any]:
    names = ("when", "where", "on_pending", "on_failure", "max_in_flight", "max_retries")
    return {
        "fn": function_name(config.fn),
        **{name: getattr(config, name) for name in names},
        "constraints": [one.text for one in config.constraints],
        "evaluators": config.evaluators,
        "timeout_s": config.task_config.timeout_s,
        "resources": _amounts_of(config.ray_remote_kwargs),
    }


def _amounts_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources in the options of a Ray task; other options may hold secrets."""
    amounts = {**options, **(options.get("resources") or {})}
    return {
        name: amount
        for name, amount in amounts.items()
        if not isinstance(amount, bool)
        and finite_number(amount) is not None
        and not name.startswith("max_")
    }
