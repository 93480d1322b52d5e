"""The state of a whole sweep in one file, and what a restored sweep is started from.

Tune saves a sweep now and then: its trials, its searcher, its callbacks, each in a file, which a
thread copies to the experiment's folder. A driver that is killed meanwhile leaves files there that
do not belong together, or half of one. So whenever Tune has saved, the files go into one archive,
which appears as a whole, and a line of the journal says as of when it is. A trial that is added
between two of these, and the searcher that has suggested it, are recorded at once: before anything
comes of it.

Before Tune restores, :func:`prepare_restore` puts its files as the newest archive has them, with
the trials that were added since; what happened since is replayed from the journal.
"""

from __future__ import annotations

import io
import json
import logging
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.controller import SEARCH_FILES, STATE_FILES, Controller
from tunekit._ray.storage import TUNER_FILE
from tunekit.clock import Clock
from tunekit.core.endings import cut_short, trials_ended_unrecorded
from tunekit.core.events import (
    Event,
    SnapshotTaken,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialRetried,
)
from tunekit.errors import RestoreError
from tunekit.journal import Journal
from tunekit.storage import Folder

__all__ = ["RestorePoint", "SnapshotWriter", "prepare_restore"]

logger = logging.getLogger(__name__)

#: The archives' folder in the experiment's.
FOLDER = "state"

_PATIENCE_S = 60.0
# What the files in an archive are called.
_PLAIN = re.compile(r"[^/\\\0]+\.(json|pkl)")


class SnapshotWriter:
    """Writes the archives of a running sweep.

    Args:
        folder: The experiment's folder.
        journal: Its journal.
        clock: What the time is read from.
    """

    def __init__(self, folder: Folder, journal: Journal, clock: Clock):
        self._folder, self._journal, self._clock = folder, journal, clock
        # Those of former sessions, too.
        self._archives = {f"{FOLDER}/{name}" for name in folder.names(FOLDER)}

    def snapshot(self, controller: Controller) -> None:
        """Keep what Tune has just saved."""
        name = self._put("snapshot", controller.saved_files())
        if name is not None:
            self._journal.append(SnapshotTaken(time=self._clock.time(), file=name))
            if self._journal.sync():  # else an older line names what there is
                for older in self._archives - {name}:
                    self._forget(older)

    def added(
        self,
        controller: Controller,
        trials: Sequence[tuple[Trial, Mapping[str, Any]]],
        *,
        kept: bool,
    ) -> None:
        """Record trials that were added in this step.

        Args:
            controller: The sweep.
            trials: The trials, each with its stopping criterion.
            kept: Whether a snapshot has been taken since.
        """
        name = None if kept else self._put("search", controller.search_files())
        for trial, stop in trials:
            trial.init_local_path()  # Tune does when it asks for the trial's resources
            state, metadata = controller.record_of(trial)
            self._journal.append(
                TrialAdded(
                    time=self._clock.time(),
                    trial_id=trial.trial_id,
                    config=dict(trial.config),
                    folder=trial.storage.trial_dir_name,
                    resources=dict(trial.placement_group_factory.required_resources),
                    search=name,
                    tune=[state, metadata],
                    stop=stop,
                )
            )
        if name is not None and self._journal.sync():
            for older in self._archives - {name}:
                if older.endswith("-search.zip"):
                    self._forget(older)

    def _put(self, kind: str, files: Mapping[str, bytes]) -> str | None:
        name = f"{FOLDER}/{self._journal.last + 1:09d}-{kind}.zip"
        try:
            self._folder.put(name, _archive(files))
        except OSError as error:
            logger.warning(
                "The state of the sweep could not be written to %s: %s. A restored sweep starts "
                "from the one before, and replays what came after.",
                name,
                error,
            )
            return None
        self._archives.add(name)
        return name

    def _forget(self, archive: str) -> None:
        """Delete an archive that another one has taken the place of."""
        try:
            self._folder.remove(archive)
        except OSError as error:
            logger.warning("%s could not be deleted, and is tried again: %s", archive, error)
        else:
            self._archives.discard(archive)


@dataclass(frozen=True)
class RestorePoint:
    """What a sweep is restored from.

    Attributes:
        search: The number of the journal's line as of which the searcher is; None: as of which the
            sweep's state is.
    """

    search: int | None = None


