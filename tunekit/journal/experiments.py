"""Find the sweeps in a folder, and explain why a path is not a sweep."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow.fs

from tunekit.core.events import SessionClosed, TrialAdded, has_begun
from tunekit.errors import JournalError
from tunekit.journal.journal import SERIES, record_of
from tunekit.journal.paths import infos_in
from tunekit.journal.safe_files import local_path
from tunekit.journal.storage import Folder
from tunekit.messages.problems import Problems

#: The first file that Tune writes into an experiment's folder.
TUNER_FILE = "tuner.pkl"
#: Prefixes of the files in which Tune saves a sweep.
STATE_FILES = (
    "experiment_state-",
    "basic-variant-state-",
    "search_gen_state-",
    "searcher-state-",
    "callback-states-",
)
#: Prefixes of the search algorithm's files.
SEARCH_FILES = STATE_FILES[1:4]


# Limits for finding all sweeps below a folder: the number of folders, and of levels.
_MOST_LISTED, _DEEPEST = 5_000, 4
# Limits for suggesting other paths: the number of levels, and of sweeps named.
_DEPTH, _MOST_NAMED = 2, 10
# The largest number of levels between a sweep's folder and a checkpoint's files.
_LEVELS_IN_A_SWEEP = 4
_OF_A_TRIAL = ("params.json", "params.pkl", "result.json", "progress.csv", "error.txt")


@dataclass(frozen=True)
class Found:
    """A sweep that was found in a folder.

    Attributes:
        path: Its folder, in the filesystem.
        changed: When its journal was last written, in seconds since the epoch; 0 if unknown.
    """

    path: str
    changed: float


def sweeps_below(filesystem: pyarrow.fs.FileSystem, path: str, deep: int = _DEEPEST) -> list[Found]:
    """Return the sweeps in a folder and its subfolders, newest first.

    Trials' folders, plain experiments of Tune and names that begin with a dot are skipped. Links
    are not followed, as they may lead anywhere; the folder itself may be one. At most 5,000 folders
    are searched, the upper ones first.

    Args:
        filesystem: Where to look.
        path: The folder in it; none are found if it does not exist.
        deep: How many levels deep.

    Raises:
        OSError: If the storage fails. Folders that this process may not read are left out.

    Example:
        >>> sweeps_below(pyarrow.fs.LocalFileSystem(), "/no/such/folder")
        []
    """
    found: list[Found] = []
    level, looked = [path.rstrip("/") or path], 0
    for _ in range(deep + 1):
        below: list[str] = []
        for folder in level:
            if looked >= _MOST_LISTED:
                break
            looked += 1
            inside = _inside(filesystem, folder)
            folders = [info.base_name for info in inside if _is_folder(filesystem, info)]
            changed = _changed(filesystem, folder) if SERIES in folders else None
            if changed is not None:
                found.append(Found(folder, changed))
            elif not _is_tunes(info.base_name for info in inside):
                named = (name for name in sorted(folders) if not name.startswith("."))
                below += [f"{folder.rstrip('/')}/{name}" for name in named]
        level = below
    return sorted(found, key=lambda one: (-one.changed, one.path))


def _is_folder(filesystem: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo) -> bool:
    """Return whether something is a folder, not a link to one."""
    local = local_path(filesystem, info.path)
    is_link = local is not None and local.is_symlink()
    return bool(info.type == pyarrow.fs.FileType.Directory and not is_link)


def _is_tunes(names: Iterable[str]) -> bool:
    """Return whether a folder with these names belongs to an experiment or a trial."""
    return any(
        name == TUNER_FILE or name in _OF_A_TRIAL or name.startswith(STATE_FILES) for name in names
    )


def _changed(filesystem: pyarrow.fs.FileSystem, folder: str) -> float | None:
    """Return when a sweep's journal was last written; None if the folder is not a sweep's."""
    files = _inside(filesystem, f"{folder}/{SERIES}")
    times = [info.mtime_ns or 0 for info in files if info.base_name.endswith(".jsonl")]
    return max(times) / 1e9 if times else None


def _inside(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[pyarrow.fs.FileInfo]:
    try:
        return infos_in(filesystem, folder)
    except (PermissionError, UnicodeError):  # fsspec fails if a name is not UTF-8
        return []


def sweep_above(filesystem: pyarrow.fs.FileSystem, path: str) -> str | None:
    """Return the folder of the sweep that a path is in; None if there is none."""
    above = path.rstrip("/")
    for _ in range(_LEVELS_IN_A_SWEEP):
        above = posixpath.dirname(above)
        if above.strip("/") and _changed(filesystem, above) is not None:
            return above
    return None


def path_problem(filesystem: pyarrow.fs.FileSystem, path: str, given: str = "") -> str:
    """Return why a path is not a sweep, and what to pass instead, to follow "path=...".

    Args:
        filesystem: Where to look.
        path: The path in it.
        given: The path or URI that the user passed.

    Raises:
        OSError: If the storage fails.
    """
    path, given = path.rstrip("/"), given.rstrip("/")
    scheme = given[: -len(path)] if path and given.endswith(path) else ""
    if _changed(filesystem, path) is not None:
        return f"has a folder {SERIES!r}, so it is a sweep with a missing file. Put that back."
    if (above := sweep_above(filesystem, path)) is not None:
        return f"is a part of a sweep, not the sweep's own folder. Pass {scheme + above!r}."
    what, around, deep = f"has no folder {SERIES!r}", path, _DEPTH
    kind = filesystem.get_file_info(path).type
    if kind in (pyarrow.fs.FileType.File, pyarrow.fs.FileType.Unknown):  # the latter is a device
        return f"is a file. {_PASS}"
    if kind == pyarrow.fs.FileType.NotFound:
        what, around, deep = "does not exist", posixpath.dirname(path), 1
    elif _is_tunes(info.base_name for info in _inside(filesystem, path)):
        return (
            f"{what}: it is an experiment of Ray Tune, or a trial of one, that was run without "
            "validation, or ended before its first trial began. To read an experiment, use "
            "ray.tune.Tuner.restore(path, trainable).get_results()."
        )
    near = sweeps_below(filesystem, around, deep) if around.strip("/") else []
    if not near:
        where = "in" if deep == 1 else "below"
        return f"{what}, and there is no sweep {where} {scheme + around!r}. {_PASS}"
    named = " or ".join(repr(scheme + one.path) for one in near[:_MOST_NAMED])
    more = f" ({len(near) - _MOST_NAMED} more are not named)" if len(near) > _MOST_NAMED else ""
    return f"{what}. There are sweeps below {scheme + around!r}: pass {named}{more}."


_PASS = (
    "Pass the folder of an experiment: results.experiment_path, and "
    "storage_filesystem=results.filesystem."
)


def check_unused(folder: Folder, hint: str, problems: Problems) -> None:
    """Add a problem if a new sweep in a folder would hide one that has not ended.

    Args:
        folder: The folder.
        hint: How to continue a sweep there.
        problems: Where to add it.

    Raises:
        OSError: If the storage fails.
    """
    try:
        events = record_of(folder).events
    except JournalError as error:
        problems.add(
            f"a sweep of this name cannot be read: {error} To begin another one, choose another "
            "name, or delete the folder."
        )
        return
    ended = isinstance(last := next(reversed(events), None), SessionClosed) and last.finished
    if has_begun(events) and not ended:
        trials = len({event.trial_id for event in events if isinstance(event, TrialAdded)})
        problems.add(
            f"a sweep of this name ({trials} trial{'s' * (trials != 1)}) has not ended, and a new "
            f"one would hide its scores and checkpoints. To continue it:\n{hint}\n"
            "To begin anew, choose another RunConfig(name=...), or delete the folder."
        )
