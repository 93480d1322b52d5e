"""A storage for tests that can fail on demand and can be killed."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.fs
from pyarrow.fs import FileInfo, FileType


class Store(pyarrow.fs.FileSystemHandler):
    """Files in memory, behind the interface of pyarrow's filesystems.

    Args:
        kind: What the storage says that it is. Unless it is ``"hdfs"``, a file is there when it is
            closed, and not before.
    """

    def __init__(self, kind: str = "s3"):
        self.files: dict[str, bytes] = {}
        self.kind = kind
        #: Operations until the process that uses it is killed; None: it is not.
        self.left: int | None = None
        #: Raised instead of the next operations of these names.
        self.errors: dict[str, Callable[[str], OSError | None]] = {}
        self.operations: list[str] = []

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        return pyarrow.fs.PyFileSystem(self)

    def _does(self, what: str, path: str) -> None:
        """Count a change; none is made once the process is killed."""
        if self.left is not None:
            if self.left <= 0:
                raise OSError("the process was killed")
            self.left -= 1
        error = self.errors[what](path) if what in self.errors else None
        if error is not None:
            raise error
        self.operations.append(f"{what} {posixpath.basename(path)}")

    def delete_file(self, path: str) -> None:
        self._does("delete_file", path)
        del self.files[path]

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        self._does("open", path)
        return pyarrow.PythonFile(_Stream(self, path), mode="w")

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        if path not in self.files:
            raise FileNotFoundError(path)
        return pyarrow.BufferReader(self.files[path])

    open_input_file = open_input_stream

    def get_type_name(self) -> str:
        return self.kind

    def normalize_path(self, path: str) -> str:
        return path

    def _info(self, path: str) -> FileInfo:
        if path in self.files:
            return FileInfo(path, FileType.File, size=len(self.files[path]))
        below = any(name.startswith(f"{path}/") for name in self.files)
        return FileInfo(path, FileType.Directory if below else FileType.NotFound)

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        base = selector.base_dir.rstrip("/")
        below = (path[len(base) + 1 :] for path in self.files if path.startswith(f"{base}/"))
        return [self._info(f"{base}/{name}") for name in {part.split("/")[0] for part in below}]

    def create_dir(self, path: str, recursive: bool) -> None:
        pass

    def _refuse(self, *args: Any) -> None:
        raise NotImplementedError

    delete_dir = delete_dir_contents = delete_root_dir_contents = copy_file = move = _refuse
    open_append_stream = _refuse


class _Stream(io.RawIOBase):
    """Writes a file in two halves: a process may be killed between them."""

    def __init__(self, store: Store, path: str):
        self._store, self._path = store, path
        self._written, self._failed = b"", False
        self._show()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole = bytes(data)
        self._failed = True
        for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
            self._store._does("write", self._path)
            self._written += part
            self._show()
        self._failed = False
        return len(whole)

    def _show(self) -> None:
        if self._store.kind == "hdfs":
            self._store.files[self._path] = self._written

    def close(self) -> None:
        if not self.closed and not self._failed:
            self._store._does("close", self._path)
            self._store.files[self._path] = self._written
        super().close()
