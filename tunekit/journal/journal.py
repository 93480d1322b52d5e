"""Record a sweep's events before they are acted on, so that it can be restored.

The journal is a series of files, ``journal/000001.jsonl`` and so on, in the experiment's folder;
each session of the sweep starts one, and more if needed. A line is a JSON object. A session's first
line is a header, ``{"n": 1, "journal": "tunekit", "version": 5, ...}``; each other line is an event
(:mod:`tunekit.core.events`).

Lost, changed and duplicated lines are detected: ``n`` numbers all lines, ``crc`` is the line's
checksum, and a header names the line that it follows. The archives of the sweep's state are named
by the number of the next line, which shows how long the journal must be. Missing lines are an
error unless a file such as ``journal/7-12.missing`` allows them.

User values are written as in :mod:`tunekit.journal.encoding`: a value that JSON cannot represent
is stored as a pickle and as text; the pickle is opened only on request.

Versions of the format that cannot be read (:mod:`tunekit.journal.versions`) and unknown events are
errors, because their meaning is unknown.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow.fs

from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    Place,
    Reported,
    SessionHeader,
    TrialAdded,
    ValidationEnded,
    ValidationEvent,
    parse_event,
    readable,
)
from tunekit.core.metrics import is_reserved, left_out_of
from tunekit.core.values import (
    LARGEST,
    MOST,
    NESTED,
    PICKLED,
    format_value,
    is_too_deep,
    limit_sizes,
    sanitize,
)
from tunekit.errors import JournalError
from tunekit.journal.encoding import MARK, exact, legible, read_opened, read_shown
from tunekit.journal.paths import check_path
from tunekit.journal.storage import PATIENCE_S, Folder, folder_at
from tunekit.journal.versions import VERSION, oldest, upgraded
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)

#: The journal's folder in the experiment's.
SERIES = "journal"

#: The folder of the archives of the sweep's state. Each is named by the number of the journal line
#: that names it, and is written after all earlier lines.
STATE = "state"

# A line without this mark is read several times faster.
_MARK = MARK.encode()
# The largest pickle of a hyperparameter that is written into a line, in bytes.
_LARGEST = 64 * 1024
# The first bytes of a line, which contain its number and its event.
_FRONT = 40
_NUMBER = re.compile(rb'\{"n": ([0-9]{1,15}), ')
# The end of each line, and its length.
_SEAL = ', "crc": "%08x"}'
_SEALED = len(_SEAL % 0)
_FILE = re.compile(r"[0-9]{1,15}\.jsonl")
_ARCHIVE = re.compile(r"([0-9]{1,15})-[a-z]+\.zip")


class Journal:
    """Append events to the newest file of an experiment's journal.

    A line is passed to the storage before a method returns. In a local folder, it then outlives
    this process (:mod:`tunekit.journal.storage`).

    Args:
        folder: The experiment's folder.
        series: The journal's subfolder.
        begins: Whether a new sweep begins; lines of an earlier one in the folder are then ignored.
        after: The number of the last known line, which the journal may lack if the driver was
            killed during an upload.
        about: More fields of the session's first line, such as versions.

    Example:
        >>> import tempfile
        >>> from tunekit.core.events import Waited
        >>> from tunekit.journal.storage import LocalFolder
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> journal = Journal(folder)
        >>> journal.append(Waited(time=12.5, trial_id="a", seconds=1.5))
        >>> record_of(folder).events
        [Waited(n=2, time=12.5, trial_id='a', seconds=1.5)]
    """

    def __init__(
        self,
        folder: Folder,
        *,
        series: str = SERIES,
        begins: bool = True,
        after: int = 0,
        about: Mapping[str, Any] | None = None,
    ):
        self._folder, self._series = folder, series
        known = _written_before(folder, series)
        found, seal = _end_of(folder, series)
        #: The number of the newest line.
        self.last = max(found, known, after) + 1
        if self.last > found + 1 and not begins:
            logger.warning(
                "Lines %d to %d of %s are missing: the sweep continues without what they recorded.",
                found + 1,
                self.last - 1,
                series,
            )
        head = {"n": self.last, "journal": "tunekit", "version": VERSION, "begins": begins}
        line = sealed(_encoded({**head, "after": found, "follows": seal, **(about or {})}))
        _head(line, series)  # what is written can be read
        folder.append(series, line)

    def append(self, event: Event) -> None:
        """Write an event, with the next number; what no reader would accept is replaced."""
        event, replaced = readable(event)
        for name, value in replaced.items():
            _warn_of_replaced(type(event).__name__, name, format_value(value))
        line = sealed(f'{{"n": {self.last + 1}, {_line_of(event)[1:]}')
        self._folder.append(self._series, line)
        self.last += 1

    def sync(self) -> bool:
        """Write all lines to disk; return False if that is not possible now."""
        return self._folder.sync()

    def close(self) -> bool:
        """Write the unwritten lines; return False if that takes longer than PATIENCE_S."""
        written = self._folder.settle(PATIENCE_S)
        self._folder.close()
        return written


@lru_cache(maxsize=1024)  # once for each
def _warn_of_replaced(event: str, name: str, shown: str) -> None:
    logger.warning(
        "%s=%s of a %s event cannot be written to the journal as it is: the nearest value that can "
        "be read back is.",
        name,
        shown,
        event,
    )


def _number(value: Any) -> Any:
    """Return a NumPy scalar, which many reports have, as a Python value.

    Raises:
        TypeError: If it is something else, which is encoded differently.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        found = value.item()
        if type(found) in (bool, int, float, str):
            return found
    raise TypeError


