"""Open only plain files inside an experiment's folder.

The folder may come from someone else: it may contain links, pipes and devices, and its journal may
name any path. Its contents are shown to others, on a page or in a terminal, so only plain files
inside the folder are opened. The folder itself may be a link, and links in it may lead to other
files in it.

A remote storage resolves links itself; names that lead out of the folder are refused there too.
"""

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path

import pyarrow.fs

from tunekit.errors import UnsafeFileError

# Neither wait for a pipe's writer, nor follow a link that has replaced the file in the meantime.
_FLAGS = ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in _FLAGS)


def name_below(name: str) -> str:
    """Return a name from a journal or an archive after checking that it stays in its folder.

    Raises:
        tunekit.errors.UnsafeFileError: If it leads out, or cannot be the name of a file.

    Example:
        >>> name_below("journal/000001.jsonl")
        'journal/000001.jsonl'
        >>> name_below("../secret")
        Traceback (most recent call last):
        tunekit.errors.UnsafeFileError: '../secret' leads out of the experiment's folder...
    """
    parts = name.replace("\\", "/").split("/")
    try:
        impossible = b"\0" in os.fsencode(name)
    except UnicodeEncodeError:
        impossible = True
    if impossible:
        raise UnsafeFileError(f"{name!r} is not a name that a file can have; it was not opened.")
    if name.startswith("/") or ".." in parts or os.path.splitdrive(name)[0]:
        raise UnsafeFileError(f"{name!r} leads out of the experiment's folder; it was not opened.")
    return name


def inside(root: Path, name: str) -> Path:
    """Return the path of a file or folder in a local folder, with all links followed.

    Args:
        root: The folder.
        name: The path below it; empty for the folder itself.

    Raises:
        tunekit.errors.UnsafeFileError: If it leads out, by its name or by a link.
    """
    home = os.path.realpath(root)
    path = os.path.realpath(os.path.join(home, name_below(name)))
    if not _is_below(home, path):
        raise UnsafeFileError(
            f"{name!r} in {str(root)!r} is a link, or is behind one, to {path!r}, outside the "
            "experiment's folder. It was not opened. Replace the link with a copy."
        )
    return Path(path)


def _is_below(home: str, path: str) -> bool:
    return path == home or path.startswith(home.rstrip(os.sep) + os.sep)


def read_plain(path: Path, start: int = 0, most: int = -1) -> bytes:
    """Return the contents of a plain file on this machine.

    Args:
        path: The file, as returned by :func:`inside`.
        start: The first byte; a negative one counts from the end.
        most: The maximum number of bytes; -1: all.

    Raises:
        tunekit.errors.UnsafeFileError: If it is a pipe, a device or a folder.
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, _READ)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise UnsafeFileError(
                f"{str(path)!r} is not a plain file, and was not read. Neither tunekit nor Tune "
                "has written it: delete it, or restore the original file."
            )
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(start if start >= 0 else max(0, about.st_size + start))
            return file.read(most)
    finally:
        os.close(descriptor)


def local_path(filesystem: pyarrow.fs.FileSystem, path: str) -> Path | None:
    """Return the local path of a path in a storage; None if the storage is remote.

    Example:
        >>> local = pyarrow.fs.LocalFileSystem()
        >>> local_path(pyarrow.fs.SubTreeFileSystem("/results", local), "digits").as_posix()
        '/results/digits'
    """
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        below = posixpath.join(filesystem.base_path, path.lstrip("/"))
        return local_path(filesystem.base_fs, below)
    return Path(path) if isinstance(filesystem, pyarrow.fs.LocalFileSystem) else None


def is_inside(filesystem: pyarrow.fs.FileSystem, home: str, path: str) -> bool:
    """Return whether a path that was read from a journal is in an experiment's folder.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        path: The path there.

    Example:
        >>> local = pyarrow.fs.LocalFileSystem()
        >>> [is_inside(local, "/digits", path) for path in ("/digits/a", "/digits/../a", "/a")]
        [True, False, False]
    """
    home = home.rstrip("/")
    if not path.startswith(f"{home}/"):
        return False
    local, name = local_path(filesystem, home), path[len(home) + 1 :]
    try:
        name_below(name)
        if local is not None:
            inside(local, name)
    except UnsafeFileError:
        return False
    return True


def link_out_of(filesystem: pyarrow.fs.FileSystem, home: str, path: str) -> str | None:
    """Return a link below a path that leads out of an experiment's folder; None if there is none.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        path: The path there, in the folder.
    """
    root, top = local_path(filesystem, home), local_path(filesystem, path)
    if root is None or top is None:
        return None
    real = os.path.realpath(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            one = os.path.join(folder, name)
            if os.path.islink(one) and not _is_below(real, os.path.realpath(one)):
                return one
    return None


def linked_file(root: Path) -> str | None:
    """Return a file in an experiment's folder, or in a trial's, that is a link.

    Ray and Tune write some files in place, and would change the link's target. A second hard link
    is fine: it is a copy of the sweep (made by ``cp -al``), and the contents of such files are
    rewritten from the journal.

    Args:
        root: The experiment's folder, on this machine.

    Returns:
        Its path below the folder; None if there is none.
    """
    if not root.is_dir():
        return None
    found = sorted(os.scandir(root), key=lambda entry: entry.name)
    inner = [entry for folder in found if folder.is_dir() for entry in os.scandir(folder.path)]
    for entry in (*found, *inner):
        if entry.is_symlink() and not entry.is_dir():
            return os.path.relpath(entry.path, root)
    return None
