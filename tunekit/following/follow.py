"""Evaluate checkpoints that another program writes into a folder, as they appear.

A followed folder is recorded like a sweep: a run is a trial, and the step of a checkpoint is its
iteration. A rewritten checkpoint is another run of that iteration. So all code that reads a sweep
can also read a followed folder.
"""

from __future__ import annotations

import logging
import math
import posixpath
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit._ray.file_checkpoints import checkpoint_at
from tunekit.config import ValidationConfig
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Reported,
    TrialAdded,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.metrics import ITERATION
from tunekit.core.signatures import ValidationFunction
from tunekit.core.timing import Pace
from tunekit.core.validation import Request, Status
from tunekit.core.values import encodable, finite_number
from tunekit.errors import ConfigError
from tunekit.following.folder import (
    DOUBT_S,
    KEPT,
    Files,
    FoundCheckpoint,
    WatchedFolder,
    pattern_problem,
)
from tunekit.following.loop import Source, validate_all
from tunekit.following.record import Recorder
from tunekit.journal.paths import check_path, exists
from tunekit.journal.safe_files import local_path
from tunekit.messages.log import showing_messages
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)

# Seconds between two listings of a local folder and into another storage, and the largest share of
# the time that listing may take.
_LOCAL_S, _LISTED_S, _SHARE = 0.25, 5.0, 0.1

# When a checkpoint was completed, in its report: Tune's own key, in seconds since the epoch.
_COMPLETED = "timestamp"