_encoder = json.JSONEncoder(default=_number)


def _line_of(event: Event) -> str:
    """Return an event as JSON, without its number."""
    own = {
        name: msgspec.Raw(write(value).encode())
        for name, write in _OF_USERS.get(type(event), {}).items()
        if not isinstance(value := getattr(event, name), Mapping) or value
    }
    return msgspec.json.encode(msgspec.structs.replace(event, **own) if own else event).decode()


def _encoded(value: Any) -> str:
    """Return values of users as JSON, with texts and pickles for what JSON cannot represent."""
    try:
        own = _encoder.encode(value)
    except Exception:  # the values can raise anything
        own = None
    if own is not None and own.count("{") + own.count("[") > NESTED - 1 and is_too_deep([value]):
        own = None  # no reader would accept it
    return _encoder.encode(legible(value)) if own is None or f'"{PICKLED}"' in own else own


def _report(report: Mapping[str, Any]) -> str:
    own = {name: value for name, value in report.items() if name != "config"}
    line = _encoded(own)
    if len(line) <= LARGEST:
        return line
    limited = limit_sizes(sanitize(own, lambda part: part))
    for name in left_out_of(limited):
        _warn_of_size(name)
    return _encoded(limited)


@lru_cache(maxsize=1024)  # once for each
def _warn_of_size(name: str) -> None:
    logger.warning(
        "A trial reported more than 1 MiB for %r. Loggers get it, but the record of the sweep has "
        "a short text instead. Write large values to a file, and report its path.",
        name,
    )


def _exactly(config: Mapping[Any, Any]) -> str:
    return _encoder.encode(exact(dict(config), _LARGEST))


# The fields with values of users, each with how it is encoded.
_OF_USERS: dict[type, dict[str, Callable[[Any], str]]] = {
    # Tune's own record has the exact values.
    TrialAdded: {"config": lambda config: _encoder.encode(sanitize(config))},
    Reported: {"report": _report},
    # A restored sweep passes exactly these to the validation.
    CheckpointSaved: {
        "kwargs": lambda kwargs: _encoder.encode(exact(kwargs)),
        "files": lambda files: _encoder.encode(sanitize(files)),
    },
    ValidationEnded: {"metrics": _encoded},
    Exploited: {
        "score": _encoded,
        "old_config": _exactly,
        "donor_config": _exactly,
        "config": _exactly,
    },
}


def sealed(line: str) -> bytes:
    """Return a line as written to a file: a JSON object with its checksum.

    Example:
        >>> sealed('{"n": 7}')
        b'{"n": 7, "crc": "119bb0e0"}\\n'
    """
    own = line[:-1].encode()
    return own + (_SEAL % crc32(own)).encode() + b"\n"


def _is_sealed(line: bytes) -> bool:
    return line[-10:-2] == b"%08x" % crc32(line[:-_SEALED])


def _seal_of(line: bytes) -> str:
    return line[-10:-2].decode()


def _end_of(folder: Folder, series: str) -> tuple[int, str]:
    """Return the number and the checksum of a journal's newest line; 0 and "" if there is none."""
    for name in reversed(_files(folder.names(series))):
        lines = folder.read(f"{series}/{name}").split(b"\n")[:-1]
        if lines:
            number = _NUMBER.match(lines[-1]) if _is_sealed(lines[-1]) else None
            if number is None:
                raise _damaged(f"{series}/{name}", len(lines))
            return int(number[1]), _seal_of(lines[-1])
    return 0, ""


