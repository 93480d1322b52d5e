"""Archive the state of a whole sweep in one file, to restore it from.

Tune regularly saves a sweep's trials, searcher and callbacks in separate files, which a thread
copies to the experiment's folder. If the driver is killed in between, these files are inconsistent
or incomplete. So after each save, the files go into one archive, written atomically, and a line of
the journal names it. A trial that is added between two archives is recorded immediately, with the
searcher that suggested it, before the trial starts. The Tuner's settings go into a separate
archive, once, before the first.

Before Tune restores, :meth:`SavedState.put_back` writes its files as in the newest archive, with
the trials added since; later events are replayed from the journal. A restore needs no other file,
because Tune writes all of its own in place.
"""

from __future__ import annotations

import io
import json
import logging
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ray.tune.experiment import Trial

from tunekit._ray.session import Session
from tunekit.core.events import (
    Event,
    SnapshotTaken,
    TrialAdded,
    TrialEnded,
    TrialErrored,
    TrialRetried,
    has_begun,
)
from tunekit.core.state import SweepState
from tunekit.core.timing import Clock
from tunekit.errors import RestoreError
from tunekit.journal.experiments import SEARCH_FILES, STATE_FILES, TUNER_FILE
from tunekit.journal.journal import STATE as FOLDER
from tunekit.journal.journal import Journal
from tunekit.journal.safe_files import linked_file
from tunekit.journal.storage import PATIENCE_S, Folder, LocalFolder

logger = logging.getLogger(__name__)

#: The archive of the Tuner's settings.
SETTINGS = f"{FOLDER}/tuner.zip"

# Tune's files for trials and callbacks; a snapshot has both.
_TRIALS, _CALLBACKS = STATE_FILES[0], STATE_FILES[-1]
# The names of files in an archive: of the sweep's state, and of the Tuner's settings.
_OF_STATE = re.compile(rf"(?!{re.escape(TUNER_FILE)})[^/\\\0]+\.(json|pkl)")
_OF_TUNER = re.compile(re.escape(TUNER_FILE))


class SnapshotWriter:
    """Write the archives of a running sweep.

    Args:
        folder: The experiment's folder.
        journal: Its journal.
        clock: The clock.
        begins: Whether this is a new sweep, whose settings must be archived.
    """

    def __init__(self, folder: Folder, journal: Journal, clock: Clock, *, begins: bool = False):
        self._folder, self._journal, self._clock = folder, journal, clock
        self._begins = begins
        # Including those of earlier sessions.
        self._archives = {f"{FOLDER}/{name}" for name in folder.names(FOLDER)} - {SETTINGS}

    def snapshot(self, session: Session) -> bool:
        """Archive the state that Tune has just saved; return whether that succeeded."""
        if self._begins and not self._keep_settings():
            return False
        self._begins = False
        name = self._put_next("snapshot", session.saved_files())
        if name is None:
            return False
        self._journal.append(SnapshotTaken(time=self._clock.time(), file=name))
        self._forget_all_but(name, "")
        return True

    def added(
        self,
        session: Session,
        trials: Sequence[Trial],
        *,
        kept: bool,
    ) -> list[TrialAdded]:
        """Record trials that were added in this step; return the lines.

        Args:
            session: What Tune keeps of the sweep.
            trials: The trials.
            kept: Whether a snapshot has been taken since.
        """
        name = None if kept else self._put_next("search", session.search_files())
        lines = [
            TrialAdded(
                time=self._clock.time(),
                trial_id=trial.trial_id,
                config=dict(trial.config),
                folder=trial.storage.trial_dir_name,
                search=name,
                tune=() if kept else trial.get_json_state(),
            )
            for trial in trials
        ]
        for line in lines:
            self._journal.append(line)
        if name is not None:
            self._forget_all_but(name, "-search.zip")
        return lines

    def _keep_settings(self) -> bool:
        """Archive the Tuner's settings, before anything can be restored."""
        if TUNER_FILE in self._folder.names(""):
            return self._put(SETTINGS, {TUNER_FILE: self._folder.read(TUNER_FILE)})
        self._folder.remove(SETTINGS)  # an earlier sweep's; this one has no Tuner
        return True

    def _put_next(self, kind: str, files: Mapping[str, bytes]) -> str | None:
        if not self._journal.sync():  # the archive's name implies that earlier lines were written
            return None
        name = f"{FOLDER}/{self._journal.last + 1:09d}-{kind}.zip"
        if not self._put(name, files):
            return None
        self._archives.add(name)
        return name

    def _put(self, name: str, files: Mapping[str, bytes]) -> bool:
        try:
            self._folder.put(name, _archive(files, name))
        except OSError as error:
            logger.warning(
                "The state of the sweep could not be written to %s: %s. A restored sweep starts "
                "from the previous state, and replays later events.",
                name,
                error,
            )
            return False
        return True

    def _forget_all_but(self, name: str, suffix: str) -> None:
        """Delete the archives that a newer one has replaced."""
        if not self._journal.sync():
            return  # the last line on disk names an older archive
        for archive in {one for one in self._archives if one.endswith(suffix)} - {name}:
            try:
                self._folder.remove(archive)
            except OSError as error:
                logger.warning("%s could not be deleted; this will be retried: %s", archive, error)
            else:
                self._archives.discard(archive)


