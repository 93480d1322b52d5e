"""Open only plain files inside an experiment's folder.

The folder may come from someone else: it may contain links, pipes and devices, and its journal may
name any path. Its contents are shown to others, on a page or in a terminal, so only plain files
inside the folder are opened. The folder itself may be a link, and links in it may lead to other
files in it. Somebody may put a link there at any moment, so paths are opened part by part, without
following links; if there is one, its target is checked, and then opened in the same way. (Windows
lacks the means, so the target is opened by its path.)

A remote storage resolves links itself; names that lead out of the folder are refused there too.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.fs

from tunekit.errors import UnsafeFileError

# Do not wait for a pipe's writer.
_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_READ_NO_LINK = _READ | getattr(os, "O_NOFOLLOW", 0)
_BY_PART = os.open in os.supports_dir_fd


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


def _inside(root: Path, name: str) -> tuple[Path, Path]:
    """Return a local folder, and the path of a file or folder in it, with all links followed.

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
    return Path(home), Path(os.path.relpath(path, home))


def _is_below(home: str, path: str) -> bool:
    return path == home or path.startswith(home.rstrip(os.sep) + os.sep)


def _open(root: Path, name: str, *, make: bool = False) -> int:
    """Open a file or folder in a local folder to read it, and return its descriptor.

    Args:
        root: The folder.
        name: The path below it.
        make: Whether to create missing folders, so that they survive a crash of the machine.

    Raises:
        tunekit.errors.UnsafeFileError: If it leads out, or a link is put there while this runs.
        OSError: If it cannot be opened.
    """
    if not _BY_PART:
        return os.open(Path(*_inside(root, name)), _READ_NO_LINK)
    home, path = Path(os.path.realpath(root)) if make else root, Path(name_below(name))
    while make and not home.exists():
        home, path = home.parent, home.name / path
    for _ in range(2):  # the second time if there is a link, along the path that it leads to
        at = os.open(home, _READ)
        try:
            for part in path.parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                        sync_folder(at)
                outer, at = at, os.open(part, _READ_NO_LINK, dir_fd=at)
                os.close(outer)
            return at
        except OSError as error:
            os.close(at)
            error.filename = os.path.join(root, name)  # not just a part of it
            if error.errno != errno.ELOOP:
                raise
        home, path = _inside(root, name)
    raise _not_plain(root, name)


@contextmanager
def folder_in(root: Path, name: str, *, make: bool = False) -> Iterator[tuple[Path, int | None]]:
    """Open a folder in a local folder; yield the path of its files, and ``dir_fd`` for them.

    Arguments and exceptions are those of :func:`_open`.
    """
    if not _BY_PART:
        path = Path(*_inside(root, name))
        if make:
            path.mkdir(parents=True, exist_ok=True)
        yield path, None
        return
    descriptor = _open(root, name, make=make)
    try:
        yield Path(), descriptor
    except OSError as error:
        if isinstance(error.filename, (str, Path)):
            error.filename = os.path.join(root, name, error.filename)
        raise
    finally:
        os.close(descriptor)


def sync_folder(dir_fd: int | None) -> None:
    """Write the names in an open folder to disk, if the file system supports that."""
    if dir_fd is not None:
        with suppress(OSError):
            os.fsync(dir_fd)


def read_plain(root: Path, name: str, start: int = 0, most: int = -1) -> bytes:
    """Return the contents of a plain file in a local folder.

    Args:
        root: The folder.
        name: The file's path below it.
        start: The first byte; a negative one counts from the end.
        most: The maximum number of bytes; -1: all.

    Raises:
        tunekit.errors.UnsafeFileError: If it leads out, or is a pipe, a device or a folder.
        OSError: If it cannot be read.
    """
    descriptor = _open(root, name)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise _not_plain(root, name)
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(start if start >= 0 else max(0, about.st_size + start))
            return file.read(most)
    finally:
        os.close(descriptor)


def _not_plain(root: Path, name: str) -> UnsafeFileError:
    return UnsafeFileError(
        f"{name!r} in {str(root)!r} is not a plain file or folder, and was not opened. Neither "
        "tunekit nor Tune has written it: delete it, or restore the original."
    )


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
    local, name = local_path(filesystem, home), path.removeprefix(f"{home}/")
    with suppress(UnsafeFileError):
        name_below(name)
        if local is not None:
            _inside(local, name)
        return path.startswith(f"{home}/")
    return False


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
    home = os.path.realpath(root)
    links = (str(one) for one in top.rglob("*") if one.is_symlink())
    return next((one for one in links if not _is_below(home, os.path.realpath(one))), None)


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
    found = (*sorted(root.glob("*")), *root.glob("*/*"))
    links = (one for one in found if one.is_symlink() and not one.is_dir())
    return next((os.path.relpath(one, root) for one in links), None)