def _written_before(folder: Folder, series: str) -> int:
    """Return the number of the last line known to exist from a sweep's newest archive."""
    if series != SERIES:
        return 0
    archives = (_ARCHIVE.fullmatch(name) for name in folder.names(STATE))
    return max((int(found[1]) - 1 for found in archives if found is not None), default=0)


def events_in(
    source: str | Path, filesystem: pyarrow.fs.FileSystem | None = None, *, unpickle: bool = False
) -> list[Event]:
    """Return the events of an experiment's newest sweep, in order.

    A torn last line of a file is omitted: it was never acted on.

    Args:
        source: The experiment's folder: a path, or a URI such as ``s3://bucket/digits``.
        filesystem: The filesystem of ``source``, if it is a custom one.
        unpickle: Whether to open pickles, which can run any code; if False, values that JSON cannot
            represent are texts.

    Raises:
        tunekit.errors.ConfigError: If the folder cannot be reached.
        tunekit.errors.JournalError: If a file is not a journal, has another version, is damaged, or
            has an unknown event.
        OSError: If the storage fails.

    Example:
        >>> events_in("/no/such/folder")
        []
    """
    problems = Problems("events_in")
    found = check_path(source, filesystem, problems, "source")
    problems.raise_any()
    assert found is not None  # otherwise an error was raised
    return record_of(folder_at(*found), unpickle=unpickle).events


@dataclass
class Record:
    """The lines of an experiment's newest sweep, or those added since the previous read.

    Attributes:
        sessions: The first line of each session, with its time, versions and settings.
        events: The other lines.
        anew: Whether lines that were read earlier are obsolete: another sweep has begun in the
            folder, or its files have been replaced.
    """

    sessions: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    anew: bool = True


def record_of(folder: Folder, *, unpickle: bool = False, series: str = SERIES) -> Record:
    """Return the sessions and events of the journal in an experiment's folder.

    Args:
        folder: The folder.
        unpickle: As for :func:`events_in`.
        series: The journal's subfolder.

    Raises:
        tunekit.errors.JournalError: As for :func:`events_in`.
        OSError: If the storage fails.
    """
    return JournalReader(folder, unpickle=unpickle, series=series).read()


@dataclass
class _Position:
    """A position in a journal that is being read.

    Attributes:
        file: The file.
        bytes: How many bytes of it were read.
        lines: How many lines of it were read.
        last: The number of the last line; 0 before the first line of a session.
        seal: The checksum of the last line.
        version: The version of the session's format.
    """

    file: str = ""
    bytes: int = 0
    lines: int = 0
    last: int = 0
    seal: str = ""
    version: int = VERSION


