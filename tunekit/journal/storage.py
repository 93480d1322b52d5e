"""Write the files of an experiment: append lines, and replace files atomically.

Writes to a local or mounted folder are synchronous: when a call returns, the operating system has
the data, which then survives the process. Data survives a crash of the machine once it is on disk:
for a file, when the call returns; for lines, after :meth:`LocalFolder.sync`.

Object stores cannot append, and a request takes as long as many steps of a sweep. So a thread
uploads in order. A kill loses the data that is not uploaded yet, which is the last fraction of a
second unless the store fails.

Other storages (HDFS, SFTP) are written to like an object store, but show files while they are
written: a kill leaves a partial file in place of the old one. :func:`warn_of_kills` warns of this
when a sweep starts.

Failed writes are retried, in order, for as long as the sweep runs; the failure is logged, and
nothing is dropped.
"""

from __future__ import annotations

import itertools
import logging
import os
import posixpath
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow.fs

from tunekit.journal.safe_files import folder_in, local_path, name_below, read_plain, sync_folder

logger = logging.getLogger(__name__)

#: How long to wait for a storage that does not accept files, in seconds.
PATIENCE_S = 60.0

# A growing object is uploaded again with each line; at this size, a new one is started.
_CHUNK_BYTES = 256 * 1024
_RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
# Stores in which an object appears only when it is closed, as pyarrow and fsspec name them.
_OBJECT_STORES = frozenset(
    ["s3", "s3a", "gcs", "gs", "abfs", "abfss", "az", "adl", "oss", "oci", "cos", "obs", "r2"]
)


def warn_of_kills(filesystem: pyarrow.fs.FileSystem, path: str) -> None:
    """Warn if a sweep in a folder of a storage does not survive a kill of its driver."""
    if local_path(filesystem, path) is None and not keeps_objects(filesystem):
        logger.warning(
            "The sweep in %r will not survive a kill of its driver: its storage (%s) shows files "
            "while they are written, so a kill may leave half a file, and the sweep could not be "
            "restored. Set storage_path to a folder in a local or shared file system, or in an "
            "object store such as s3://bucket/sweeps.",
            path,
            filesystem.type_name,
        )


def keeps_objects(filesystem: pyarrow.fs.FileSystem) -> bool:
    """Return whether a storage replaces a file atomically when the new one is closed."""
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        return keeps_objects(filesystem.base_fs)
    names = re.findall(r"\w+", filesystem.type_name.removeprefix("py::").removeprefix("fsspec+"))
    return not _OBJECT_STORES.isdisjoint(names)


def _next_number(names: list[str]) -> int:
    numbers = [int(stem) for stem in (name.split(".")[0] for name in names) if stem.isdigit()]
    return max(numbers, default=0) + 1


