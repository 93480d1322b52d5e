"""A folder of checkpoints written by any program: which exist, are complete, and are protected."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow.fs

from tunekit.following.record import LATER
from tunekit.journal.journal import SERIES
from tunekit.journal.safe_files import is_inside, local_path

logger = logging.getLogger(__name__)

#: The subfolder of the journal's folder for checkpoints protected until they are evaluated.
KEPT = "kept"

#: Seconds without a change after which a checkpoint counts as complete if no file marks it as such.
REST_S = 30.0

#: A checkpoint written less than this many seconds before it was seen may have changed since: the
#: times of file systems are coarse.
DOUBT_S = 2.0

# The files and folders that tunekit itself writes into the folder.
_OWN = frozenset({SERIES, LATER, KEPT})

# ray/train/v2/_internal/constants.py: the checkpoints that Ray Train has registered, each after all
# workers have uploaded their parts of it (checkpoint_manager.py, _write_state_to_storage).
_SNAPSHOT = "checkpoint_manager_snapshot.json"


# What the number in a checkpoint's name counts; a step counts more than an epoch.
_STEP = "step|iter|iteration|update|round|ba"
_EPOCH = "epoch|ep"
_CHECKPOINT = {"checkpoint", "ckpt", "snapshot"}
_WORDS = _CHECKPOINT | {"model", "weights", "params", "state", "states", "global", "best"}
_SUFFIXES = "ckpt|pt|pth|bin|safetensors|pkl|npz|msgpack|weights|keras|h5|hdf5|ubj|zip|tar"

_SUFFIX = re.compile(rf"(?:\.(?:{_SUFFIXES}))+$")
_OTHER_SUFFIX = re.compile(rf"\.(?!(?:{_STEP}|{_EPOCH})s?\d)[a-z][a-z0-9]*$")
_NUMBER = r"(?<!\d)(?<!\d\.)\d+(?!\.?\d)"  # no decimal: that is a score
_SCORE = re.compile(
    rf"(?<![a-z])(?:[a-z]+[-_])*(?!(?:{_STEP}|{_EPOCH})s?=)[a-z]+\d*=[-+]?[\d.]+(?:e[-+]?\d+)?"
)
_NAMED = [
    re.compile(one)
    for key in (_STEP, _EPOCH)
    for one in (
        rf"(?<![a-z])(?:{key})s?[-_=.]?({_NUMBER})",
        rf"({_NUMBER})[-_]?(?:{key})s?(?![a-z])",
    )
]
# What lies alongside checkpoints: unfinished ones, and parts of one.
_BESIDE = re.compile(
    r"(?<![a-z])(?:optim|optimizer|rng|scheduler|replay|buffer|vecnormalize|tmp|of)(?![a-z])"
)
_KEY = re.compile(rf"(?:{_STEP}|{_EPOCH})s?")

# A checkpoint's files: for each relative name, its size in bytes and when it was written.
Files = Mapping[str, tuple[int, float]]


@lru_cache(maxsize=65536)  # a folder is listed repeatedly
def step_in(name: str, pattern: str | None = None) -> int | None:
    """Return the step in a checkpoint's name; None if it is not named like a checkpoint.

    The number next to "step", "iter" or the like is the step, otherwise the number next to "epoch";
    without such a word, the only number, or the second of two (epoch and step). Scores, which are
    decimals or follow a name and "=", do not count. Other words are allowed in a name only if it
    says what its number counts, and if it names a weights file or says that it is a checkpoint.

    Args:
        name: The name of a file or a folder.
        pattern: A regular expression for the whole name, whose first group is the step. None: the
            names that known frameworks use.

    Example:
        >>> names = ["checkpoint-500", "a_20_steps.zip", "epoch=3-step=400.ckpt", "7", "model.bin"]
        >>> [step_in(name) for name in names]
        [500, 20, 400, 7, None]
        >>> step_in("tmp-checkpoint-500"), step_in("run7-final", r"run(\\d+)-final")
        (None, 7)
    """
    if pattern is not None:
        found = re.fullmatch(pattern, name)
        return None if found is None else int(found[1])
    name = name.lower()
    stem = _SUFFIX.sub("", name)
    is_file = stem != name
    if stem[:1] in (".", "_") or _OTHER_SUFFIX.search(stem) or _BESIDE.search(stem):
        return None
    stem = _SCORE.sub("", stem)
    words = set(re.findall(r"[a-z]+", stem))
    others = {word for word in words - _WORDS if not _KEY.fullmatch(word)}
    for named in _NAMED:
        if (found := named.search(stem)) is not None:
            return int(found[1]) if not others or is_file or words & _CHECKPOINT else None
    numbers = [int(one) for one in re.findall(_NUMBER, stem)]
    one = len(numbers) == 1 or (len(numbers) == 2 and words and numbers[0] <= numbers[1])
    return numbers[-1] if one and not others else None


@dataclass(frozen=True)
class Layout:
    """Describe how a framework writes a checkpoint.

    Attributes:
        framework: The framework's name.
        last: The file that it writes last.
        has: A regular expression for the name of the checkpoint and of a file in it that only this
            kind has, joined with ``/``.
    """

    framework: str
    last: str
    has: str


#: The files that complete a folder, from the frameworks' own sources. The first kind that matches
#: counts. Folders of unknown kinds are complete once they have not changed for a while.
LAYOUTS = (
    # transformers/trainer.py, Trainer._save_checkpoint: the model, optimizer, scheduler and random
    # state; then TrainerState.save_to_json(TRAINER_STATE_NAME), which writes in place.
    Layout("transformers", "trainer_state.json", r"checkpoint-\d+/.*"),
    # torch/distributed/checkpoint/filesystem.py, _FileSystemWriter.finish: renames .metadata.tmp to
    # .metadata after all ranks have written their .distcp.
    Layout("torch.distributed.checkpoint", ".metadata", r".*\.distcp"),
    # orbax/checkpoint/_src/path/atomicity.py: both AtomicRenameTemporaryPath.finalize, which then
    # renames N.orbax-checkpoint-tmp to N, and CommitFileTemporaryPath.finalize write it last.
    Layout("orbax", "commit_success.txt", r"[^/]*/(_CHECKPOINT_METADATA|commit_success\.txt)"),
)


def layout_of(name: str, files: Collection[str]) -> Layout | None:
    """Return the kind of a folder; None if it matches no known framework.

    Args:
        name: The folder's name.
        files: The names of the files in it.

    Example:
        >>> layout_of("checkpoint-5", ["model.safetensors"]).last
        'trainer_state.json'
        >>> layout_of("step-5", ["__0_0.distcp"]).last, layout_of("step_5", ["w.bin"])
        ('.metadata', None)
    """
    for kind in LAYOUTS:
        if any(re.fullmatch(kind.has, f"{name}/{file}") for file in files):
            return kind
    return None


def trainer_metrics(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training metrics in ``trainer_state.json`` at its checkpoint's step.

    The loss is the newest one, which may be from an earlier step. ``done``: the run has ended.

    Example:
        >>> log = [{"step": 5, "loss": 2.0, "epoch": 0.5}, {"step": 10, "eval_loss": 1.5}]
        >>> trainer_metrics({"global_step": 10, "max_steps": 10, "log_history": log})
        {'loss': 2.0, 'eval_loss': 1.5, 'done': True}
    """
    step, found = state.get("global_step"), {}
    for entry in state.get("log_history") or ():
        own = entry if entry.get("step") == step else {"loss": entry.get("loss")}
        found.update({name: v for name, v in own.items() if name != "step" and v is not None})
    return {**found, "done": True} if step and step == state.get("max_steps") else found


