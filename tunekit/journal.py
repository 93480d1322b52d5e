"""The record of a sweep: everything that a restored sweep needs to know, before it is acted on.

The journal is a series of files, ``journal/000001.jsonl`` and so on, in the experiment's folder;
each session of the sweep begins one, and others where it has to. A line is a JSON object. The first
of a session says what it is: ``{"journal": "tunekit", "version": 2, ...}``. In each other one ``n``
numbers the lines, ``event`` is one of these, and ``time`` is in seconds since the epoch:

============== ===================================================================================
``added``      a trial: its ``config``, ``folder``, and Tune's own record of it
``reported``   a trial's report of an iteration; ``offered``: Tune showed it to the scheduler
``saved``      a trial saved a checkpoint at the iteration it has reported last
``requested``  that checkpoint is to be validated
``started``    an attempt was handed to Ray
``began``      it has got its resources, and runs
``ended``      the validation ended for good: ``status``, ``metrics``, ``reason``, ``error``
``delivered``  the scheduler got the validated result, and decided
``decided``    the scheduler stopped a trial on another one's result
``reminded``   the scheduler got a result again that it has seen, and decided
``chosen``     the scheduler lets a trial go on that it had paused
``completed``  a trial ended; ``removed``: without running then
``finished``   the scheduler and the searcher were told so, after its last score
``waited``     a trial has stood still for its score, for ``seconds`` until now
``failed``     a trial failed; Tune may start it again
``retried``    it is started again
``errored``    it failed for good
``expired``    the time budget is used up: ``trial_ids`` were stopped, and have not ended
``exploited``  a trial is overwritten with a checkpoint; ``odd``: by their texts, the values of
               its hyperparameters that JSON does not know
``leased``     a checkpoint is kept for a holder
``released``   it is not any more
``snapshot``   the state of the whole sweep as of this line is in a file
``closed``     the session ended; ``finished``: and with it the sweep
============== ===================================================================================

Checkpoints are named by their paths below the experiment's folder, which may be moved. Values of
the user's are written as :func:`tunekit.core.values.written` says: what JSON does not know is a
pickle with a text to show, which reading does not open unless it is asked to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import storage_at
from tunekit.core.lineage import Exploit
from tunekit.core.validation import Attempt, Outcome, Request
from tunekit.core.values import ITEMS, PICKLED, SHOWN, Shown, reader, same, text, written
from tunekit.errors import JournalError
from tunekit.pickles import from_text, to_text, to_text_elsewhere
from tunekit.storage import Folder, folder_at

__all__ = [
    "SERIES",
    "VERSION",
    "Journal",
    "Places",
    "Record",
    "Shown",
    "as_known",
    "exploits_of",
    "last_number",
    "legible",
    "read",
    "record_of",
]

logger = logging.getLogger(__name__)

#: The journal's folder in the experiment's.
SERIES = "journal"

#: The version of the format, in each file's first line.
VERSION = 2

# A line without these has nothing but what JSON knows, and is read several times as fast.
_MARKS = tuple(f'"{marker}"' for marker in (SHOWN, PICKLED, ITEMS))
_MARK_BYTES = tuple(mark.encode() for mark in _MARKS)
# So much of a line has its number and its event, which come first.
_FRONT = 40
# Bytes of the pickle of a hyperparameter that is written down.
_LARGEST_ODD = 64 * 1024


class Places:
    """Paths below an experiment's folder, which may have been moved since they were written down.

    Args:
        home: The experiment's folder; None leaves paths as they are.

    Example:
        >>> places = Places("/results/digits")
        >>> places.record("/results/digits/trial_a/checkpoint_000001")
        './trial_a/checkpoint_000001'
        >>> Places("bucket/digits").path("./trial_a/checkpoint_000001")
        'bucket/digits/trial_a/checkpoint_000001'
        >>> places.record("/elsewhere/checkpoint")
        '/elsewhere/checkpoint'
    """

    def __init__(self, home: str | None = None):
        self.home = home

    def record(self, path: str) -> str:
        """How a path is written down."""
        if self.home is not None and path.startswith(f"{self.home}/"):
            return f"./{path[len(self.home) + 1 :]}"
        return path

    def path(self, recorded: str) -> str:
        """The path that was written down."""
        if self.home is not None and recorded.startswith("./"):
            return f"{self.home}/{recorded[2:]}"
        return recorded


class Journal:
    """Appends events to the newest file of an experiment's journal.

    A line is handed to the storage before a method returns: in a local folder it outlives this
    process (:mod:`tunekit.storage`). Reports alone may wait.

    Args:
        folder: The experiment's folder.
        places: Where that is, for the paths of checkpoints.
        begins: Whether a sweep begins, rather than one goes on: what is there of a former one in
            the same folder does not count.
        after: The number of the last line that is known of, if the journal may lack it.
        about: What else the session's first line says: of versions, for example.

    Example:
        >>> import tempfile
        >>> from tunekit.core.validation import Request
        >>> from tunekit.storage import LocalFolder
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> journal = Journal(folder)
        >>> journal.requested(Request("a", 1), at=12.5)
        >>> [(event["n"], event["event"], event["id"]) for event in read(folder)]
        [(1, 'requested', 'a:0:1:1')]
    """

    def __init__(
        self,
        folder: Folder,
        places: Places | None = None,
        *,
        begins: bool = True,
        after: int = 0,
        about: Mapping[str, Any] | None = None,
    ):
        self._folder, self._places = folder, places or Places()
        #: The number of the newest line.
        self.last = max(last_number(folder), after)
        #: Whether nothing is appended: what happens is being replayed.
        self.muted = False
        head = {"journal": "tunekit", "version": VERSION, "begins": begins, "after": self.last}
        self._append({**head, **(about or {})})

    # The life of a trial -----------------------------------------------------------------------

    def added(self, trial_id: str, at: float, **known: Any) -> None:
        """A trial was added to the sweep.

        Args:
            trial_id: The trial.
            at: The time.
            **known: What is known of it; ``config`` is for readers: Tune's own record has it, too.
        """
        configs = {"config": legible(known.pop("config"))} if "config" in known else {}
        self._event("added", at, configs, trial_id=trial_id, **known)

    def reported(
        self, trial_id: str, report: Mapping[str, Any], *, offered: bool, at: float
    ) -> None:
        """A trial reported; ``offered``: Tune has shown it to the scheduler.

        The line may wait for the next event of another kind, or for :meth:`flush`: until something
        comes of the report, a trial that is restored makes it again.
        """
        shown = {name: value for name, value in report.items() if name != "config"}
        known = {"trial_id": trial_id, "offered": offered, "report": shown}
        self._event("reported", at, **known)

    def saved(
        self,
        request: Request,
        at: float,
        *,
        report: Mapping[str, Any] | None,
        wish: bool | None,
        used: bool,
    ) -> None:
        """A trial saved a checkpoint: ``request`` would validate it.

        Args:
            request: It.
            at: The time.
            report: The report that is stored with it, if that is not the trial's last.
            wish: Whether the report asked for a validation.
            used: Whether the scheduler will use the score, or it is the trial's last.
        """
        # The very same are passed if a restored sweep runs it.
        kwargs = {"kwargs": written(dict(request.kwargs), to_text, exact=True)}
        how = {"used": used, "timeout_s": request.timeout_s}
        event = {**self._of(request), "run": request.run, "wish": wish, **how}
        if report is not None:
            event["report"] = {name: v for name, v in report.items() if name != "config"}
        self._event("saved", at, kwargs, **event, checkpoint=self._places.record(request.path))

    def completed(self, trial_id: str, at: float, *, removed: bool = False) -> None:
        """A trial ended; ``removed``: while it was not running."""
        self._event("completed", at, trial_id=trial_id, removed=removed)

    def finished(self, trial_id: str, at: float) -> None:
        """The scheduler and the searcher were told of the trial's end."""
        self._event("finished", at, trial_id=trial_id)

    def waited(self, trial_id: str, seconds: float, at: float) -> None:
        """A trial has stood still for that long because a score of it was pending."""
        self._event("waited", at, trial_id=trial_id, seconds=round(seconds, 4))

    def chosen(self, trial_id: str, at: float, *, runs: bool) -> None:
        """The scheduler lets a trial go on that it had paused; ``runs``: it has an actor."""
        self._event("chosen", at, trial_id=trial_id, runs=runs)

    def failed(self, trial_id: str, at: float) -> None:
        """A trial failed."""
        self._event("failed", at, trial_id=trial_id)

    def retried(self, trial_id: str, at: float) -> None:
        """A trial that failed is started again."""
        self._event("retried", at, trial_id=trial_id)

    def errored(self, trial_id: str, at: float) -> None:
        """A trial failed for good."""
        self._event("errored", at, trial_id=trial_id)

    def expired(self, trial_ids: Sequence[str], at: float) -> None:
        """The time budget is used up, and has stopped these trials."""
        self._event("expired", at, trial_ids=list(trial_ids))

    def exploited(self, exploit: Exploit) -> None:
        """A trial is overwritten with a checkpoint."""
        known = {field.name: getattr(exploit, field.name) for field in fields(Exploit)}
        known["checkpoint"] = self._places.record(exploit.checkpoint)
        configs = {name: known.pop(name) for name in ("old_config", "donor_config", "config")}
        written_down = {name: legible(config) for name, config in configs.items()}
        odd = _odd(configs.values())
        if odd:
            written_down["odd"] = odd
        self._event("exploited", known.pop("time"), written_down, **known)

    # The life of a validation ------------------------------------------------------------------

    def requested(self, request: Request, at: float) -> None:
        """A checkpoint is to be validated."""
        known = {"run": request.run, "checkpoint": self._places.record(request.path)}
        self._event("requested", at, **self._of(request), **known)

    def started(self, attempt: Attempt, at: float) -> None:
        """An attempt was handed to Ray."""
        self._event("started", at, id=attempt.request.id, attempt=attempt.number)

    def began(self, attempt_id: str, at: float) -> None:
        """An attempt runs."""
        request_id, number = attempt_id.rsplit("#", 1)
        self._event("began", at, id=request_id, attempt=int(number))

    def ended(self, outcome: Outcome, at: float) -> None:
        """A validation ended for good."""
        self._event(
            "ended",
            at,
            id=outcome.request.id,
            status=outcome.status.value,
            metrics=dict(outcome.metrics),
            reason=outcome.reason,
            error=outcome.error,
            attempts=outcome.attempts,
            waited_s=round(outcome.waited_s, 4),
            ran_s=round(outcome.ran_s, 4),
        )

    def delivered(self, request: Request, decision: str, at: float) -> None:
        """The scheduler got a validated result, and decided."""
        self._event("delivered", at, **self._of(request), decision=decision)

    def decided(self, trial_id: str, decision: str, at: float) -> None:
        """The scheduler decided about a trial on another one's result."""
        self._event("decided", at, trial_id=trial_id, decision=decision)

    def reminded(
        self, trial_id: str, generation: int, iteration: int, decision: str, at: float
    ) -> None:
        """The scheduler got a result again that it has seen, and decided."""
        place = {"iteration": iteration, "generation": generation}
        self._event("reminded", at, trial_id=trial_id, **place, decision=decision)

    # What is kept ------------------------------------------------------------------------------

    def leased(self, holder: Any, path: str, at: float) -> None:
        """A checkpoint is kept for a holder, instead of what was kept for it."""
        self._event("leased", at, holder=holder, checkpoint=self._places.record(path))

    def released(self, holder: Any, at: float) -> None:
        """What was kept for a holder is not any more."""
        self._event("released", at, holder=holder)

    def snapshot(self, file: str, at: float) -> None:
        """The state of the sweep as of this line is in a file of the experiment's folder."""
        self._event("snapshot", at, file=file)

    def closed(self, at: float, *, finished: bool) -> None:
        """The session ends; ``finished``: all trials and validations have ended."""
        self._event("closed", at, finished=finished)

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

    @staticmethod
    def _of(request: Request) -> dict[str, Any]:
        return {
            "id": request.id,
            "trial_id": request.trial_id,
            "iteration": request.iteration,
            "generation": request.generation,
        }

    def _event(self, event: str, at: float, as_written: Any = None, /, **known: Any) -> None:
        if self.muted:
            return
        self.last += 1
        line = {"n": self.last, "event": event, "time": at, **known}
        self._append(line, as_written, later=event == "reported")

    def _append(
        self,
        line: Mapping[str, Any],
        as_written: Mapping[str, Any] | None = None,
        *,
        later: bool = False,
    ) -> None:
        self._folder.append(SERIES, f"{_encoded(line, as_written)}\n".encode(), later=later)


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