def replace_file(
    path: Path, data: bytes, *, durable: bool = False, dir_fd: int | None = None
) -> None:
    """Write a file atomically: no reader sees a partial file.

    A draft with a random name is written next to it first.

    Args:
        path: The file.
        data: Its contents.
        durable: Whether it must survive a crash of the machine, not just of this process; its name
            does if there is a ``dir_fd``.
        dir_fd: The open folder of the file, if ``path`` is just its name.

    Raises:
        OSError: If it cannot be written; an existing file stays as it is.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "report.html")
        >>> replace_file(path, b"<html>")
        >>> path.read_bytes(), [other.name for other in path.parent.iterdir()]
        (b'<html>', ['report.html'])
    """
    draft = path.with_name(f".{secrets.token_hex(8)}.draft")
    try:
        with open(draft, "xb", opener=partial(os.open, mode=0o666, dir_fd=dir_fd)) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    finally:
        with suppress(FileNotFoundError):  # it has its name
            os.unlink(draft, dir_fd=dir_fd)
    if durable:
        sync_folder(dir_fd)


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe or an open file, such as ``/dev/stdout``.

    Example:
        >>> [is_stream(Path(one)) for one in (os.devnull, "/dev/stdout", "no-such-file")]
        [True, True, False]
    """
    is_open_file = str(path.absolute()).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return is_open_file or (path.exists() and not path.is_file())


def write_file(path: Path, data: bytes) -> None:
    """Write a file at a path that a user named: atomically, unless :func:`is_stream`.

    A link stays, and its target is replaced.

    Raises:
        OSError: If it cannot be written; an existing file stays as it is.
    """
    if not is_stream(path):
        replace_file(Path(os.path.realpath(path)), data)
        return
    with open(path, "ab") as file:  # an open file keeps what it has
        file.write(data)


class _Complaints:
    """Log when a storage fails, and when it works again."""

    def __init__(self, where: str):
        self._where = where
        self._since: float | None = None

    def failed(self, error: Exception, unwritten: int) -> None:
        if self._since is None:
            self._since = time.monotonic()
            logger.warning(
                "The experiment's records cannot be written to %s: %s. %d are unwritten and will "
                "be retried. The sweep continues; if the driver is killed now, a restored sweep "
                "repeats the validations that were not recorded. Make room there, or check that "
                "it can be reached.",
                self._where,
                error,
                unwritten,
            )

    def worked(self) -> None:
        if self._since is not None:
            logger.warning(
                "The experiment's records can be written to %s again after %.0f s; none is lost.",
                self._where,
                time.monotonic() - self._since,
            )
            self._since = None


class LocalFolder:
    """A folder in a file system of this machine, mounted ones included.

    Args:
        root: The folder; it is created when something is written.

    Example:
        >>> import tempfile
        >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
        >>> folder.append("journal", b"one\\n")
        >>> folder.append("journal", b"two\\n")
        >>> folder.names("journal"), folder.read("journal/000001.jsonl")
        (['000001.jsonl'], b'one\\ntwo\\n')
    """

    def __init__(self, root: Path):
        self.root = root
        self._open: dict[str, int] = {}
        self._unwritten: deque[tuple[str, bytes]] = deque()
        self._complaints = _Complaints(str(root))
        # Series with lines that are not on disk yet.
        self._unsynced: set[str] = set()
        self._abandoned = False

    def append(self, series: str, line: bytes) -> None:
        """Append a line to the newest file of a series, such as ``journal/000001.jsonl``.

        Each session starts a new file, so a line torn by an earlier session stays the last one in
        its file.

        Args:
            series: The files' folder.
            line: The line, with its newline.
        """
        self._unwritten.append((series, line))
        self._write()

    def sync(self) -> bool:
        """Retry failed writes, and make all lines survive a crash of the machine.

        Returns:
            Whether they survive, or will survive before any later write or removal.
        """
        self._write()
        try:
            for series in list(self._unsynced):
                os.fsync(self._open[series])
                self._unsynced.discard(series)
        except OSError as error:
            self._complaints.failed(error, len(self._unwritten))
        return not self._unsynced and not self._unwritten

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically: no reader sees a partial file.

        Raises:
            OSError: If it cannot be written; an existing file stays as it is.
        """
        folder, file = posixpath.split(name_below(name))
        if not self._abandoned:
            with folder_in(self.root, folder, make=True) as (at, dir_fd):
                replace_file(at / file, data, durable=True, dir_fd=dir_fd)

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        folder, file = posixpath.split(name_below(name))
        if not self._abandoned:
            with suppress(FileNotFoundError), folder_in(self.root, folder) as (at, dir_fd):
                os.unlink(at / file, dir_fd=dir_fd)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a subfolder; empty if it does not exist."""
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            folder_in(self.root, folder) as (at, dir_fd),
        ):
            return sorted(os.listdir(at if dir_fd is None else dir_fd))
        return []

    def read(self, name: str, start: int = 0) -> bytes:
        """Return a file's content from an offset; a negative one counts from the end.

        Raises:
            tunekit.errors.UnsafeFileError: If it leads out of the folder, or is not a plain file.
            OSError: If it cannot be read.
        """
        return read_plain(self.root, name, start)

    def settle(self, patience_s: float) -> bool:
        """Wait until everything is written; return False after ``patience_s`` seconds."""
        ends = time.monotonic() + patience_s
        self._write()
        while self._unwritten and time.monotonic() < ends:
            time.sleep(min(_RETRY_S[0], patience_s))
            self._write()
        return not self._unwritten

    def close(self) -> None:
        """Stop writing."""
        self.sync()
        self._unsynced.clear()
        while self._open:
            os.close(self._open.popitem()[1])

    def abandon(self) -> None:
        """Discard the unwritten lines and stop writing: another driver has taken over."""
        self._abandoned = True

    def _write(self) -> None:
        if self._abandoned:
            self._unwritten.clear()
        while self._unwritten:
            series, line = self._unwritten[0]
            try:
                self._write_line(series, line)
            except OSError as error:
                self._complaints.failed(error, len(self._unwritten))
                return
            self._unwritten.popleft()
            self._unsynced.add(series)
            self._complaints.worked()

    def _write_line(self, series: str, line: bytes) -> None:
        descriptor = self._open.get(series)
        if descriptor is None:
            name = f"{_next_number(self.names(series)):06d}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            with folder_in(self.root, series, make=True) as (at, dir_fd):
                descriptor = self._open[series] = os.open(at / name, flags, 0o644, dir_fd=dir_fd)
                sync_folder(dir_fd)
        written = os.write(descriptor, line)
        if written < len(line):
            # Cut off a partial line; if that fails, it stays the last one in its file.
            try:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            except OSError:
                self._unsynced.discard(series)
                os.close(self._open.pop(series))
            raise OSError(f"only {written} of {len(line)} bytes could be written")


class RemoteFolder:
    """A folder in a storage that pyarrow supports, such as S3, with the methods of a local one.

    Args:
        filesystem: The storage.
        root: The folder's path there.
        sleep: Waits after a failed upload; the default returns early if the folder is closed.
    """

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        root: str,
        sleep: Callable[[float], bool] | None = None,
    ):
        self._filesystem, self._root = filesystem, root
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._changed = threading.Condition()
        self._jobs: deque[tuple[str, str, bytes]] = deque()
        self._busy = 0
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._chunks: dict[str, tuple[int, bytearray]] = {}
        self._complaints = _Complaints(f"{filesystem.type_name}://{root}")
        # Object stores have no folders.
        self._has_folders = not keeps_objects(filesystem)

    def append(self, series: str, line: bytes) -> None:
        """See :class:`LocalFolder`; the line is uploaded in the background."""
        self._enqueue("append", series, line)

    def sync(self) -> bool:
        """See :class:`LocalFolder`; always True, because uploads happen in order."""
        return True

    def put(self, name: str, data: bytes) -> None:
        """See :class:`LocalFolder`; the file is uploaded in the background, in order."""
        self._enqueue("put", name_below(name), data)

    def remove(self, name: str) -> None:
        """See :class:`LocalFolder`; the file is deleted in the background, in order."""
        self._enqueue("remove", name_below(name), b"")

    def names(self, folder: str) -> list[str]:
        """See :class:`LocalFolder`."""
        selector = pyarrow.fs.FileSelector(self._path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self._filesystem.get_file_info(selector))

    def read(self, name: str, start: int = 0) -> bytes:
        """See :class:`LocalFolder`; only that part of the file is fetched."""
        if not start:
            with self._filesystem.open_input_stream(self._path(name)) as stream:
                return bytes(stream.readall())
        with self._filesystem.open_input_file(self._path(name)) as file:
            size = file.size()
            file.seek(min(size, start) if start > 0 else max(0, size + start))
            return bytes(file.readall())

    def settle(self, patience_s: float) -> bool:
        """See :class:`LocalFolder`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, patience_s)

    def close(self) -> None:
        """See :class:`LocalFolder`."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """See :class:`LocalFolder`; an upload in progress finishes."""
        self._closed.set()
        with self._changed:
            self._abandoned = True
            # A job in progress is removed by the thread that runs it.
            while len(self._jobs) > self._busy:
                self._jobs.pop()
            self._changed.notify_all()

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name_below(name))

    def _enqueue(self, what: str, name: str, data: bytes) -> None:
        with self._changed:
            if self._abandoned:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._upload, daemon=True)
                self._thread.start()
            self._jobs.append((what, name, data))
            self._changed.notify_all()

    def _upload(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed.is_set())
                if not self._jobs or (self._closed.is_set() and failures):
                    return
                # The first job, together with the following ones of the same kind and name.
                jobs = list(next(itertools.groupby(self._jobs, lambda job: job[:2]))[1])
                self._busy = len(jobs)
            try:
                self._carry_out(jobs)
                failures = 0
                self._complaints.worked()
                done = len(jobs)
            except Exception as error:  # storages raise whatever their libraries raise
                self._complaints.failed(error, len(self._jobs))
                done = 0
            with self._changed:
                for _ in range(done):
                    self._jobs.popleft()
                self._busy = 0
                self._changed.notify_all()
            if not done:
                self._sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1

    def _carry_out(self, jobs: list[tuple[str, str, bytes]]) -> None:
        """Append lines to one series, or write or remove one file."""
        what, name, data = jobs[-1]
        if what == "put":
            self._write(name, data)
        elif what == "remove":
            path = self._path(name)
            if self._filesystem.get_file_info(path).type == pyarrow.fs.FileType.File:
                self._filesystem.delete_file(path)
        else:
            number, chunk = self._chunks.get(name, (0, bytearray()))
            if not number or len(chunk) >= _CHUNK_BYTES:
                number = number + 1 if number else _next_number(self.names(name))
                chunk = bytearray()
                # Set now, so that the object is overwritten if the upload's response is lost.
                self._chunks[name] = (number, chunk)
            chunk = chunk + b"".join(line for _, _, line in jobs)
            self._write(f"{name}/{number:06d}.jsonl", bytes(chunk))
            self._chunks[name] = (number, chunk)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._has_folders:
            self._filesystem.create_dir(posixpath.dirname(path))
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(data)


#: A folder of an experiment.
Folder = LocalFolder | RemoteFolder


def folder_at(filesystem: pyarrow.fs.FileSystem, path: str) -> Folder:
    """Return the folder at a path of a storage."""
    local = local_path(filesystem, path)
    return RemoteFolder(filesystem, path) if local is None else LocalFolder(local)