def prepare_restore(
    folder: Folder, events: Sequence[Event], now: str | None = None
) -> RestorePoint:
    """Put Tune's files of an experiment as its newest archive has them.

    It can be killed, and called again, at any time.

    Args:
        folder: The experiment's folder.
        events: Its journal.
        now: What the files are named by. Tune restores the newest that it finds, and the driver may
            still have those of a session that was killed before its archive was written.

    Raises:
        tunekit.RestoreError: If there is nothing to restore from, or an archive was tampered with.
        OSError: If the storage fails.
    """
    now = now or time.strftime("%Y-%m-%d_%H-%M-%S")
    found = next(_archives(folder, events, SnapshotTaken), None)
    if found is None:
        raise RestoreError(
            "The sweep was killed before its state was saved for the first time: no trial had "
            "begun, so that nothing is lost. Start it again with Tuner(...).fit()."
        )
    as_of, files = found
    since = [event for event in events if event.n > as_of]
    search = next(_archives(folder, since, TrialAdded), None)
    if search is not None and search[1]:
        # Another session's may have another name: there must not be two.
        files = {n: data for n, data in files.items() if not n.startswith(SEARCH_FILES)}
        files.update(search[1])
    session = max([now, *(_session(name) or "" for name in folder.names(""))])
    files = {name.replace(_session(name) or session, session): d for name, d in files.items()}
    for name, data in files.items():
        if name.startswith("experiment_state"):
            data = _brought_up(data, events, as_of)
        folder.put(name, data)
    for name in folder.names(""):
        if name.startswith(STATE_FILES) and name not in files:
            folder.remove(name)
    if not folder.settle(_PATIENCE_S):
        raise RestoreError(
            f"The experiment's state could not be written in {_PATIENCE_S:g} s. See that its "
            "storage can be written to, and restore again; nothing is lost."
        )
    return RestorePoint(None if search is None or not search[1] else search[0])


def _session(name: str) -> str | None:
    """Return what Tune has named one of its files by; None if it is none of those."""
    prefix = next((prefix for prefix in STATE_FILES if name.startswith(prefix)), None)
    return None if prefix is None else name[len(prefix) :].rsplit(".", 1)[0]


def _archives(
    folder: Folder, events: Sequence[Event], kind: type[SnapshotTaken | TrialAdded]
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield the archives that events of a kind name, the newest first, as (number, files)."""
    tried = set()
    for event in reversed(events):
        if not isinstance(event, kind):
            continue
        name = event.file if isinstance(event, SnapshotTaken) else event.search
        if name is None or name in tried:
            continue
        tried.add(name)
        try:
            yield event.n, _files_in(folder.read(name), name)
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            logger.warning("%s cannot be read (%s); an older one is looked for.", name, error)


def _archive(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def _files_in(archive: bytes, where: str) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for name in opened.namelist():
            if not _PLAIN.fullmatch(name) or name == TUNER_FILE:
                raise RestoreError(
                    f"{where} has a file {name!r}; all that tunekit puts there are files in which "
                    "Tune has saved the sweep, .json and .pkl, without a folder. Somebody has "
                    "changed it, and nothing was written. Put it back as it was, and do not "
                    "restore what you do not trust: Ray opens pickles in it."
                )
        # Nothing is compressed, so that a few bytes cannot become more than memory holds.
        if sum(one.file_size for one in opened.infolist()) > len(archive):
            raise RestoreError(
                f"{where} has {len(archive)} bytes and would unpack to more; tunekit compresses "
                "nothing there. Somebody has changed it, and nothing was written. Put it back as "
                "it was, and do not restore what you do not trust."
            )
        # What is hidden is a draft of Tune's, of which a killed driver may have left half.
        names = [name for name in opened.namelist() if not name.startswith(".")]
        return {name: opened.read(name) for name in names}


def _brought_up(state: bytes, events: Sequence[Event], as_of: int) -> bytes:
    """Tune's saved trials with those that were added since, and those that have ended.

    Those that the time budget has stopped have not.
    """
    saved = json.loads(state)
    records = {json.loads(own)["trial_id"]: [own, more] for own, more in saved["trial_data"]}
    statuses = dict.fromkeys(cut_short(events) - trials_ended_unrecorded(events), Trial.PENDING)
    for event in events:
        if event.n <= as_of:
            continue
        match event:
            case TrialAdded():
                records.setdefault(event.trial_id, list(event.tune))
            case TrialEnded():
                statuses[event.trial_id] = Trial.TERMINATED
            case TrialErrored():
                statuses[event.trial_id] = Trial.ERROR
            case TrialRetried():
                statuses[event.trial_id] = Trial.PENDING
    for trial_id in trials_ended_unrecorded(events):
        statuses.setdefault(trial_id, Trial.TERMINATED)
    for trial_id, status in statuses.items():
        if trial_id in records:
            own = json.loads(records[trial_id][0])
            if own["status"] not in (Trial.TERMINATED, Trial.ERROR) or status == Trial.PENDING:
                own["status"] = status
                records[trial_id][0] = json.dumps(own, indent=2)
    saved["trial_data"] = list(records.values())
    return json.dumps(saved).encode()