def _unknown_to_json(value: Any) -> Any:
    """A number of numpy's, which many reports have; the rest is written another way."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        found = value.item()
        if type(found) in (bool, int, float, str):
            return found
    raise TypeError


_encoder = json.JSONEncoder(default=_unknown_to_json)


def _opened(packed: str, shown: str) -> Any:
    try:
        return from_text(packed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever its parts raise: a module may be gone
        logger.warning("%s cannot be unpickled: %s", shown, text(error))
        return Shown(shown)


_read_shown, _read_opened = reader(), reader(_opened)
_read_legible = reader(lambda packed, shown: Shown(shown))


def legible(value: Any) -> Any:
    """A value as it is written down for readers: with a text for what JSON does not know.

    References to objects of a Ray cluster, for example, mean nothing to the next one.

    Example:
        >>> legible({"lr": 0.1, "sizes": (64, 32), "data": {1, 2}})
        {'lr': 0.1, 'sizes': [64, 32], 'data': {'shown': '{1, 2}'}}
    """
    return written(value, keys=False)


def _as_read(value: Any) -> Any:
    """A value as it is read of which :func:`legible` was written."""
    return json.loads(_encoder.encode(legible(value)), object_hook=_read_legible)


def as_known(recorded: Any, known: Sequence[Any], odd: Mapping[str, Any] | None = None) -> Any:
    """Return what the journal has, with the very values where it has but a text of them.

    Args:
        recorded: A configuration, or a part of one.
        known: What it may be: what has the same text, else what was written down, else the first.
        odd: What was written down of values, by their texts.
    """
    for other in known:
        if not isinstance(other, Shown) and same(_as_read(other), recorded):
            return other
    if isinstance(recorded, Mapping):
        return {
            name: as_known(
                value, [o[name] for o in known if isinstance(o, Mapping) and name in o], odd
            )
            for name, value in recorded.items()
        }
    parts = recorded if isinstance(recorded, list) else [recorded]
    texts = [part for part in parts if isinstance(part, Shown)]
    if not texts:
        return recorded
    if odd and all(part in odd for part in texts):
        found = [odd[part] if isinstance(part, Shown) else part for part in parts]
        return found if isinstance(recorded, list) else found[0]
    real = (other for other in known if not isinstance(other, Shown))
    return next(real, known[0] if known else recorded)


def _odd_parts(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a configuration that JSON does not know: their texts, and their pickles.

    References to objects of a Ray cluster mean nothing to the next one, and what is large is not
    for a line of a journal.
    """
    if isinstance(value, (Mapping, list, tuple)):
        if not any(value is other for other in above):
            for below in value.values() if isinstance(value, Mapping) else value:
                yield from _odd_parts(below, (*above, value))
        return
    shown = legible(value)
    packed = to_text_elsewhere(value, _LARGEST_ODD) if isinstance(shown, dict) else None
    if packed is not None:
        yield shown[SHOWN], {PICKLED: packed, **shown}


