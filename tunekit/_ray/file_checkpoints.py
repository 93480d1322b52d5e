"""Checkpoints that are single files, which a function that reads folders can read too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs
from ray import tune


class FileCheckpoint(tune.Checkpoint):
    """A checkpoint that is a single file, read as a folder that contains it.

    A function that reads a folder can then read the file too. Ray's own checkpoint is meant for
    folders (``ray/train/_checkpoint.py``): for a local file, its ``as_directory()`` yields the path
    of the file, and for a file in an object store it raises.
    """

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the file into a local folder, and return the folder.

        Args:
            path: The folder. None: a new one, which the caller deletes.

        Raises:
            OSError: If the file is gone, or the storage fails.
        """
        folder = tempfile.mkdtemp() if path is None else os.path.abspath(os.path.expanduser(path))
        os.makedirs(folder, exist_ok=True)
        to, local = os.path.join(folder, os.path.basename(self.path)), pyarrow.fs.LocalFileSystem()
        pyarrow.fs.copy_files(self.path, to, self.filesystem, local)
        return folder

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a temporary folder with the file: a link to a local file, or else a copy.

        Raises:
            OSError: As for :meth:`to_directory`.
        """
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(self.filesystem, pyarrow.fs.LocalFileSystem):
                os.symlink(self.path, os.path.join(folder, os.path.basename(self.path)))
            else:
                self.to_directory(folder)
            yield folder


def checkpoint_at(path: str, filesystem: pyarrow.fs.FileSystem) -> tune.Checkpoint:
    """Return the checkpoint at a path, whether it is a folder or a file.

    Args:
        path: The path in the storage.
        filesystem: The storage.

    Example:
        >>> file = tempfile.NamedTemporaryFile(suffix=".ckpt")
        >>> with checkpoint_at(file.name, pyarrow.fs.LocalFileSystem()).as_directory() as folder:
        ...     os.listdir(folder) == [os.path.basename(file.name)]
        True
    """
    kind = FileCheckpoint if filesystem.get_file_info(path).is_file else tune.Checkpoint
    return kind(path, filesystem)
