"""Paths and URIs, and what is at them in a storage."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

import pyarrow.fs

from tunekit.core.values import LONGEST, safely
from tunekit.messages.problems import Problems, format_argument

logger = logging.getLogger(__name__)

_WRAPPED = (
    "Pass a pyarrow.fs.FileSystem; wrap one of fsspec: "
    "pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem))."
)


def absolute(path: str, filesystem: pyarrow.fs.FileSystem | None = None) -> str:
    """Return a local path as absolute; a URI, or a path in a custom filesystem, unchanged.

    Example:
        >>> absolute("s3://bucket/digits"), absolute("/results/../digits")
        ('s3://bucket/digits', '/digits')
    """
    if filesystem is not None or ":/" in path:
        return path
    return os.path.abspath(os.path.expanduser(path))


def storage_at(
    path: str, filesystem: pyarrow.fs.FileSystem | None
) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the storage of a path or URI, and the path there; a local path may be relative."""
    if filesystem is not None:
        return filesystem, path
    found, below = pyarrow.fs.FileSystem.from_uri(absolute(path))  # as Ray does
    return found, below


def check_path(
    path: Any,
    filesystem: Any,
    problems: Problems,
    name: str = "path",
    fix: str = "Pass an experiment's folder.",
) -> tuple[pyarrow.fs.FileSystem, str] | None:
    """Return the storage of a user's path; None, with a problem, if it cannot be reached.

    Args:
        path: The path or URI.
        filesystem: The user's ``storage_filesystem``, if any.
        problems: The problems with the call.
        name: The name of the argument.
        fix: What to pass instead of something else.
    """
    known = check_filesystem("storage_filesystem", filesystem, problems)
    if not problems.instance(name, path, (str, os.PathLike), fix) or not known:
        return None
    try:
        path = os.fsdecode(path)
        found, below = storage_at(path, filesystem)
        found.get_file_info(below)
        return found, below
    except (OSError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:LONGEST]
    problems.add(
        f"{name}={format_argument(path)} cannot be reached: {why}. Pass a local path, or a URI of "
        "a storage that pyarrow supports, such as s3://bucket/digits."
    )
    return None


def check_filesystem(name: str, filesystem: Any, problems: Problems) -> bool:
    """Return whether something is a filesystem or None; add a problem if it is not."""
    known = problems.optional(name, filesystem, pyarrow.fs.FileSystem, _WRAPPED)
    return known is filesystem


def joined(source: str, below: str) -> str:
    """Return the path or URI of something below a folder; a URI's query stays at its end.

    Example:
        >>> joined("/results", "digits"), joined("s3://bucket/results?region=eu", "digits")
        ('/results/digits', 's3://bucket/results/digits?region=eu')
    """
    if not below:
        return source
    base, mark, query = source.partition("?") if "://" in source else (source, "", "")
    return f"{base.rstrip('/')}/{below}{mark}{query}"


def exists(filesystem: pyarrow.fs.FileSystem, path: str) -> bool:
    """Return whether there is a file or a folder at a path in a storage."""
    return bool(filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound)


def infos_in(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, recursive: bool = False
) -> list[pyarrow.fs.FileInfo]:
    """Return what is in a folder of a storage; nothing if there is no folder.

    Names that are not UTF-8 are skipped: neither pyarrow nor a journal can represent them.
    """
    infos = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, True, recursive))
    found = [one for one in infos if safely(lambda info: info.path.encode(), one)]
    if len(found) < len(infos):
        _warn_of_names(folder)
    return found


@lru_cache(maxsize=1024)  # once for each folder
def _warn_of_names(folder: str) -> None:
    logger.warning("%s has a name that is not UTF-8, which is skipped. Rename the file.", folder)


def paths_in(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """Return the paths in a folder of a storage; none if there is no folder."""
    return [f"{folder}/{info.base_name}" for info in infos_in(filesystem, folder)]


def changed_at(filesystem: pyarrow.fs.FileSystem, folder: str) -> float | None:
    """Return when a folder, or anything in it, was last written, in seconds since the epoch.

    None if the storage does not record it.
    """
    infos = [filesystem.get_file_info(folder), *infos_in(filesystem, folder, recursive=True)]
    return max((info.mtime_ns / 1e9 for info in infos if info.mtime_ns is not None), default=None)
