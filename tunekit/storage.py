"""The experiment's own files: lines that are appended, and files that appear as a whole.

A local folder, or a shared one that is mounted, is written to at once: what a call has taken has
been handed to the operating system when the call returns. An object store knows no appending, and
a request to it takes as long as many of a sweep's steps; there a thread uploads in order, and what
was not uploaded when the process is killed is lost: that of the last fraction of a second, unless
the store fails.

A storage that fails is tried again, in order, for as long as the sweep runs; it is told of, and
nothing is dropped.
"""

from __future__ import annotations

import itertools
import logging
import os
import posixpath
import threading
import time
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import pyarrow.fs

__all__ = ["Folder", "LocalFolder", "RemoteFolder", "folder_at"]

logger = logging.getLogger(__name__)

# An object is uploaded anew as it grows; another is begun when it is so large.
_CHUNK_BYTES = 256 * 1024
_RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_TELL_AGAIN_S = 30.0
_OBJECT_STORES = ("s3", "gcs", "abfs")


class Folder(Protocol):
    """A folder of an experiment."""

    def append(self, series: str, line: bytes, *, later: bool = False) -> None:
        """Append a line to the newest file of a series, such as ``journal/000001.jsonl``.

        A session begins a file of its own: a line that a former one left torn stays a last line.

        Args:
            series: The files' folder.
            line: The line, with its newline.
            later: Whether it may wait for the next line that may not, or for :meth:`flush`.
        """
        ...

    def flush(self) -> None:
        """Write the lines that may wait."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file as a whole: no reader sees half of it."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder of it, sorted; empty if there is none."""
        ...

    def read(self, name: str) -> bytes:
        """What is in a file.

        Raises:
            OSError: If it cannot be read.
        """
        ...

    def settle(self, patience_s: float) -> bool:
        """Wait until all is written; False if it is not after so many seconds."""
        ...

    def close(self) -> None:
        """Nothing more is written."""
        ...