@showing_messages()
def follow(
    folder: str | Path,
    fn: ValidationConfig | ValidationFunction,
    *,
    until: int | str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    pattern: str | None = None,
    keep: bool = False,
    journal: str | Path | None = None,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    notify: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Evaluate the checkpoints that another program writes into a folder, the newest first.

    Training runs in another process or on another machine, unchanged. The folder is recorded like a
    sweep, with runs as trials and steps as iterations, so :func:`tunekit.load`,
    ``tunekit status``, ``best``, ``report`` and ``serve`` can read it. Evaluations run on Ray,
    which is started if necessary. This returns when all runs have ended, or on Ctrl-C or SIGTERM;
    to continue, call it again.

    Args:
        folder: The folder that checkpoints are written into, or one with a folder for each run: a
            path or a URI.
        fn: A validation function, called as ``fn(checkpoint)``, or a
            :class:`~tunekit.ValidationConfig` with its arguments, resources, evaluators and
            limits. Settings that concern training have no effect.
        until: When runs have ended: at a step, or when ``folder`` has a file of this name. A
            ``transformers.Trainer`` run also ends at its own last step.
        metric: The metric to rank by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        pattern: A regular expression for the names of checkpoints, whose first group is the step.
        keep: Whether to protect checkpoints from deletion until they are evaluated: by hard links
            in ``kept/``, or by copies where links are not supported.
        journal: The folder or URI of the journal. None: ``folder`` itself.
        storage_filesystem: The filesystem of ``folder`` and ``journal``, if it is a custom one.
        notify: Called with each outcome: ``run``, ``step``, ``status``, ``metrics``, ``reason``,
            ``checkpoint``.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong, if the folder belongs to a sweep, or if
            it has scores of another function.
        tunekit.errors.AlreadyRunningError: If another process follows the folder.
        tunekit.errors.ValidationFailedError: If the first three evaluations have failed for the
            same reason (unless ``on_failure="ignore"``), or the first with ``"raise"``.

    Example:
        >>> follow("/no/such/folder", lambda checkpoint: {"accuracy": 0.9}, until=-1)
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.follow: until=-1...
    """
    problems = Problems("tunekit.follow")
    try:
        config = fn if isinstance(fn, ValidationConfig) else ValidationConfig(fn)
    except ConfigError as error:
        for problem in error.problems:
            problems.add(problem)
    fix = "Pass a folder's path or URI."
    found = own = check_path(folder, storage_filesystem, problems, "folder", fix)
    if journal is not None:
        own = check_path(journal, storage_filesystem, problems, "journal", fix)
    if pattern is not None and (wrong := pattern_problem(pattern)) is not None:
        problems.add(f"pattern={pattern!r} {wrong}. Pass r'step-(\\d+)', for example.")
    if not isinstance(until, str) or not until:
        problems.integer("until", until, least=0, optional=True)
    if metric is not None or mode is not None:
        problems.instance("metric", metric, str, "Pass 'accuracy', for example.")
        problems.choice("mode", mode, ["min", "max"])
    if notify is not None:
        problems.function("notify", notify, "Pass a function of one argument, or None.")
    if problems.instance("keep", keep, bool, "Pass True or False.") and keep and found is not None:
        kept = local_path(found[0], f"{found[1]}/{KEPT}")
        if kept is not None and (kept.is_symlink() or (kept.exists() and not kept.is_dir())):
            problems.add(f"keep=True needs {str(kept)!r}, which is a link or a file. Delete it.")
    problems.raise_any()
    assert found is not None and own is not None  # otherwise an error was raised
    watched = WatchedFolder(*found, pattern)
    source = _Watched(watched, until=until, keep=keep, notify=notify)
    about: dict[str, Any] = {"followed": found[1]}
    if metric is not None:
        about |= {"required": [metric], "mode": mode, "objectives": {metric: mode}}
    otherwise = "Pass another folder for the journal: journal='...' (--journal)."
    recorder = Recorder(*own, config, about, call="tunekit.follow", otherwise=otherwise)
    validate_all(source, recorder, config)


class _Watched(Source):
    """Supply the complete checkpoints of a folder, newest first, whenever there is room.

    Args:
        folder: The folder.
        until: As for :func:`follow`.
        keep: Whether checkpoints are protected.
        notify: Called with each outcome.
    """

    def __init__(
        self,
        folder: WatchedFolder,
        *,
        until: int | str | None = None,
        keep: bool = False,
        notify: Callable[[Mapping[str, Any]], None] | None = None,
    ):
        self._folder, self._state = folder, Followed()
        self._until, self._keep, self._notify = until, keep, notify
        self._last = until if isinstance(until, int) else math.inf
        self._is_local = local_path(folder.filesystem, folder.path) is not None
        self._pace = Pace(_SHARE, _LOCAL_S if self._is_local else _LISTED_S)
        self._over = self._complained = False
        self._requested: set[str] = set()

    # What to evaluate --------------------------------------------------------------------------

    def resume(self, before: Sequence[Event]) -> bool:
        """Apply the events of earlier sessions that count."""
        for event in before:
            self._state.apply(event)
        return True

    def new_requests(self) -> Sequence[Request]:
        """Return the next checkpoint if an evaluator is free for it."""
        self._list()
        request = self._state.next(self._requested) if self.has_room() else None
        if request is None:
            return ()
        self._requested.add(request.id)
        path = self._kept(request) if self._is_kept(request) else request.path
        return [replace(request, checkpoint=checkpoint_at(path, self._folder.filesystem))]

    def over(self) -> bool:
        """Return whether all runs have ended, and none has checkpoints left to evaluate."""
        return self._over and not self._state.pending

    def recorded(self, event: Event) -> None:
        """Act on an event that has been recorded."""
        seen = self._state.pending.get(event.id) if isinstance(event, ValidationEnded) else None
        self._state.apply(event)
        if seen is None or not isinstance(event, ValidationEnded):
            return
        self._requested.discard(event.id)
        if self._keep:
            self._folder.delete(self._kept(seen.request))
        if self._notify is not None:
            outcome = {name: getattr(event, name) for name in ("status", "metrics", "reason")}
            at = {"run": event.trial_id, "step": event.key.iteration}
            self._notify({**at, **outcome, "checkpoint": seen.request.path})

    # Looking into the folder -------------------------------------------------------------------

    def _list(self) -> None:
        """List the folder, and record what is new."""
        began = time.monotonic()
        if not self._pace.is_ready(began):
            return
        try:
            # Before the folder is listed: what it then contains was saved before the end.
            ended = isinstance(self._until, str) and exists(
                self._folder.filesystem, f"{self._folder.path}/{self._until}"
            )
            entries = list(self._folder.find())
            waits = self._check(entries)
            self._pass_over_deleted({entry.path for entry in entries})
            ended = ended or self._all_ended({entry.run for entry in entries})
            self._over = ended and self._give_up(waits)
            self._complained = False
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.warning("%s cannot be read now: %s", self._folder.path, error)
        self._pace.ran(began, time.monotonic())

    def _check(self, entries: Sequence[FoundCheckpoint]) -> dict[str, str]:
        """Record new checkpoints that are complete; return what the others wait for, by path."""
        waits = {}
        for entry in sorted(entries, key=lambda one: (one.step, -one.written)):
            checked = self._state.checked.get(entry.path, -math.inf)
            # To look into each folder would take a request for each.
            known = not self._is_local and entry.written <= checked - DOUBT_S
            if entry.step > self._last or known:
                continue
            try:
                files = self._folder.files(entry)
                if self._state.knows(entry.run, entry.step, files):
                    continue
                found = self._folder.check(entry, files, time.monotonic())
            except OSError as error:
                found = f"it cannot be read: {error}"
            if isinstance(found, str):
                waits[entry.path] = found
            else:
                self._record(entry, *found)
        return waits

    def _record(
        self, entry: FoundCheckpoint, mark: float, report: Mapping[str, Any], files: Files
    ) -> None:
        """Record a complete checkpoint, unless it is already known."""
        run, now = entry.run, time.time()
        events = self._state.saw(run, entry.step, entry.path, report, mark, files)
        if events is not None:
            kept = self._kept(request_of(events[1]))
            if self._keep and not self._folder.protect(entry, kept):
                return  # it is being deleted
            if run not in self._state.last:
                folder = "" if run == self._folder.name else run
                self.emit(TrialAdded(trial_id=run, folder=folder))
            for event in events:
                self.emit(event)
        self._state.checked[entry.path] = now

    def _kept(self, request: Request) -> str:
        """Return the path at which a checkpoint is protected."""
        name = posixpath.basename(request.path)
        return f"{self._folder.path}/{KEPT}/{request.trial_id}.{request.run}/{name}"

    def _is_kept(self, request: Request) -> bool:
        return self._keep and exists(self._folder.filesystem, self._kept(request))

    def _pass_over_deleted(self, there: Collection[str]) -> None:
        for name, seen in list(self._state.pending.items()):
            known = name in self._requested or seen.request.path in there
            if not known and not self._is_kept(seen.request):
                reason = "its checkpoint was deleted or replaced before its evaluation began"
                self.emit(ValidationRequested.of(seen.request.key, seen.request.path))
                status = Status.SKIPPED.value
                self.emit(ValidationEnded(id=name, status=status, reason=reason))

    def _all_ended(self, runs: Collection[str]) -> bool:
        """Return whether all runs have ended: by a step, or by their own record."""
        known = {*runs, *self._state.last}
        past = {run for run, step in self._state.last.items() if step >= self._last}
        return bool(known) and known <= past | self._state.done

    def _give_up(self, waits: Mapping[str, str]) -> bool:
        """Give up on checkpoints that will never be complete; return False if some still may be."""
        if not all(waits.values()):
            return False
        for path, reason in waits.items() if not self._over else ():
            logger.warning("%s was not complete when its run ended: %s.", path, reason)
        for run in self._state.last.keys() - self._state.ended:
            self.emit(TrialEnded(trial_id=run))
        return True


@dataclass(frozen=True)
class Seen:
    """A complete checkpoint that was seen.

    Attributes:
        request: The request to evaluate it.
        mark: When it was completed, in seconds since the epoch.
        files: The files by which it is recognized, as the journal has them.
    """

    request: Request
    mark: float
    files: Mapping[str, Any]


class Followed:
    """Track the state of a followed folder, from the events of its journal.

    Example:
        >>> followed = Followed()
        >>> for step in (5, 10):
        ...     files = {"model.safetensors": (8, float(step))}
        ...     path = f"/run/checkpoint-{step}"
        ...     for event in followed.saw("run", step, path, {}, mark=step, files=files):
        ...         followed.apply(event)
        >>> followed.next(requested=()).id, followed.next(requested=["run:0:10:1"]).id
        ('run:0:10:1', 'run:0:5:1')
    """

    def __init__(self) -> None:
        #: When each checkpoint was found to be complete, in seconds since the epoch, by path.
        self.checked: dict[str, float] = {}
        #: Checkpoints whose evaluation has not ended, by the IDs of the validations.
        self.pending: dict[str, Seen] = {}
        #: The largest step of each run.
        self.last: dict[str, int] = {}
        #: The runs whose training has ended, and the runs for which that is recorded.
        self.done: set[str] = set()
        self.ended: set[str] = set()
        # The newest checkpoint by run and step, and when the one reported last was completed.
        self._seen: dict[tuple[str, int], Seen] = {}
        self._mark = 0.0

    def apply(self, event: Event) -> None:
        """Apply an event of the journal, starting with the events of earlier sessions."""
        match event:
            case Reported():
                self._reported(event.trial_id, event.report)
            case CheckpointSaved():
                request = request_of(event)
                seen = Seen(request, self._mark, event.files)
                self._seen[request.trial_id, request.iteration] = seen
                self.pending[request.id] = seen
                self.checked[request.path] = event.time
            case ValidationEnded():
                self.pending.pop(event.id, None)
            case TrialEnded():
                self.ended.add(event.trial_id)

    def _reported(self, run: str, report: Mapping[str, Any]) -> None:
        self.ended.discard(run)
        self._mark = finite_number(report.get(_COMPLETED)) or 0.0
        if report[ITERATION] >= self.last.get(run, 0):  # steps may be seen out of order
            self.last[run] = report[ITERATION]
            (self.done.add if report.get("done") else self.done.discard)(run)

    def knows(self, run: str, step: int, files: Files) -> bool:
        """Return whether a checkpoint was seen, and no file of then was changed since.

        Others may have been added, by its evaluation, for example, or deleted.
        """
        known, now = self._seen.get((run, step)), _recorded(files)
        return known is not None and all(
            now.get(name, then) == then for name, then in known.files.items()
        )

    def saw(
        self,
        run: str,
        step: int,
        path: str,
        report: Mapping[str, Any],
        mark: float,
        files: Files,
    ) -> tuple[Reported, CheckpointSaved] | None:
        """Return the events for a complete checkpoint; None if it is already known.

        Args:
            run: The run that it belongs to.
            step: Its step.
            path: Its path.
            report: Its training metrics.
            mark: When it was completed.
            files: The files by which it is recognized.
        """
        if self.knows(run, step, files):
            return None
        known = self._seen.get((run, step))
        request = Request(run, step, 1 if known is None else known.request.run + 1, path=path)
        row = {**report, _COMPLETED: mark, ITERATION: step}
        saved = CheckpointSaved.of(request.key, request.path, files=_recorded(files))
        return Reported(trial_id=run, report=row), saved

    def next(self, requested: Collection[str]) -> Request | None:
        """Return the request for the newest queued checkpoint; None if there is none.

        Args:
            requested: The IDs of requests that the evaluators already have.
        """
        found = [seen for name, seen in self.pending.items() if name not in requested]
        if not found:
            return None
        return max(found, key=lambda one: (one.mark, one.request.iteration)).request


def _recorded(files: Files) -> Mapping[str, Any]:
    """Return files as the journal has them."""
    return {encodable(name): list(known) for name, known in files.items()}


def request_of(event: CheckpointSaved) -> Request:
    """Return the request to evaluate a recorded checkpoint."""
    return Request(event.trial_id, event.iteration, event.run, path=event.checkpoint)