class JournalReader:
    """Read a journal as it grows: each line once.

    An incomplete line is read once it is complete. If a read fails, the next one starts at the same
    position.

    Args:
        folder: The experiment's folder.
        unpickle: As for :func:`events_in`.
        series: The journal's subfolder.

    Example:
        >>> import tempfile
        >>> from tunekit.core.events import Waited
        >>> from tunekit.journal.storage import LocalFolder
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> journal, reader = Journal(folder), JournalReader(folder)
        >>> journal.append(Waited(time=12.5, trial_id="a", seconds=1.5))
        >>> [event.n for event in reader.read().events]
        [2]
        >>> journal.append(Waited(time=13.5, trial_id="a", seconds=0.5))
        >>> [event.n for event in reader.read().events]
        [3]
        >>> reader.read()
        Record(sessions=[], events=[], anew=False)
    """

    def __init__(self, folder: Folder, *, unpickle: bool = False, series: str = SERIES):
        self._folder, self._series, self._unpickle = folder, series, unpickle
        self._at = _Position()
        # The names of the journal's files, and of files that allow lines to be missing.
        self._names: frozenset[str] = frozenset()
        # The lines of the previous file, if it was read as a whole.
        self._before: list[bytes] = []

    def forget(self) -> None:
        """Read the journal from its start at the next :meth:`read`."""
        self._at = _Position()

    def read(self) -> Record:
        """Return the lines that are new since the last call.

        Raises:
            tunekit.errors.JournalError: As for :func:`record_of`.
            OSError: If the storage fails.
        """
        try:
            found, self._at = self._read(self._at)
        except JournalError:
            if not self._at.file:
                raise
            # Either the files that were read have been replaced, or they are damaged.
            found, self._at = self._read(_Position())
        return found

    def _read(self, at: _Position) -> tuple[Record, _Position]:
        # In this order: the lines before an archive are in the files that are listed next.
        known = 0 if at.file else _written_before(self._folder, self._series)
        names = self._folder.names(self._series)
        self._names, files = frozenset(names), _files(names)
        self._before = []
        found, at = Record(anew=not at.last), replace(at)
        if at.file:
            more = b""
            if at.file in files:
                more = self._folder.read(f"{self._series}/{at.file}", at.bytes - 1)
            if not more.startswith(b"\n"):  # deleted, or replaced by another file
                return self._read(_Position())
            self._add_lines(found, at, more[1:])
            files = files[files.index(at.file) + 1 :]
        for name in files:
            data = self._folder.read(f"{self._series}/{name}")
            if b"\n" in data:
                at.file, at.bytes, at.lines = name, 0, 0
                self._add_lines(found, at, data)
        if known > at.last:
            ends = f"{self._series}/{at.file} ends" if at.file else f"{self._series} has no line"
            self._check_gap(
                f"{ends}, and {STATE}/ was written after line {known}", at.last + 1, known
            )
        return found, at

    def _add_lines(self, found: Record, at: _Position, data: bytes) -> None:
        """Add the complete lines to the record, and advance the position."""
        file, lines = f"{self._series}/{at.file}", data.split(b"\n")[:-1]  # the last may be torn
        before, self._before = self._before, [] if at.lines else lines
        for line in lines:
            at.lines += 1
            if not _is_sealed(line):
                raise _damaged(file, at.lines)
            try:
                if at.lines == 1 and (not at.last or b'"journal": ' in line[:_FRONT]):
                    head = _head(line, file)
                    self._check_head(found, head, file, at, before)
                    at.last, at.version = head["n"], head["version"]
                else:
                    event = _event(line, file, at, unpickle=self._unpickle)
                    self._check_number(event.n, file, at)
                    found.events.append(event)
                    at.last = event.n
            except JournalError:
                raise
            except Exception as error:  # its checksum is right, but tunekit has not written it
                raise _damaged(file, at.lines, f"{type(error).__name__}: {error}") from error
        if lines:
            at.seal = _seal_of(lines[-1])
        at.bytes += data.rfind(b"\n") + 1

    def _check_number(self, number: int, file: str, at: _Position) -> None:
        """Raise an error unless the number of an event follows the last line's."""
        if number <= at.last:
            raise _disordered(file, at.lines, number, at.last)
        if number > at.last + 1:
            where = f"{file} continues at line {at.lines} with number {number}"
            self._check_gap(where, at.last + 1, number - 1)

    def _check_gap(self, where: str, first: int, last: int) -> None:
        """Raise an error unless a file allows these lines to be missing."""
        allowed = f"{first}-{last}.missing"
        which = f"line {first} is" if first == last else f"lines {first} to {last} are"
        if allowed not in self._names:
            raise JournalError(
                f"{where}, and {which} missing: a file was removed or cut. Put it back as it was. "
                f"If that is impossible, create an empty file {self._series}/{allowed} in the "
                "sweep's folder: the sweep is then read and restored without what they recorded."
            )
        logger.warning("%s: %s missing, as %s/%s allows.", where, which, self._series, allowed)

    def _check_head(
        self, found: Record, head: dict[str, Any], file: str, at: _Position, before: list[bytes]
    ) -> None:
        """Add a session's first line, after checking that it follows the lines read so far."""
        number, after = head["n"], head["after"]
        if head["begins"]:
            if number <= at.last:
                raise _disordered(file, 1, number, at.last)
            found.sessions, found.events, found.anew = [], [], True
        elif after > at.last:
            self._check_gap(f"{file} follows line {after}", at.last + 1, after)
        elif after < at.last:
            _leave_out(found, head, file, at.last, before)
        elif at.last and head["follows"] != at.seal:
            raise JournalError(
                f"{file} belongs to another journal: it follows a line {after} that differs from "
                "the one before it. Put the files back as they were."
            )
        found.sessions.append(head)