def _odd(configs: Iterable[Any]) -> dict[str, Any]:
    try:
        return {shown: packed for config in configs for shown, packed in _odd_parts(config)}
    except Exception:  # whatever their parts raise
        return {}


def last_number(folder: Folder) -> int:
    """The number of the newest line of a journal; 0 if there is none."""
    for name in reversed(_files(folder)):
        lines = _complete_lines(folder.read(f"{SERIES}/{name}"))
        if lines:
            line = _parsed(lines[-1], f"{SERIES}/{name}", len(lines), unpickle=False)
            return int(line.get("n", line.get("after", 0)))
    return 0


def read(
    source: Folder | str | Path,
    filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    unpickle: bool = False,
) -> list[dict[str, Any]]:
    """Return the events of an experiment's newest sweep, in order.

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
    return record_of(source, unpickle=unpickle).events


@dataclass
class Record:
    """What the journal has of an experiment's newest sweep.

    Attributes:
        sessions: The first line of each session: when, with which versions and settings.
        events: The other lines.
    """

    sessions: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def record_of(folder: Folder, *, unpickle: bool = False, without: Collection[str] = ()) -> Record:
    """Return what the journal in an experiment's folder has, as :func:`read` does.

    Args:
        folder: The folder.
        unpickle: As for :func:`read`.
        without: Events to leave out, unread: half of the lines can be of no interest.
    """
    skipped = tuple(f'"event": "{kind}"'.encode() for kind in without)
    record = Record()
    for file, lines in _series(folder):
        head = _parsed(lines[0], file, 1, unpickle=False)
        if not (record.sessions and "n" in head):  # a session may have had to begin another file
            _check(head, file)
            if head.get("begins"):
                record = Record()
            record.sessions.append(head)
        for number, line in enumerate(lines, start=1):
            if any(kind in line[:_FRONT] for kind in skipped):
                continue
            event = _parsed(line, file, number, unpickle=unpickle)
            if "event" in event:
                record.events.append(event)
    return record


def _series(folder: Folder) -> Iterator[tuple[str, list[bytes]]]:
    """The journal's files that have anything, in order: each one's name, and its lines."""
    for name in _files(folder):
        file = f"{SERIES}/{name}"
        lines = _complete_lines(folder.read(file))
        if lines:
            yield file, lines


def exploits_of(events: Iterable[Mapping[str, Any]], places: Places) -> list[Exploit]:
    """The exploits in a journal, with the paths of their checkpoints as they are now."""
    names = [field.name for field in fields(Exploit)]
    found = []
    for event in events:
        if event["event"] == "exploited":
            known = {name: event[name] for name in names}
            known["checkpoint"] = places.path(event["checkpoint"])
            found.append(Exploit(**known))
    return found


def _files(folder: Folder) -> list[str]:
    names = (name for name in folder.names(SERIES) if name.endswith(".jsonl"))
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


def _check(head: Mapping[str, Any], file: str) -> None:
    version = head.get("version")
    if head.get("journal") != "tunekit" or not isinstance(version, int):
        raise JournalError(
            f"{file} is no journal of tunekit's: its first line is {dict(head)!r}. Pass the folder "
            "of an experiment that tunekit has run, or put the file back as it was."
        )
    if version != VERSION:
        raise JournalError(
            f"{file} has version {version}; this tunekit reads version {VERSION}. Install the "
            f"{'newer' if version > VERSION else 'older'} tunekit that wrote it."
        )
