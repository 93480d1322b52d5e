"""A folder of checkpoints written by any program: which exist, are complete, and are protected."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import pyarrow.fs

from tunekit.core.values import MOST
from tunekit.errors import UnsafeFileError
from tunekit.following.names import A_COPY, read_name
from tunekit.journal.journal import SERIES
from tunekit.journal.paths import infos_in
from tunekit.journal.safe_files import is_inside, local_path
from tunekit.journal.storage import folder_at
from tunekit.reading.later import LATER

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

_VERSION = re.compile(r"-v[0-9]+(?=\.|$)")  # Lightning's, if the name was taken
_SAME_STEP = "another one has the same step"
_FIX = "To choose names, pass a regular expression with a group for the step: pattern= (--pattern)"
# The most names in a folder that are logged.
_MOST_SAID = 5

_Kind = TypeVar("_Kind")

# A checkpoint's files: for each relative name, its size in bytes and when it was written.
Files = Mapping[str, tuple[int, float]]


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
    paths = [f"{name}/{file}" for file in files]
    return next((one for one in LAYOUTS if any(re.fullmatch(one.has, at) for at in paths)), None)


class TrainerState(msgspec.Struct):
    """What ``trainer_state.json`` says, as far as it is read."""

    global_step: int = 0
    max_steps: int = 0
    log_history: Sequence[Mapping[str, Any]] = ()

    def metrics(self) -> dict[str, Any]:
        """Return the training metrics at the checkpoint's step.

        The loss is the newest one, which may be from an earlier step. ``done``: the run has ended.

        Example:
            >>> log = [{"step": 5, "loss": 2.0, "epoch": 0.5}, {"step": 10, "eval_loss": 1.5}]
            >>> TrainerState(global_step=10, max_steps=10, log_history=log).metrics()
            {'loss': 2.0, 'eval_loss': 1.5, 'done': True}
        """
        step, found = self.global_step, {}
        for entry in self.log_history:
            own = entry if entry.get("step") == step else {"loss": entry.get("loss")}
            found.update({name: v for name, v in own.items() if name != "step" and v is not None})
        return {**found, "done": True} if step and step == self.max_steps else found


class _Result(msgspec.Struct):
    checkpoint_dir_name: str
    metrics: dict[str, Any]


class _Snapshot(msgspec.Struct):
    """What Ray Train's snapshot says, as far as it is read."""

    checkpoint_results: list[_Result] = []
    checkpoint_report_indices: list[Annotated[int, msgspec.Meta(ge=0, lt=MOST)]] = []


def pattern_problem(pattern: str) -> str | None:
    """Return why a pattern for the names of checkpoints is wrong; None if it is not.

    Example:
        >>> pattern_problem(r"step-(\\d+)"), pattern_problem("step")
        (None, 'has no group for the step')
    """
    try:
        re.fullmatch(pattern, "")
        return None if re.compile(pattern).groups else "has no group for the step"
    except (re.error, TypeError, OverflowError, RecursionError) as error:
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


#: When a checkpoint was completed, its training metrics, and the files by which it is recognized.
Complete: TypeAlias = tuple[float, Mapping[str, Any], Files]


