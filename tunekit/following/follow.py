"""Evaluate checkpoints that another program writes into a folder, as they appear."""

from __future__ import annotations

import logging
import math
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import exists, storage_at
from tunekit.clock import SystemClock
from tunekit.config import ValidationConfig
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    TrialAdded,
    TrialEnded,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.metrics import flatten
from tunekit.core.pace import Pace
from tunekit.core.pool import Pool
from tunekit.core.problems import Problems
from tunekit.core.signatures import ValidationFunction
from tunekit.core.validation import Outcome, Request, Status
from tunekit.core.values import number
from tunekit.following.folder import DOUBT_S, KEPT, Complete, Entry, WatchedFolder
from tunekit.following.loop import Source, is_there, validate_all
from tunekit.following.record import Recorder
from tunekit.following.steps import Followed, wrong_choices
from tunekit.journal.confined import local_path
from tunekit.journal.storage import keeps_objects
from tunekit.log import shown
from tunekit.results.event_file import EventFile
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Launch

logger = logging.getLogger(__name__)

# Seconds between two looks into a local folder and into another storage, and the largest share of
# the time that listing may take.
_LOCAL_S, _LISTED_S, _SHARE = 0.25, 5.0, 0.1


@shown()
def follow(
    folder: str | Path,
    fn: ValidationConfig | ValidationFunction,
    *,
    which: str = "all",
    until: int | str | Path | None = None,
    metric: str | None = None,
    mode: str | None = None,
    pattern: str | None = None,
    keep: bool = False,
    journal: str | Path | None = None,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    notify: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Evaluate the checkpoints that another program writes into a folder, each once.

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
        which: The checkpoints to evaluate. ``"all"``; ``"newest"``: the newest whenever an
            evaluator is free, skipping older ones; or ``"every=N"``: checkpoints at least N steps
            apart. The newest always comes first.
        until: When runs have ended: at a step, or when a file exists. A name, such as ``"done"``,
            is looked for in the folder, where it ends all runs, and in each run's folder; a path or
            URI, such as ``"./done"``, is relative to the current directory. A
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
        tunekit.errors.ValidationFailedError: If the first three evaluations have failed alike
            (unless ``on_failure="ignore"``).

    Example:
        >>> follow("/no/such/folder", lambda checkpoint: {"accuracy": 0.9}, which="some")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.follow: which='some' is not a choice...
    """
    config = fn if isinstance(fn, ValidationConfig) else ValidationConfig(fn)
    problems = Problems("tunekit.follow")
    if isinstance(until, Path):
        until = str(until)
    for wrong in wrong_choices(which, pattern, until):
        problems.add(wrong)
    if mode is not None:
        problems.choice("mode", mode, ["min", "max"])
    if (metric is None) != (mode is None):
        problems.add("metric and mode say which is the best. Pass both.")
    problems.raise_any()
    filesystem, path = storage_at(str(folder), storage_filesystem)
    own, home = storage_at(str(journal or folder), storage_filesystem)
    end = None
    if isinstance(until, str):
        end = _end_of(until, path, filesystem, storage_filesystem)
    source = _Watched(
        WatchedFolder(filesystem, path, pattern),
        Followed(which),
        config,
        until=until,
        end=end,
        keep=keep,
        board=local_path(own, home),
        notify=notify,
    )
    about: dict[str, Any] = {"followed": path}
    if metric is not None:
        about |= {"judged": [metric], "mode": mode, "objectives": {metric: mode}}
    otherwise = "Pass another folder for the journal: journal='...' (--journal)."
    recorder = Recorder(own, home, config, about, otherwise=otherwise)
    with recorder.held():
        before = recorder.continued("tunekit.follow")
        source.replay(before)
        if end is not None:
            here = "/" not in str(until)
            logger.info("Waiting for %s%s.", end[1], " or one in a run's folder" * here)
        validate_all(source, recorder, config, before, call="tunekit.follow")


def _end_of(
    until: str,
    folder: str,
    filesystem: pyarrow.fs.FileSystem,
    custom: pyarrow.fs.FileSystem | None,
) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the storage and the path of the file that ends all runs.

    Args:
        until: Its name or path, as for :func:`follow`.
        folder: The followed folder.
        filesystem: The folder's storage.
        custom: The storage of all paths, if it is a custom one.

    Raises:
        tunekit.errors.ConfigError: If it cannot appear because it would be in no folder.
    """
    if "/" not in until:
        return filesystem, f"{folder.rstrip('/')}/{until}"
    storage, path = storage_at(until, custom)
    parent, problems = posixpath.dirname(path), Problems("tunekit.follow")
    inside = storage.equals(filesystem) and f"{parent}/".startswith(f"{folder.rstrip('/')}/")
    if not (inside or keeps_objects(storage) or exists(storage, parent)):
        problems.add(
            f"until={until!r} is {path}, but there is no folder {parent}. Create it, or pass only "
            f"a name ({posixpath.basename(path)!r}), which is looked for in the followed folder "
            "and in each run's."
        )
    problems.raise_any()
    return storage, path


class _Watched(Source):
    """Supply the complete checkpoints of a folder, newest first, whenever there is room.

    Args:
        folder: The folder.
        state: Its state, as recorded.
        config: How checkpoints are evaluated.
        until: As for :func:`follow`.
        end: The storage and the path of the file that ends all runs, if there may be one.
        keep: Whether checkpoints are protected.
        board: The journal's local folder, for TensorBoard; None if it is not local.
        notify: Called with each outcome.
    """

    def __init__(
        self,
        folder: WatchedFolder,
        state: Followed,
        config: ValidationConfig,
        *,
        until: int | str | None = None,
        end: tuple[pyarrow.fs.FileSystem, str] | None = None,
        keep: bool = False,
        board: Path | None = None,
        notify: Callable[[Mapping[str, Any]], None] | None = None,
    ):
        super().__init__()
        self._folder, self._state, self._config = folder, state, config
        self._until, self._end, self._keep = until, end, keep
        self._board, self._notify, self._clock = board, notify, SystemClock()
        local = local_path(folder.filesystem, folder.path) is not None
        self._pace = Pace(_SHARE, _LOCAL_S if local else _LISTED_S)
        self._room, self._over, self._complained = True, False, False
        self._ended = False
        self._requested: dict[str, None] = {}
        self._entries: dict[str, dict[str, Entry]] = {}
        self._names: dict[str, set[str]] = {}
        # When each checkpoint's folder was written, as of its last check.
        self._checked: dict[str, float] = {}
        self._files: dict[str, EventFile] = {}
        self._paths: dict[str, str] = {}

    def replay(self, events: Sequence[Event]) -> None:
        """Apply the events of earlier sessions, and write them to TensorBoard again."""
        for event in events:
            self._state.apply(event)
            if isinstance(event, ValidationEnded) and event.metrics:
                self._draw(event)
        if self._keep:  # checkpoints that were protected when an earlier session was killed
            kept = {self._kept(seen.request) for seen in self._state.pending.values()}
            for path in self._folder.protected() - kept:
                self._folder.delete(path)

    # What to evaluate --------------------------------------------------------------------------

    def wanted(self) -> Sequence[Request]:
        """Return the next checkpoint if an evaluator is free for it."""
        self._look()
        request, passed = self._state.next(self._requested) if self._room else (None, [])
        if request is None:
            return ()
        for one in passed:
            self._skip(one, f"step {request.iteration} was newer when an evaluator was free")
        self._requested[request.id], self._room = None, False
        task, kept = self._config.task_config, self._kept(request)
        protected = self._keep and exists(self._folder.filesystem, kept)
        return [
            replace(
                request,
                checkpoint=self._folder.checkpoint(kept if protected else request.path),
                kwargs=task.fn_kwargs or {},
                timeout_s=task.timeout_s,
            )
        ]

    def over(self) -> bool:
        """Return whether all runs have ended, and none has checkpoints left to evaluate."""
        return self._over and not self._state.pending

    def start(self, pool: Pool, executor: Executor, now: float) -> Iterator[Launch]:
        """Yield the launches, as the base class does, and record whether there is room for more."""
        yield from super().start(pool, executor, now)
        flying, most = len(pool.in_flight()), self._config.most_in_flight
        free = executor.capacity(()) > 0 if most is None else flying < most
        self._room = not pool.waiting and (free or not flying)

    def _skip(self, request: Request, reason: str) -> None:
        self.emit(ValidationRequested.of(request))
        self.emit(ValidationEnded.of(Outcome(request, Status.SKIPPED, reason=reason)))

    # Looking into the folder -------------------------------------------------------------------

    def _look(self) -> None:
        """List the folder, and record what is new in it."""
        began = self._clock.monotonic()
        if not self._pace.due(began):
            return
        try:
            # Before the folder is listed: what it has then was saved before the end.
            self._ended = self._end is not None and exists(*self._end)
            self._entries, self._names = self._folder.look()
            self._pace.took(began, self._clock.monotonic())
            waits = self._check()
            self._pass_over_deleted()
            self._over = self._all_ended() and self._give_up(waits)
            self._complained = False
        except OSError as error:
            self._pace.took(began, self._clock.monotonic())
            if not self._complained:
                self._complained = True
                logger.warning("%s cannot be read now: %s", self._folder.path, error)

    def _check(self) -> list[tuple[str, Entry, str]]:
        """Record complete new checkpoints; return the entries that wait for something."""
        complete: list[tuple[str, Entry, Complete]] = []
        waits: list[tuple[str, Entry, str]] = []
        for run, entry in [
            (run, one) for run, own in self._entries.items() for one in own.values()
        ]:
            if not self._is_new(run, entry):
                continue
            self._checked[entry.path] = entry.written
            try:
                found = self._folder.check(entry, self._clock.monotonic())
            except OSError as error:
                found = f"it cannot be read: {error}"
            if isinstance(found, Complete):
                complete.append((run, entry, found))
            else:
                waits.append((run, entry, found))
        for run, entry, whole in sorted(complete, key=lambda one: one[2].step):
            self._see(run, entry, whole)
        return waits

    def _is_new(self, run: str, entry: Entry) -> bool:
        """Return whether an entry may be a checkpoint that was not seen yet."""
        if isinstance(self._until, int) and entry.step > self._until:
            return False
        seen = self._state.seen.get(run, {}).get(entry.name)
        return seen is None or (
            entry.written > seen.at - DOUBT_S and entry.written != self._checked.get(entry.path)
        )

    def _see(self, run: str, entry: Entry, found: Complete) -> None:
        """Record a complete checkpoint, unless it is already known."""
        step, there = found.step, self._names[run]
        events = self._state.saw(run, step, entry.path, found.report, found.mark, there=there)
        for event in events:
            if isinstance(event, CheckpointSaved) and self._keep and event.wish is None:
                kept = self._kept(self._state.request(run, found.step, entry.path))
                if not self._folder.protect(entry, kept):
                    return  # it is being deleted
        if events and run not in self._state.seen:
            self.emit(TrialAdded(trial_id=run, folder=self._folder.folder_of(run)))
        for event in events:
            self.emit(event)

    def _kept(self, request: Request) -> str:
        """Return the path at which a checkpoint is protected."""
        name = posixpath.basename(request.path)
        return f"{self._folder.path}/{KEPT}/{request.trial_id}.{request.run}/{name}"

    def _pass_over_deleted(self) -> None:
        for name, seen in list(self._state.pending.items()):
            there = self._names.get(seen.request.trial_id, ())
            if name in self._requested or seen.name in there:
                continue
            if not exists(self._folder.filesystem, self._kept(seen.request)):
                self._skip(seen.request, "its checkpoint was deleted before its evaluation began")

    def _all_ended(self) -> bool:
        """Return whether all runs have ended: by a file, a step, or their own record."""
        marked = {run for run, names in self._names.items() if self._until in names}
        runs = {run for run in self._names if self._entries[run] or run in self._state.seen}
        steps = self._until if isinstance(self._until, int) else math.inf
        past = {run for run, step in self._state.last.items() if step >= steps}
        return self._ended or (bool(runs) and runs <= marked | past | self._state.done)

    def _give_up(self, waits: Sequence[tuple[str, Entry, str]]) -> bool:
        """Skip checkpoints that will never be complete; return False if some may still be."""
        if not all(reason for _, _, reason in waits):
            return False
        for run, entry, reason in waits:
            if entry.path not in self._state.given_up:
                request = self._state.request(run, entry.step, entry.path)
                self._skip(request, f"it was not complete when its run ended: {reason}")
        for run in self._state.seen.keys() - self._state.ended:
            self.emit(TrialEnded(trial_id=run))
        return True

    # Outcomes ----------------------------------------------------------------------------------

    def take(self, outcome: Outcome) -> Outcome:
        """Return the outcome as skipped if its checkpoint was deleted or replaced meanwhile."""
        request, why = outcome.request, None
        seen = self._state.pending.get(request.id)
        path = request.checkpoint.path
        entry = self._entries.get(request.trial_id, {}).get(posixpath.basename(request.path))
        if outcome.status in (Status.FAILED, Status.TIMED_OUT):
            why = None if is_there(request) else "deleted"
        elif outcome.validated and seen is not None and entry is not None and path == entry.path:
            why = "replaced" if seen.is_another(self._folder.mark(entry)) else None
        if why is None:
            return outcome
        reason = f"its checkpoint was {why} while it was evaluated"
        return replace(outcome, status=Status.SKIPPED, metrics={}, reason=reason, error=None)

    def recorded(self, event: Event) -> None:
        """Act on an event that has been recorded."""
        if isinstance(event, ValidationRequested):
            self._paths[event.id] = event.checkpoint
        seen = self._state.pending.get(event.id) if isinstance(event, ValidationEnded) else None
        self._state.apply(event)
        if not isinstance(event, ValidationEnded):
            return
        self._requested.pop(event.id, None)
        if self._keep and seen is not None:
            self._folder.delete(self._kept(seen.request))
        if event.metrics:
            self._draw(event)
        if self._notify is not None:
            told = {name: getattr(event, name) for name in ("status", "metrics", "reason")}
            at = {"run": event.trial_id, "step": event.key.iteration}
            self._notify({**at, **told, "checkpoint": self._paths.pop(event.id)})

    def _draw(self, event: ValidationEnded) -> None:
        """Write a score to TensorBoard, at the step of its checkpoint."""
        if self._board is None:
            return
        run, known = event.trial_id, {"global_step": event.key.iteration, "walltime": event.time}
        if run not in self._files:  # write everything again: a kill may have left half of it
            folder, suffix = self._board / "tensorboard" / run, f".{time.time_ns()}"
            self._files[run] = EventFile(folder, suffix=suffix, purge_step=0)
        for name, value in flatten(event.metrics).items():
            if (found := number(value)) is not None:
                self._files[run].add_scalar(f"validation/{name}", found, **known)
        self._files[run].flush()