def pattern_problem(pattern: str) -> str | None:
    """Return why a pattern for the names of checkpoints is wrong; None if it is not.

    Example:
        >>> pattern_problem(r"step-(\\d+)"), pattern_problem("step")
        (None, 'has no group for the step')
    """
    try:
        return None if re.compile(pattern).groups else "has no group for the step"
    except re.error as error:
        return f"is not a regular expression: {error}"


@dataclass(frozen=True)
class FoundCheckpoint:
    """A file or folder that is named like a checkpoint.

    Attributes:
        run: The run that it belongs to.
        path: Its path.
        step: The step in its name.
        written: When the file, or the folder itself, was written, in seconds since the epoch; 0 if
            the storage does not record it.
        is_folder: Whether it is a folder.
        report: Its training metrics, if known; it is complete then.
    """

    run: str
    path: str
    step: int
    written: float
    is_folder: bool
    report: Mapping[str, Any] | None = field(default=None, compare=False)


#: When a checkpoint was completed, and its training metrics.
Complete: TypeAlias = tuple[float, Mapping[str, Any]]


class WatchedFolder:
    """A folder with checkpoints, or with one folder of them for each run.

    Args:
        filesystem: The storage.
        path: The folder there.
        pattern: As for :func:`step_in`.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str, pattern: str | None = None):
        self.filesystem, self.path = filesystem, path.rstrip("/")
        self.name = posixpath.basename(self.path)
        self._pattern = pattern
        self._resting: dict[str, tuple[Files, float]] = {}

    def find(self) -> Iterator[FoundCheckpoint]:
        """Yield the entries named like checkpoints.

        This lists the folder once, and each folder in it that is not a checkpoint.

        Raises:
            OSError: If the storage fails.
        """
        top = self._inside(self.path)
        yield from self._entries(self.name, top)
        for info in sorted(top, key=lambda one: one.base_name):
            name = info.base_name
            is_run = info.type == pyarrow.fs.FileType.Directory and name not in _OWN
            if is_run and name[0] not in "._" and self._step(name) is None:
                yield from self._entries(name, self._inside(info.path))

    def _inside(self, path: str) -> list[pyarrow.fs.FileInfo]:
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
        return list(self.filesystem.get_file_info(selector))

    def _step(self, name: str) -> int | None:
        return step_in(name, self._pattern)

    def _entries(self, run: str, infos: list[pyarrow.fs.FileInfo]) -> Iterator[FoundCheckpoint]:
        known = {info.base_name: info for info in infos}
        registered = self._registered(known.get(_SNAPSHOT))
        for name, info in known.items():
            step, report = registered.get(name, (self._step(name), None))
            if step is not None:
                is_folder = info.type == pyarrow.fs.FileType.Directory
                written = (info.mtime_ns or 0) / 1e9
                yield FoundCheckpoint(run, info.path, step, written, is_folder, report)

    def _registered(
        self, info: pyarrow.fs.FileInfo | None
    ) -> dict[str, tuple[int, Mapping[str, Any]]]:
        """Return the steps and metrics of checkpoints that Ray Train has registered, by name."""
        if info is None:
            return {}
        state = self._json(info.path) or {}
        results, steps = state.get("checkpoint_results", []), "checkpoint_report_indices"
        return {
            one["checkpoint_dir_name"]: (step + 1, one["metrics"])
            for one, step in zip(results, state.get(steps, []), strict=False)
        }

    def _json(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object in a file; None if the file is incomplete or gone."""
        try:
            with self.filesystem.open_input_stream(path) as stream:
                return dict(json.loads(stream.readall()))
        except (OSError, TypeError, ValueError):
            return None

    # Whether a checkpoint is complete ----------------------------------------------------------

    def files(self, entry: FoundCheckpoint) -> Files:
        """Return the files of a checkpoint; empty if it is gone."""
        if entry.is_folder:
            selector = pyarrow.fs.FileSelector(entry.path, recursive=True, allow_not_found=True)
            infos = [one for one in self.filesystem.get_file_info(selector) if one.is_file]
        else:
            infos = [one for one in [self.filesystem.get_file_info(entry.path)] if one.is_file]
        start = len(entry.path) + 1
        return {one.path[start:]: (one.size, (one.mtime_ns or 0) / 1e9) for one in infos}

    def check(self, entry: FoundCheckpoint, now: float) -> Complete | str:
        """Return the checkpoint if it is complete; otherwise, say what it is waiting for.

        Args:
            entry: The entry that was found.
            now: Seconds on a monotonic clock.

        Raises:
            OSError: If the storage fails.
        """
        files = self.files(entry)
        if not files:
            return "it has no file"
        oldest = min(written for _, written in files.values())  # others may be added later
        if entry.report is not None:
            return oldest, entry.report
        kind = layout_of(posixpath.basename(entry.path), files) if entry.is_folder else None
        if kind is None:
            whole = self._is_archive(entry) or self._rests(entry, files, now)
            return (oldest, {}) if whole else ""
        state = self._json(f"{entry.path}/{kind.last}") if kind.last.endswith(".json") else {}
        if kind.last not in files or state is None:
            return f"it has no whole {kind.last}, which {kind.framework} writes last"
        return files[kind.last][1], trainer_metrics(state)

    def _is_archive(self, entry: FoundCheckpoint) -> bool:
        """Return whether this is a local zip archive, whose directory torch.save writes last."""
        local = local_path(self.filesystem, entry.path)
        return local is not None and zipfile.is_zipfile(local)

    def _rests(self, entry: FoundCheckpoint, files: Files, now: float) -> bool:
        """Return whether a checkpoint's files and their sizes have not changed for long enough."""
        known, since = self._resting.get(entry.path, (files, now))
        self._resting[entry.path] = files, since if known == files else now
        return now - self._resting[entry.path][1] >= REST_S

    # Protecting and deleting -------------------------------------------------------------------

    def protect(self, entry: FoundCheckpoint, home: str) -> bool:
        """Protect a checkpoint at another path; return False if it was deleted in the meantime.

        In a local folder, this makes hard links, which take no space until the checkpoint is
        deleted; across file systems, and in an object store, it makes copies.

        Args:
            entry: The checkpoint.
            home: The path to protect it at, in the same storage.
        """
        before = self.files(entry)
        self.delete(home)
        local = local_path(self.filesystem, entry.path)
        try:
            for name in before:
                source, target = (
                    posixpath.join(at, name) if name else at for at in (entry.path, home)
                )
                if local is None:
                    self.filesystem.copy_file(source, target)
                else:
                    os.makedirs(posixpath.dirname(target), exist_ok=True)
                    _link(source, target)
        except FileNotFoundError:
            before = {}
        if before and self.files(entry) == before:
            return True
        self.delete(home)
        return False

    def delete(self, path: str) -> None:
        """Delete a protected checkpoint, if it exists in the folder."""
        info = self.filesystem.get_file_info(path)
        if not is_inside(self.filesystem, self.path, path):
            return
        if info.is_file:
            self.filesystem.delete_file(path)
        elif info.type == pyarrow.fs.FileType.Directory:
            self.filesystem.delete_dir(path)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links; or the source is gone
        shutil.copy2(source, target)