class WatchedFolder:
    """A folder with checkpoints, or with one folder of them for each run.

    Args:
        filesystem: The storage.
        path: The folder there.
        pattern: As for :func:`read_name`.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str, pattern: str | None = None):
        self.filesystem, self.path = filesystem, path.rstrip("/")
        self.name = posixpath.basename(self.path)
        self._pattern = pattern
        self._resting: dict[str, tuple[Files, float]] = {}
        self._said: dict[tuple[str, str], set[str]] = {}

    def find(self) -> Iterator[FoundCheckpoint]:
        """Yield the entries named like checkpoints; of several with one step, only one.

        This lists the folder once, and each folder in it that is not a checkpoint.

        Raises:
            OSError: If the storage fails.
        """
        top = infos_in(self.filesystem, self.path)
        yield from self._entries(self.name, top)
        for info in sorted(top, key=lambda one: one.base_name):
            name = info.base_name
            is_run = info.type == pyarrow.fs.FileType.Directory and name not in _OWN
            step, reason = read_name(name, self._pattern)
            if is_run and name[0] not in "._" and step is None and reason != A_COPY:
                yield from self._entries(name, infos_in(self.filesystem, info.path))

    def _say(self, level: int, path: str, why: str) -> None:
        """Log, once for each path and a few times for each folder, what is not read, and why."""
        said = self._said.setdefault((posixpath.dirname(path), why), set())
        if path not in said and len(said) < _MOST_SAID:
            said.add(path)
            logger.log(level, "%s %s.", path, why)

    def _entries(self, run: str, infos: list[pyarrow.fs.FileInfo]) -> Iterator[FoundCheckpoint]:
        known, seen = {info.base_name: info for info in infos}, set()
        registered = self._registered(known.get(_SNAPSHOT))
        # Of several files with one step, the first: pix2pix's net_G, not its net_D.
        for name in sorted(sorted(known, reverse=True), key=len):
            info, (step, why) = known[name], read_name(name, self._pattern)
            step, report = registered.get(name, (step, None))
            is_folder = info.type == pyarrow.fs.FileType.Directory
            same = (step, "".join(_VERSION.findall(name)))
            if step is not None and same not in seen:
                seen.add(same)
                written = (info.mtime_ns or 0) / 1e9
                yield FoundCheckpoint(run, info.path, step, written, is_folder, report)
            elif same in seen or (why and (is_folder or "." in name)):
                level = logging.INFO if why in ("", A_COPY) else logging.WARNING
                self._say(level, info.path, f"is not evaluated: {why or _SAME_STEP}. {_FIX}")

    def _registered(
        self, info: pyarrow.fs.FileInfo | None
    ) -> dict[str, tuple[int, Mapping[str, Any]]]:
        """Return the steps and metrics of checkpoints that Ray Train has registered, by name."""
        known = (self._json(info.path, _Snapshot) if info is not None else None) or _Snapshot()
        pairs = zip(known.checkpoint_results, known.checkpoint_report_indices, strict=False)
        return {one.checkpoint_dir_name: (step + 1, one.metrics) for one, step in pairs}

    def _json(self, path: str, kind: type[_Kind]) -> _Kind | None:
        """Return the JSON in a file; None if it is incomplete, gone or something else."""
        folder, name = posixpath.split(path)
        try:
            return msgspec.convert(json.loads(folder_at(self.filesystem, folder).read(name)), kind)
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None  # it is being written, or was deleted
        except (OSError, ValueError, RecursionError) as error:
            self._say(logging.WARNING, path, f"was not read: {error}")
            return None

    # Whether a checkpoint is complete ----------------------------------------------------------

    def files(self, entry: FoundCheckpoint) -> Files:
        """Return the files of a checkpoint; empty if it is gone."""
        path, start = entry.path, len(entry.path) + 1
        found = self._below(path) if entry.is_folder else [self.filesystem.get_file_info(path)]
        files = (one for one in found if one.is_file)
        return {one.path[start:]: (one.size or 0, (one.mtime_ns or 0) / 1e9) for one in files}

    def _below(self, path: str) -> Iterator[pyarrow.fs.FileInfo]:
        """Yield what is below a folder; only one link to a folder is followed on the way there."""
        folders = [(path, False)]
        while folders:
            at, linked = folders.pop()
            local = local_path(self.filesystem, at)
            for info in infos_in(self.filesystem, at, recursive=local is None):
                yield info
                if local is not None and info.type == pyarrow.fs.FileType.Directory:
                    is_link = (local / info.base_name).is_symlink()
                    if not (linked and is_link):
                        folders.append((info.path, linked or is_link))

    def check(self, entry: FoundCheckpoint, files: Files, now: float) -> Complete | str:
        """Return the checkpoint if it is complete; otherwise, say what it is waiting for.

        Args:
            entry: The entry that was found.
            files: Its files.
            now: Seconds on a monotonic clock.

        Raises:
            OSError: If the storage fails.
        """
        if not files:
            return "it has no file"
        newest = max(written for _, written in files.values())
        if entry.report is not None:
            return newest, entry.report, files
        kind = layout_of(posixpath.basename(entry.path), files) if entry.is_folder else None
        if kind is None:
            whole = self._is_archive(entry) or self._rests(entry, files, now)
            return (newest, {}, files) if whole else ""
        state: TrainerState | None = TrainerState()
        if kind.last.endswith(".json") and kind.last in files:
            state = self._json(f"{entry.path}/{kind.last}", TrainerState)
        if kind.last not in files or state is None:
            return f"it has no whole {kind.last}, which {kind.framework} writes last"
        last = files[kind.last]  # while it is written again, the others change before this one
        return last[1], state.metrics(), {kind.last: last}

    def _is_archive(self, entry: FoundCheckpoint) -> bool:
        """Return whether this is a local zip archive, whose directory torch.save writes last."""
        local = None if entry.is_folder else local_path(self.filesystem, entry.path)
        try:
            return local is not None and zipfile.is_zipfile(local)
        except (zipfile.BadZipFile, ValueError, OverflowError):  # of a damaged one
            return False

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
        if not is_inside(self.filesystem, self.path, home):
            raise UnsafeFileError(f"{home!r} is behind a link out of the folder. Delete the link.")
        before = self.files(entry)
        self.delete(home)
        local = local_path(self.filesystem, entry.path)
        ends = [str(local_path(self.filesystem, at) or at) for at in (entry.path, home)]
        try:
            for name in before:
                source, target = (posixpath.join(at, name) if name else at for at in ends)
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
