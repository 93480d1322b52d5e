"""Which sweeps are in a folder; and what a folder is that is no sweep's, and which are near."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow.fs

from tunekit._ray.controller import STATE_FILES
from tunekit._ray.storage import TUNER_FILE
from tunekit.journal.confined import local_path

__all__ = ["Found", "no_sweep", "sweeps_below"]

#: The folder that a sweep with validation has (see tunekit.journal.lines).
JOURNAL = "journal"

# So many folders are looked into, so many levels deep, and so many sweeps are named.
_MOST_FOLDERS, _DEPTH, _MOST_NAMED = 300, 2, 10
# So many folders are looked into for all sweeps below one, so many levels deep.
_MOST_LISTED, _DEEPEST = 5_000, 4
_OF_A_TRIAL = ("params.json", "params.pkl", "result.json", "progress.csv", "error.txt")


@dataclass(frozen=True)
class Found:
    """A sweep that was found in a folder.

    Attributes:
        path: Its folder, in the filesystem.
        changed: When its journal was written last, in seconds since the epoch; 0 if the storage
            does not say.
    """

    path: str
    changed: float


def sweeps_below(filesystem: pyarrow.fs.FileSystem, path: str) -> list[Found]:
    """Return the sweeps in a folder, and in folders below it, the newest first.

    The folders of a sweep's trials are not looked into, nor are those of a plain experiment of
    Tune's, nor any whose name begins with a dot. Links are not followed, as they may lead anywhere;
    the folder itself may be one. It looks four levels deep, and into 5,000 folders at most, the
    upper ones first.

    Args:
        filesystem: Where to look.
        path: The folder in it; none are found if it does not exist.

    Raises:
        OSError: If the storage fails. Folders that may not be read are left out.

    Example:
        >>> sweeps_below(pyarrow.fs.LocalFileSystem(), "/no/such/folder")
        []
    """
    found: list[Found] = []
    level, looked = [path.rstrip("/") or path], 0
    for _ in range(_DEEPEST + 1):
        below: list[str] = []
        for folder in level:
            if looked >= _MOST_LISTED:
                break
            looked += 1
            inside = _inside(filesystem, folder)
            folders = [info.base_name for info in inside if _is_folder(filesystem, info)]
            changed = _changed(filesystem, folder) if JOURNAL in folders else None
            if changed is not None:
                found.append(Found(folder, changed))
            elif not _is_tunes(info.base_name for info in inside):
                named = (name for name in sorted(folders) if not name.startswith("."))
                below += [f"{folder.rstrip('/')}/{name}" for name in named]
        level = below
    return sorted(found, key=lambda one: (-one.changed, one.path))


def _is_folder(filesystem: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo) -> bool:
    """Return whether something is a folder, and not a link to one."""
    local = local_path(filesystem, info.path)
    is_link = local is not None and local.is_symlink()
    return bool(info.type == pyarrow.fs.FileType.Directory and not is_link)


def _is_tunes(names: Iterable[str]) -> bool:
    """Return whether a folder in which there are such names is an experiment's, or a trial's."""
    return any(
        name == TUNER_FILE or name in _OF_A_TRIAL or name.startswith(STATE_FILES) for name in names
    )


def _changed(filesystem: pyarrow.fs.FileSystem, folder: str) -> float | None:
    """Return when a sweep's journal was written last; None if the folder is no sweep's."""
    files = _inside(filesystem, f"{folder}/{JOURNAL}")
    times = [info.mtime_ns or 0 for info in files if info.base_name.endswith(".jsonl")]
    return max(times) / 1e9 if times else None


def _inside(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[pyarrow.fs.FileInfo]:
    try:
        selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
        return list(filesystem.get_file_info(selector))
    except PermissionError:  # not ours to read
        return []


def no_sweep(filesystem: pyarrow.fs.FileSystem, path: str, given: str = "") -> str:
    """Say what is at a path that is no sweep's, and what to pass instead, after "path=...".

    Args:
        filesystem: Where to look.
        path: The path in it.
        given: What the user has passed for it: a path, or a URI.

    Raises:
        OSError: If the storage fails.
    """
    path = path.rstrip("/")
    given = given.rstrip("/")
    scheme = given[: -len(path)] if path and given.endswith(path) else ""
    kind = filesystem.get_file_info(path).type
    parent = posixpath.dirname(path)
    if kind == pyarrow.fs.FileType.NotFound:
        return f"does not exist. {_beside(filesystem, path, scheme)}"
    around = next((folder for folder in _above(parent) if _is_sweep(filesystem, folder)), None)
    if _is_sweep(filesystem, path):
        return f"has a folder {JOURNAL!r}, so it is a sweep that lacks a file. Put that back."
    names = _names(filesystem, path)
    of_a_trial = bool(set(names) & set(_OF_A_TRIAL))
    if around is not None:
        what = "the folder of a trial" if of_a_trial else "a part"
        what = "a file" if kind == pyarrow.fs.FileType.File else what
        return f"is {what} of a sweep, not the sweep's own folder. Pass {scheme + around!r}."
    if kind == pyarrow.fs.FileType.File:
        return f"is a file. {_PASS}"
    if TUNER_FILE in names or any(name.startswith(STATE_FILES) for name in names):
        return (
            f"has no folder {JOURNAL!r}: it is an experiment of Ray Tune's that was run without "
            "validation, or ended before its first trial began. ray.tune.Tuner.restore(path, "
            "trainable).get_results() reads such a one."
        )
    below = [folder for folder in _below(filesystem, path) if _is_sweep(filesystem, folder)]
    if below:
        count = "is a sweep" if len(below) == 1 else f"are {len(below)} sweeps"
        return (
            f"has no folder {JOURNAL!r}: it is no sweep, and there {count} below it. Pass "
            f"{_named(below, scheme)}."
        )
    if of_a_trial:
        return (
            f"has no folder {JOURNAL!r}: it is the folder of a trial, in an experiment without "
            f"validation. {_PASS}"
        )
    return (
        f"has no folder {JOURNAL!r}, in which a sweep with validation writes down what happens, "
        f"and there is none below it. {_PASS}"
    )


_PASS = (
    "Pass the folder of an experiment: results.experiment_path, and "
    "storage_filesystem=results.filesystem."
)


def _beside(filesystem: pyarrow.fs.FileSystem, path: str, scheme: str) -> str:
    """The sweeps in the folder where one was looked for, the nearest by name first."""
    parent, name = posixpath.dirname(path), posixpath.basename(path)
    folders = _below(filesystem, parent, deep=1) if parent.strip("/") else []
    sweeps = [folder for folder in folders if _is_sweep(filesystem, folder)]
    if not sweeps:
        return _PASS

    def far(folder: str) -> float:
        return -difflib.SequenceMatcher(None, name, posixpath.basename(folder)).ratio()

    return f"Beside it there is {_named(sorted(sweeps, key=far), scheme)}."


def _named(folders: list[str], scheme: str) -> str:
    more = len(folders) - _MOST_NAMED
    named = " or ".join(repr(scheme + folder) for folder in folders[:_MOST_NAMED])
    return f"{named} ({more} more are not named)" if more > 0 else named


def _is_sweep(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    return any(name.endswith(".jsonl") for name in _names(filesystem, f"{folder}/{JOURNAL}"))


def _above(folder: str) -> Iterator[str]:
    """A folder, and what it is in, as far as a checkpoint's files are below their sweep."""
    for _ in range(4):
        if not folder or folder == posixpath.dirname(folder):
            return
        yield folder
        folder = posixpath.dirname(folder)


def _below(filesystem: pyarrow.fs.FileSystem, path: str, deep: int = _DEPTH) -> list[str]:
    """Folders below a folder, level by level, as far as it is worth looking."""
    found: list[str] = []
    level = [path]
    for _ in range(deep):
        folders = []
        for folder in level:
            selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
            try:
                inside = filesystem.get_file_info(selector)
            except OSError:  # not ours to read
                continue
            folders += sorted(i.path for i in inside if i.type == pyarrow.fs.FileType.Directory)
            if len(found) + len(folders) >= _MOST_FOLDERS:
                break
        found += folders
        level = [folder for folder in folders if not posixpath.basename(folder).startswith(".")]
    return found[:_MOST_FOLDERS]


def _names(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    try:
        selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
        return [info.base_name for info in filesystem.get_file_info(selector)]
    except OSError:
        return []
