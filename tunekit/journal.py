"""The record of a sweep: everything that a restored sweep needs to know, before it is acted on.

The journal is a series of files, ``journal/000001.jsonl`` and so on, in the experiment's folder;
each session of the sweep begins one, and others where it has to. A line is a JSON object. The first
of a session says what it is: ``{"journal": "tunekit", "version": 1, ...}``; each other one is an
event, :mod:`tunekit.core.events` says which.

Values of the user's are written as :func:`tunekit.core.values.written` says: what JSON does not
know is a pickle with a text to show, which reading does not open unless it is asked to.

A journal of another version of the format, or an event that is unknown, is an error: to read on
would be to guess.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs

from tunekit._ray.storage import storage_at
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    Reported,
    TrialAdded,
    event_of,
)
from tunekit.core.lineage import Exploit
from tunekit.core.values import ITEMS, PICKLED, SHOWN, Opaque, reader, text, written
from tunekit.errors import JournalError
from tunekit.pickles import from_text, to_text
from tunekit.places import Places
from tunekit.recorded import odd_values, to_json, unknown_to_json
from tunekit.storage import Folder, folder_at

__all__ = [
    "SERIES",
    "VERSION",
    "Growth",
    "Journal",
    "JournalReader",
    "NullJournal",
    "Record",
    "events_in",
    "exploits_of",
    "last_number",
    "read",
    "record_of",
]

logger = logging.getLogger(__name__)

#: The journal's folder in the experiment's.
SERIES = "journal"

#: The version of the format, in each file's first line.
VERSION = 1

# A line without these has nothing but what JSON knows, and is read several times as fast.
_MARKS = tuple(f'"{marker}"' for marker in (SHOWN, PICKLED, ITEMS))
_MARK_BYTES = tuple(mark.encode() for mark in _MARKS)
# So much of a line has its number and its event, which come first.
_FRONT = 40


class Journal:
    """Appends events to the newest file of an experiment's journal.

    A line is handed to the storage before a method returns: in a local folder it outlives this
    process (:mod:`tunekit.storage`). Reports alone may wait.

    Args:
        folder: The experiment's folder.
        series: The folder of its files in that one.
        begins: Whether a sweep begins, rather than one goes on: what is there of a former one in
            the same folder does not count.
        after: The number of the last line that is known of, if the journal may lack it.
        about: What else the session's first line says: of versions, for example.

    Example:
        >>> import tempfile
        >>> from tunekit.core.events import Waited
        >>> from tunekit.storage import LocalFolder
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> journal = Journal(folder)
        >>> journal.append(Waited(time=12.5, trial_id="a", seconds=1.5))
        >>> read(folder)
        [{'n': 1, 'event': 'waited', 'time': 12.5, 'trial_id': 'a', 'seconds': 1.5}]
        >>> record_of(folder).events
        [Waited(n=1, time=12.5, trial_id='a', seconds=1.5)]
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
        #: The number of the newest line.
        self.last = max(last_number(folder, series), after)
        head = {"journal": "tunekit", "version": VERSION, "begins": begins, "after": self.last}
        self._append({**head, **(about or {})})

    def append(self, event: Event) -> None:
        """Write an event down, with the next number.

        A report may wait for the next event of another kind, or for :meth:`flush`: until something
        comes of it, a trial that is restored makes it again.
        """
        self.last += 1
        line, as_written = _line_of(event, self.last)
        self._append(line, as_written, later=isinstance(event, Reported))

    def flush(self) -> None:
        """Write the reports that wait."""
        self._folder.flush()

    def sync(self) -> bool:
        """Let all lines so far outlive the machine; False if they cannot be written now."""
        return self._folder.sync()

    def close(self, patience_s: float = 60.0) -> bool:
        """Write what waits; False if the storage did not take it in so many seconds."""
        written = self._folder.settle(patience_s)
        self._folder.close()
        return written

    # How it is written -------------------------------------------------------------------------

    def _append(
        self,
        line: Mapping[str, Any],
        as_written: Mapping[str, Any] | None = None,
        *,
        later: bool = False,
    ) -> None:
        self._folder.append(self._series, f"{_encoded(line, as_written)}\n".encode(), later=later)