def _leave_out(
    found: Record, head: dict[str, Any], file: str, last: int, before: list[bytes]
) -> None:
    """Drop lines that a driver wrote after another one had taken over the sweep.

    Raises:
        tunekit.errors.JournalError: If the session does not continue from the previous file.
    """
    after = head["after"]
    mark = f'"n": {after}, '.encode()
    known = (one for one in before if mark in one[:_FRONT])
    if not any(_seal_of(one) == head["follows"] for one in known):
        raise _disordered(file, 1, head["n"], last)
    logger.warning(
        "Lines %d to %d before %s are left out: a driver wrote them after another one had "
        "taken the sweep over.",
        after + 1,
        last,
        file,
    )
    while found.events and found.events[-1].n > after:
        found.events.pop()


def _files(names: Iterable[str]) -> list[str]:
    found = (name for name in names if _FILE.fullmatch(name))
    return sorted(found, key=lambda name: int(name.split(".")[0]))


def _damaged(
    file: str, index: int, why: str = "its checksum does not match its content"
) -> JournalError:
    return JournalError(
        f"{file}, line {index}, is not as it was written: {why}. Restore the original file. If "
        "that is impossible, delete the line; the next error says how to continue without it."
    )


def _disordered(file: str, index: int, number: int, last: int) -> JournalError:
    return JournalError(
        f"{file}, line {index}, has number {number} but follows number {last}: lines or files "
        "were copied, swapped or reordered. Restore the original files."
    )


def _parsed(line: bytes, file: str, index: int, *, unpickle: bool) -> dict[str, Any]:
    hook = None if _MARK not in line else read_opened if unpickle else read_shown
    parsed = json.loads(line, object_hook=hook)
    if not isinstance(parsed, dict):
        raise _damaged(file, index, "it is not a JSON object")
    number = parsed.get("n")
    if type(number) is not int or not 0 < number <= MOST:
        raise _damaged(file, index, "it has no number")
    return parsed


_decoder = msgspec.json.Decoder(Event)


def _event(line: bytes, file: str, at: _Position, *, unpickle: bool) -> Event:
    """Read an event.

    Lines of an older version, with a pickle, or with an extension of Python's JSON such as NaN,
    take longer.
    """
    event: Event | None = None
    if _MARK not in line and at.version == VERSION:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = _decoder.decode(line)
    try:
        if event is None:
            parsed = _parsed(line, file, at.lines, unpickle=unpickle)
            event = parse_event(upgraded(parsed, at.version))
        deep = len(line) > 2 * NESTED and line.count(b"{") + line.count(b"[") > NESTED
        # Check the line as written, because a pickled object may contain itself.
        if deep and is_too_deep(_parsed(line, file, at.lines, unpickle=False)):
            raise ValueError(f"it is nested more than {NESTED} levels deep")
        _named(event)
    except (msgspec.ValidationError, KeyError, ValueError) as error:
        raise JournalError(
            f"{file}, line {at.lines}, is not a known event: {error}. The line begins with "
            f"{line[:120].decode(errors='replace')!r}. Install the newer tunekit that wrote it, or "
            "restore the original file."
        ) from error
    return event


def _named(event: Event) -> object:
    """Return what the event belongs to; an error is raised here, where its line is known."""
    match event:
        case ValidationEnded() if taken := [*filter(is_reserved, event.metrics)]:
            raise ValueError(f"a score has the reserved name {taken[0]!r}")
        case Reported():
            if all(type(part) is int and 0 <= part <= MOST for part in event.place):
                return event.place
            return msgspec.convert(event.place, Place)  # says what is wrong
        case ValidationEvent():
            return event.key
    return None


def _head(line: bytes, file: str) -> dict[str, Any]:
    """Read the first line of a session.

    Raises:
        tunekit.errors.JournalError: If it is that of another file, or of another version.
        msgspec.ValidationError: If a field is missing or wrong.
    """
    head = _parsed(line, file, 1, unpickle=False)
    head.pop("crc", None)
    version = head.get("version")
    if head.get("journal") != "tunekit" or type(version) is not int:
        raise JournalError(
            f"{file} is not a tunekit journal: its first line is {format_value(head)}. Pass the "
            "folder of an experiment that tunekit has run, or restore the original file."
        )
    if not oldest() <= version <= VERSION:
        raise JournalError(
            f"{file} has version {version} of the format; this tunekit reads versions {oldest()} "
            f"to {VERSION}. Install the tunekit that wrote it."
        )
    head = upgraded(head, version)
    msgspec.convert(head, SessionHeader)
    return head