def folder_at(filesystem: pyarrow.fs.FileSystem, path: str) -> Folder:
    """The folder at a path of a storage."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return LocalFolder(Path(path))
    return RemoteFolder(filesystem, path)


def _next_number(names: list[str]) -> int:
    numbers = [int(stem) for stem in (name.split(".")[0] for name in names) if stem.isdigit()]
    return max(numbers, default=0) + 1


class _Complaints:
    """Tells that a storage fails: at once, then now and then, and when it works again."""

    def __init__(self, where: str, now: Callable[[], float] = time.monotonic):
        self._where, self._now = where, now
        self._since: float | None = None
        self._told = 0.0

    def failed(self, error: Exception, waiting: int) -> None:
        now = self._now()
        if self._since is None or now - self._told >= _TELL_AGAIN_S:
            self._since = now if self._since is None else self._since
            self._told = now
            logger.warning(
                "The experiment's records cannot be written to %s: %s. %d wait to be written, and "
                "are tried again. The sweep goes on; what is not written when the driver is killed "
                "will be validated again by a restored sweep. Make room there, or see that it can "
                "be reached.",
                self._where,
                error,
                waiting,
            )

    def worked(self) -> None:
        if self._since is not None:
            logger.warning(
                "The experiment's records are written to %s again, %.0f s later; none is missing.",
                self._where,
                self._now() - self._since,
            )
            self._since = None


class LocalFolder:
    """A folder in a file system of this machine, mounted ones included.

    Args:
        root: The folder; it is made when something is written.

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
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._complaints = _Complaints(str(root))

    def append(self, series: str, line: bytes, *, later: bool = False) -> None:
        """See :class:`Folder`."""
        self._waiting.append((series, line))
        if not later:
            self._write()

    def flush(self) -> None:
        """See :class:`Folder`."""
        self._write()

    def put(self, name: str, data: bytes) -> None:
        """See :class:`Folder`.

        Raises:
            OSError: If it cannot be written; there is no new file then.
        """
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> None:
        """See :class:`Folder`."""
        (self.root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """See :class:`Folder`."""
        path = self.root / folder
        return sorted(p.name for p in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> bytes:
        """See :class:`Folder`."""
        return (self.root / name).read_bytes()

    def settle(self, patience_s: float) -> bool:
        """See :class:`Folder`."""
        ends = time.monotonic() + patience_s
        for pause in itertools.chain([0.0], _RETRY_S, itertools.repeat(_RETRY_S[-1])):
            time.sleep(max(0.0, min(pause, ends - time.monotonic())))
            self._write()
            if not self._waiting:
                return True
            if time.monotonic() >= ends:
                return False
        return False

    def close(self) -> None:
        """See :class:`Folder`."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _write(self) -> None:
        while self._waiting:
            series = self._waiting[0][0]
            same = [line for _, line in next(itertools.groupby(self._waiting, itemgetter(0)))[1]]
            try:
                self._write_lines(series, b"".join(same))
            except OSError as error:
                self._complaints.failed(error, len(self._waiting))
                return
            for _ in same:
                self._waiting.popleft()
            self._complaints.worked()

    def _write_lines(self, series: str, lines: bytes) -> None:
        descriptor = self._open.get(series)
        if descriptor is None:
            folder = self.root / series
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{_next_number(self.names(series)):06d}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            descriptor = self._open[series] = os.open(path, flags, 0o644)
        before = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, lines)
            if written < len(lines):
                raise OSError(f"{written} of {len(lines)} bytes could be written")
        except OSError:
            # Half of a line is cut; if that fails, too, it stays the last one of its file.
            try:
                os.ftruncate(descriptor, before)
            except OSError:
                os.close(self._open.pop(series))
            raise


class RemoteFolder:
    """A folder in a storage that pyarrow reaches, such as S3.

    Args:
        filesystem: The storage.
        root: The folder's path there.
        sleep: How a failed upload waits; returns True if the folder was closed meanwhile.
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
        self._busy = False
        self._thread: threading.Thread | None = None
        self._chunks: dict[str, tuple[int, bytearray]] = {}
        self._complaints = _Complaints(f"{filesystem.type_name}://{root}")

    def append(self, series: str, line: bytes, *, later: bool = False) -> None:
        """See :class:`Folder`; the line is uploaded behind."""
        self._enqueue("append", series, line)

    def flush(self) -> None:
        """See :class:`Folder`; no line waits to be uploaded."""

    def put(self, name: str, data: bytes) -> None:
        """See :class:`Folder`; the file is uploaded behind, after all that came before it."""
        self._enqueue("put", name, data)

    def remove(self, name: str) -> None:
        """See :class:`Folder`; it is deleted behind."""
        self._enqueue("remove", name, b"")

    def names(self, folder: str) -> list[str]:
        """See :class:`Folder`."""
        selector = pyarrow.fs.FileSelector(self._path(folder), allow_not_found=True)
        return sorted(info.base_name for info in self._filesystem.get_file_info(selector))

    def read(self, name: str) -> bytes:
        """See :class:`Folder`."""
        with self._filesystem.open_input_stream(self._path(name)) as stream:
            return bytes(stream.readall())

    def settle(self, patience_s: float) -> bool:
        """See :class:`Folder`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, patience_s)

    def close(self) -> None:
        """See :class:`Folder`."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _enqueue(self, what: str, name: str, data: bytes) -> None:
        with self._changed:
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
                jobs = self._together()
                self._busy = True
            try:
                self._carry_out(jobs)
                failures = 0
                self._complaints.worked()
                done = len(jobs)
            except Exception as error:  # storages raise whatever their libraries do
                self._complaints.failed(error, len(self._jobs))
                done = 0
            with self._changed:
                for _ in range(done):
                    self._jobs.popleft()
                self._busy = False
                self._changed.notify_all()
            if not done:
                self._sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1

    def _together(self) -> list[tuple[str, str, bytes]]:
        """The next job, or all next lines of one series: they are one upload."""
        first = self._jobs[0]
        if first[0] != "append":
            return [first]
        same = itertools.takewhile(lambda job: job[:2] == first[:2], self._jobs)
        return list(same)

    def _carry_out(self, jobs: list[tuple[str, str, bytes]]) -> None:
        what, name, data = jobs[0]
        if what == "put":
            self._write(name, data)
        elif what == "remove":
            if (
                self._filesystem.get_file_info(self._path(name)).type
                != pyarrow.fs.FileType.NotFound
            ):
                self._filesystem.delete_file(self._path(name))
        else:
            number, chunk = self._chunks.get(name, (0, bytearray()))
            if not number or len(chunk) >= _CHUNK_BYTES:
                number = number + 1 if number else _next_number(self.names(name))
                chunk = bytearray()
                # Also if the answer to the upload is lost: what is there is written over then.
                self._chunks[name] = (number, chunk)
            chunk = chunk + b"".join(line for _, _, line in jobs)
            self._write(f"{name}/{number:06d}.jsonl", bytes(chunk))
            self._chunks[name] = (number, chunk)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        whole = self._filesystem.type_name in _OBJECT_STORES  # an object is there when it is closed
        draft = path if whole else posixpath.join(self._root, f".{posixpath.basename(name)}.draft")
        if not whole:
            self._filesystem.create_dir(posixpath.dirname(path))
        with self._filesystem.open_output_stream(draft) as stream:
            stream.write(data)
        if not whole:
            try:
                self._filesystem.move(draft, path)
            except OSError:  # some do not move over what is there
                self._filesystem.delete_file(path)
                self._filesystem.move(draft, path)