@dataclass(frozen=True)
class SavedState:
    """The state to restore a sweep from; nothing is written until it is put back.

    Attributes:
        path: The experiment's folder, for messages.
        as_of: The number of the journal line up to which Tune's files are current.
        files: Tune's files, by name.
        settings: The Tuner's settings; None if no Tuner made the sweep.
        searcher_line: The number of the journal line up to which the searcher is current; 0 for
            ``as_of``.
    """

    path: str
    as_of: int
    files: Mapping[str, bytes]
    settings: bytes | None
    searcher_line: int = 0

    def put_back(self, folder: Folder, events: Sequence[Event], now: str | None = None) -> None:
        """Write Tune's files back to an experiment's folder as they were saved.

        It can be interrupted at any time and repeated.

        Args:
            folder: The folder.
            events: Its journal.
            now: The time to put into the files' names. Tune restores the newest files that it
                finds, and there may be files of a session that was killed before its archive was
                written.

        Raises:
            tunekit.errors.RestoreError: If they cannot be written.
            OSError: If the folder cannot be read.
        """
        names = folder.names("")
        now = now or time.strftime("%Y-%m-%d_%H-%M-%S")
        session = max([now, *(_session(name) or "" for name in names)])
        files = {
            name.replace(_session(name) or session, session): (
                _updated(data, events, self.as_of) if name.startswith(_TRIALS) else data
            )
            for name, data in self.files.items()
        }
        if self.settings is not None:
            files[TUNER_FILE] = self.settings
        try:
            for name, data in files.items():
                folder.put(name, data)
            for name in names:
                if name.startswith(STATE_FILES) and name not in files:
                    folder.remove(name)
        except OSError as error:
            raise cannot_write(self.path, str(error)) from error
        if not folder.settle(PATIENCE_S):
            raise cannot_write(self.path, f"the storage did not accept them in {PATIENCE_S:g} s")


def cannot_write(path: str, why: str) -> RestoreError:
    """Return the error for a restore that cannot write to an experiment's folder."""
    return RestoreError(
        f"The sweep in {path!r} cannot be restored: its files cannot be written there: {why}. A "
        "restore writes them back as they were last saved. Make room, or check that the folder is "
        "writable, and restore again; nothing is lost."
    )


def saved_state(folder: Folder, events: Sequence[Event], path: str = "PATH") -> SavedState | None:
    """Return the state that a sweep can be restored from; None if none of its trials has begun.

    Nothing is written, and no pickle is opened.

    Args:
        folder: The experiment's folder.
        events: Its journal.
        path: The folder as the user named it, for messages.

    Raises:
        tunekit.errors.RestoreError: If trials have begun, and the sweep cannot be restored.
        OSError: If the storage fails.
    """
    if not events:
        return None  # whatever is in the folder, it is no sweep
    linked = linked_file(folder.root) if isinstance(folder, LocalFolder) else None
    if linked is not None:
        raise RestoreError(
            f"The sweep in {path!r} cannot be restored: {linked!r} in it is a link, so a restore "
            "would write to another file. Replace the link with a copy, or restore a copy of the "
            "folder (cp -rL)."
        )
    taken = next((event for event in reversed(events) if isinstance(event, SnapshotTaken)), None)
    as_of = 0 if taken is None else taken.n
    added = (event for event in reversed(events) if isinstance(event, TrialAdded))
    searched = next((event for event in added if event.search and event.n > as_of), None)
    begun, problems = has_begun(events), []
    files: dict[str, bytes] = {}
    settings: bytes | None = None
    try:
        files = {} if taken is None else _state_in(folder, taken.file)
    except _UnreadableError as error:
        problems.append(str(error))
    if not files and not begun:
        return None
    if taken is None:
        problems.append("its state was never saved, although trials have begun")
    try:
        settings = _settings_in(folder)
        if searched is not None and searched.search is not None:
            search = _read(folder, searched.search)
            # The searcher's file of another session may have another name; remove that one.
            files = {n: data for n, data in files.items() if not n.startswith(SEARCH_FILES)}
            files.update(search)
    except _UnreadableError as error:
        problems.append(str(error))
    if problems:
        raise RestoreError(
            f"The sweep in {path!r} cannot be restored: {'; '.join(problems)}. If you have a "
            "copy of the folder, restore that one. The journal can still be read: "
            f"`tunekit report {path}` shows it, and tunekit.load({path!r}).best().checkpoint is "
            "the best checkpoint. Do not start a sweep of this name again, because it would "
            "replace this one."
        )
    return SavedState(path, as_of, files, settings, 0 if searched is None else searched.n)