class NullJournal:
    """Takes events and keeps none: there is no folder yet, or the sweep has ended."""

    last = 0

    def append(self, event: Event) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def sync(self) -> bool:
        """Do nothing; return True."""
        return True

    def close(self, patience_s: float = 60.0) -> bool:
        """Do nothing; return True."""
        return True


def _line_of(event: Event, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an event's line says: with values as they are, and with values as written."""
    known = msgspec.structs.asdict(event)
    del known["n"]
    kind = type(event).__struct_config__.tag
    line = {"n": number, "event": kind, "time": known.pop("time"), **known}
    if isinstance(event, Reported):
        line["report"] = {name: value for name, value in event.report.items() if name != "config"}
        return line, {}
    if isinstance(event, TrialAdded):  # Tune's own record has the very values
        return line, {"config": to_json(line.pop("config"))}
    if isinstance(event, CheckpointSaved):
        if event.report is None:
            del line["report"]
        else:
            line["report"] = {name: v for name, v in event.report.items() if name != "config"}
        # The very same are passed if a restored sweep runs it.
        kwargs = written(dict(line.pop("kwargs")), to_text, exact=True)
        return line, {"kwargs": kwargs}
    if isinstance(event, Exploited):
        del line["odd"]
        configs = {name: line.pop(name) for name in ("old_config", "donor_config", "config")}
        as_written = {name: to_json(config) for name, config in configs.items()}
        odd = odd_values(configs.values())
        return line, {**as_written, "odd": odd} if odd else as_written
    return line, {}


def _encoded(line: Mapping[str, Any], as_written: Mapping[str, Any] | None) -> str:
    """A line as JSON.

    Args:
        line: What it says, with values of the user's as they are.
        as_written: What else it says, with values as they are written.
    """
    try:
        own = _encoder.encode(line)
    except Exception:  # whatever its values raise
        own = None
    if own is None or any(mark in own for mark in _MARKS):
        own = _encoder.encode(written(line, to_text))
    return f"{own[:-1]}, {_encoder.encode(as_written)[1:]}" if as_written else own


_encoder = json.JSONEncoder(default=unknown_to_json)


def _opened(packed: str, shown: str) -> Any:
    try:
        return from_text(packed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever its parts raise: a module may be gone
        logger.warning("%s cannot be unpickled: %s", shown, text(error))
        return Opaque(shown)


_read_shown, _read_opened = reader(), reader(_opened)


def last_number(folder: Folder, series: str = SERIES) -> int:
    """The number of the newest line of a journal; 0 if there is none."""
    for name in reversed(_files(folder, series)):
        lines = _complete_lines(folder.read(f"{series}/{name}"))
        if lines:
            line = _parsed(lines[-1], f"{series}/{name}", len(lines), unpickle=False)
            return int(line.get("n", line.get("after", 0)))
    return 0


def read(
    source: Folder | str | Path,
    filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    unpickle: bool = False,
) -> list[dict[str, Any]]:
    """Return the events of an experiment's newest sweep, in order, as their lines have them.

    The last line of a file is left out if it is torn: nothing has been done about it.

    Args:
        source: The experiment's folder: a path, or a URI such as ``s3://bucket/digits``.
        filesystem: Where that is, if it is a path in a filesystem of your own.
        unpickle: Whether to open pickles; without it, a text stands for what JSON does not know.
            A pickle can run any code.

    Raises:
        tunekit.JournalError: If a file is no journal, is of a newer version, or was damaged.
        OSError: If the storage fails.

    Example:
        >>> read("/no/such/folder")
        []
    """
    if isinstance(source, (str, Path)):
        source = folder_at(*storage_at(str(source), filesystem))
    found: list[dict[str, Any]] = []
    for head, file, lines in _sessions(source, SERIES):
        if head is not None and head.get("begins"):
            found = []
        for number, line in lines:
            parsed = _parsed(line, file, number, unpickle=unpickle)
            if "event" in parsed:
                found.append(parsed)
    return found


def events_in(
    source: str | Path,
    filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    unpickle: bool = False,
) -> list[Event]:
    """Return the events of an experiment's newest sweep, in order. Arguments: as of :func:`read`.

    Raises:
        tunekit.JournalError: As for :func:`read`; also if an event is unknown.
        OSError: If the storage fails.

    Example:
        >>> events_in("/no/such/folder")
        []
    """
    return record_of(folder_at(*storage_at(str(source), filesystem)), unpickle=unpickle).events


@dataclass
class Record:
    """What the journal has of an experiment's newest sweep.

    Attributes:
        sessions: The first line of each session: when, with which versions and settings.
        events: The other lines.
    """

    sessions: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def record_of(
    folder: Folder,
    *,
    unpickle: bool = False,
    without: Collection[str] = (),
    series: str = SERIES,
) -> Record:
    """Return what the journal in an experiment's folder has.

    Args:
        folder: The folder.
        unpickle: As for :func:`read`.
        without: Events to leave out, unread, by their names.
        series: The folder of the journal's files in that one.

    Raises:
        tunekit.JournalError: As for :func:`read`; also if an event is unknown.
        OSError: If the storage fails.
    """
    return JournalReader(folder, unpickle=unpickle, without=without, series=series).read().record


@dataclass
class Growth:
    """What a journal has gained since it was read last.

    Attributes:
        record: The new lines.
        anew: Whether what was read before does not count any more: another sweep has begun in the
            folder, or its files are not the ones that were read.
    """

    record: Record
    anew: bool


class JournalReader:
    """Reads a journal as it grows: each line once.

    It remembers how far it has read in the newest file. A line that is not complete is read when it
    is. If a reading fails, the next one begins where that one did.

    Args:
        folder: The experiment's folder.
        unpickle: As for :func:`read`.
        without: Events to leave out, unread, by their names.
        series: The folder of the journal's files in that one.

    Example:
        >>> import tempfile
        >>> from tunekit.core.events import Waited
        >>> from tunekit.storage import LocalFolder
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> journal, reader = Journal(folder), JournalReader(folder)
        >>> journal.append(Waited(time=12.5, trial_id="a", seconds=1.5))
        >>> [event.n for event in reader.read().record.events]
        [1]
        >>> journal.append(Waited(time=13.5, trial_id="a", seconds=0.5))
        >>> [event.n for event in reader.read().record.events]
        [2]
        >>> reader.read()
        Growth(record=Record(sessions=[], events=[]), anew=False)
    """

    def __init__(
        self,
        folder: Folder,
        *,
        unpickle: bool = False,
        without: Collection[str] = (),
        series: str = SERIES,
    ):
        self._folder, self._series, self._unpickle = folder, series, unpickle
        self._skipped = _fronts(without)
        self._at = _Position()

    def read(self) -> Growth:
        """Return the lines that are new since the last call.

        Raises:
            tunekit.JournalError: As for :func:`record_of`.
            OSError: If the storage fails.
        """
        names, at = _files(self._folder, self._series), self._at
        growth = Growth(Record(), anew=not at.begun)
        if at.file:
            more = self._more_of(at) if at.file in names else None
            if more is None:  # deleted, or replaced by a shorter one
                at, growth.anew = _Position(), True
            else:
                at = self._take(growth, at, more)
        for name in names:
            if name > at.file:
                begun = _Position(name, 0, 0, at.begun)
                data = self._folder.read(f"{self._series}/{name}")
                at = self._take(growth, begun, data) if b"\n" in data else at
        self._at = at
        return growth

    def forget(self) -> None:
        """Read everything again, with the next call of :meth:`read`."""
        self._at = _Position()

    def _more_of(self, at: _Position) -> bytes | None:
        return self._folder.tail(f"{self._series}/{at.file}", at.bytes)

    def _take(self, growth: Growth, at: _Position, data: bytes) -> _Position:
        """Add the complete lines to what is new; return how far that is."""
        file, lines = f"{self._series}/{at.file}", _complete_lines(data)
        numbered = enumerate(lines, start=at.lines + 1)
        if lines and not at.lines:
            head = _parsed(lines[0], file, 1, unpickle=False)
            if not (at.begun and "n" in head):  # or a session had to begin another file
                _check(head, file)
                if head.get("begins"):
                    growth.record, growth.anew = Record(), True
                growth.record.sessions.append(head)
                next(numbered)
        events = growth.record.events
        for number, line in numbered:
            front = line[:_FRONT]
            if not any(kind in front for kind in self._skipped):
                events.append(_event(line, file, number, unpickle=self._unpickle))
        read = data.rfind(b"\n") + 1
        return _Position(at.file, at.bytes + read, at.lines + len(lines), True)


@dataclass(frozen=True)
class _Position:
    """How far a journal has been read: in its newest file, so many bytes and lines of it.

    ``begun`` says whether a session's first line was among them.
    """

    file: str = ""
    bytes: int = 0
    lines: int = 0
    begun: bool = False


def _fronts(kinds: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(f'"event": "{kind}"'.encode() for kind in kinds)


def _sessions(
    folder: Folder, series: str
) -> Iterator[tuple[dict[str, Any] | None, str, Iterator[tuple[int, bytes]]]]:
    """Yield each file's first line, if a session begins there, its name, and its other lines."""
    begun = False
    for file, lines in _series(folder, series):
        head = _parsed(lines[0], file, 1, unpickle=False)
        numbered = enumerate(lines, start=1)
        if begun and "n" in head:  # a session had to begin another file
            yield None, file, numbered
            continue
        _check(head, file)
        begun = True
        next(numbered)
        yield head, file, numbered


def _series(folder: Folder, series: str) -> Iterator[tuple[str, list[bytes]]]:
    """The journal's files that have anything, in order: each one's name, and its lines."""
    for name in _files(folder, series):
        file = f"{series}/{name}"
        lines = _complete_lines(folder.read(file))
        if lines:
            yield file, lines


def exploits_of(events: Iterable[Event], places: Places) -> list[Exploit]:
    """Return the exploits in a journal, with the paths of their checkpoints as they are now."""
    return [
        event.exploit(checkpoint=places.path(event.checkpoint))
        for event in events
        if isinstance(event, Exploited)
    ]


def _files(folder: Folder, series: str) -> list[str]:
    names = (name for name in folder.names(series) if name.endswith(".jsonl"))
    return sorted(name for name in names if name.split(".")[0].isdigit())


def _complete_lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1]  # what follows the last newline is nothing, or torn


def _parsed(line: bytes, file: str, number: int, *, unpickle: bool) -> dict[str, Any]:
    try:
        if any(mark in line for mark in _MARK_BYTES):
            parsed = json.loads(line, object_hook=_read_opened if unpickle else _read_shown)
        else:
            parsed = json.loads(line)
    except Exception as error:  # of the JSON, or of a pickle's parts
        raise JournalError(
            f"{file}, line {number}, cannot be read: {type(error).__name__}: {error}. Each line "
            "but the last must be as it was written. Put the file back as it was, or move it away "
            "to go on without what it records."
        ) from error
    if not isinstance(parsed, dict):
        raise JournalError(
            f"{file}, line {number}, is {line[:40]!r}, not a JSON object. Each line but the last "
            "must be as it was written. Put the file back as it was."
        )
    return parsed


_decoder = msgspec.json.Decoder(Event)


def _event(line: bytes, file: str, number: int, *, unpickle: bool) -> Event:
    """Read an event.

    What is special to Python's JSON (NaN, for example), or a pickle, takes the longer way.
    """
    if not any(mark in line for mark in _MARK_BYTES):
        try:
            return _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    parsed = _parsed(line, file, number, unpickle=unpickle)
    try:
        return event_of(parsed)
    except msgspec.ValidationError as error:
        raise JournalError(
            f"{file}, line {number}, is no event that this tunekit knows: {error}. It says "
            f"{line[:120].decode(errors='replace')!r}. Install the newer tunekit that wrote it, or "
            "put the file back as it was."
        ) from error


def _check(head: Mapping[str, Any], file: str) -> None:
    version = head.get("version")
    if head.get("journal") != "tunekit" or not isinstance(version, int):
        raise JournalError(
            f"{file} is no journal of tunekit's: its first line is {dict(head)!r}. Pass the folder "
            "of an experiment that tunekit has run, or put the file back as it was."
        )
    if version != VERSION:
        raise JournalError(
            f"{file} has version {version} of the format; this tunekit reads version {VERSION}. "
            "Install the tunekit that wrote it."
        )