class _UnreadableError(Exception):
    """Raised if an archive cannot be read."""


def _state_in(folder: Folder, name: str) -> dict[str, bytes]:
    files = dict(_read(folder, name))
    for kind in (_TRIALS, _CALLBACKS):
        if not any(file.startswith(kind) for file in files):
            raise _UnreadableError(f"{name} has no {kind}*")
    for file, data in files.items():
        try:
            if file.startswith(_TRIALS):
                json.loads(data)["trial_data"]
        except (ValueError, KeyError, TypeError) as error:
            raise _UnreadableError(f"{file} in {name} is damaged: {error!r}") from error
    return files


def _settings_in(folder: Folder) -> bytes | None:
    """Return the Tuner's settings; None if no Tuner made the sweep."""
    if SETTINGS.rpartition("/")[2] not in folder.names(FOLDER):
        return None
    found = _read(folder, SETTINGS, _OF_TUNER)
    if TUNER_FILE not in found:
        raise _UnreadableError(f"{SETTINGS} has no {TUNER_FILE}")
    return found[TUNER_FILE]


def _session(name: str) -> str | None:
    """Return the session in the name of one of Tune's files; None for any other file."""
    prefix = next((prefix for prefix in STATE_FILES if name.startswith(prefix)), None)
    return None if prefix is None else name[len(prefix) :].rsplit(".", 1)[0]


def _archive(files: Mapping[str, bytes], name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = name.encode()
        for inside, data in files.items():
            archive.writestr(inside, data)
    return file.getvalue()


def _read(folder: Folder, name: str, named: re.Pattern[str] = _OF_STATE) -> Mapping[str, bytes]:
    """Return the files in an archive.

    Args:
        folder: The experiment's folder.
        name: The archive in it.
        named: The pattern of its files' names.
    """
    try:
        data = folder.read(name)
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            # Nothing is compressed, so a small archive cannot expand to fill the memory.
            if sum(one.file_size for one in opened.infolist()) > len(data):
                raise _tampered(
                    f"{name} has {len(data)} bytes and would unpack to more, but tunekit "
                    "compresses nothing there"
                )
            names, written_as = opened.namelist(), opened.comment.decode()
            files = {inside: opened.read(inside) for inside in names}
    except RestoreError:
        raise
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, RuntimeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise _UnreadableError(f"{name} cannot be read ({why})") from error
    for inside in names:
        if named.fullmatch(inside) is None:
            raise _tampered(
                f"{name} has a file {inside!r}, but tunekit only puts Tune's .json and .pkl files "
                "there, without a folder"
            )
    if written_as != name:
        raise _UnreadableError(f"{name} is another file, written as {written_as!r}")
    # Hidden files are Tune's drafts, which a killed driver may have left incomplete.
    return {inside: data for inside, data in files.items() if not inside.startswith(".")}


def _tampered(why: str) -> RestoreError:
    return RestoreError(
        f"{why}. So the archive was changed, and nothing was restored. Put it back as it was, and "
        "do not restore a sweep that you do not trust: Ray opens pickles in it."
    )


def _updated(state: bytes, events: Sequence[Event], as_of: int) -> bytes:
    """Return Tune's saved trials, updated by the trials added and ended since.

    Trials that a time budget or ``fail_fast`` has stopped do not count as ended.
    """
    saved = json.loads(state)
    records = {json.loads(own)["trial_id"]: [own, more] for own, more in saved["trial_data"]}
    statuses = dict.fromkeys(SweepState.after(events).cut_short, Trial.PENDING)
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
    for trial_id, status in statuses.items():
        if trial_id in records:
            own = json.loads(records[trial_id][0])
            if own["status"] not in (Trial.TERMINATED, Trial.ERROR) or status == Trial.PENDING:
                own["status"] = status
                records[trial_id][0] = json.dumps(own, indent=2)
    saved["trial_data"] = list(records.values())
    return json.dumps(saved).encode()
