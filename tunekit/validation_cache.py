"""A folder of scores, each by what it was computed from, that sweeps may share.

What counts is the content of a checkpoint, the function's and its arguments' fingerprint
(:mod:`tunekit.fingerprint`), and the hyperparameters, for which a function may ask. Where a
checkpoint lies, and in which sweep, does not count.

An entry is one small file of JSON, written as a whole. Two processes that write the same one write
the same. Nothing in it is ever unpickled, so that a folder may be shared with people who may write
there; what JSON does not know is a text, as in :func:`tunekit.load`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import storage_at
from tunekit.core.values import as_json, reader, written
from tunekit.storage import Folder, folder_at
from tunekit.version import VERSION

__all__ = ["ValidationCache", "digest_of"]

logger = logging.getLogger(__name__)

_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_PATIENCE_S = 60.0


def digest_of(filesystem: pyarrow.fs.FileSystem, path: str) -> str:
    """Return a digest of the files below a path: their names, relative to it, and their bytes.

    Raises:
        OSError: If they cannot be read, or there are none.

    Example:
        >>> import tempfile
        >>> folders = [Path(tempfile.mkdtemp()) for _ in range(3)]
        >>> for folder, weights in zip(folders, ("1", "1", "2")):
        ...     _ = (folder / "weights").write_text(weights)
        >>> one, same, other = (digest_of(pyarrow.fs.LocalFileSystem(), str(f)) for f in folders)
        >>> one == same, one == other
        (True, False)
    """
    selector = pyarrow.fs.FileSelector(path, recursive=True)
    infos = [info for info in filesystem.get_file_info(selector) if info.is_file]
    if not infos:
        raise FileNotFoundError(f"there is no file below {path}")
    whole = hashlib.sha256()
    start = len(path.rstrip("/")) + 1
    for info in sorted(infos, key=lambda one: one.path):
        own = hashlib.sha256()
        with filesystem.open_input_stream(info.path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                own.update(chunk)
        whole.update(f"{json.dumps(info.path[start:])} {own.hexdigest()}\n".encode())
    return whole.hexdigest()


class ValidationCache:
    """Scores that were computed before, in this sweep or another one.

    Args:
        folder: Where they are kept.

    Example:
        >>> import tempfile
        >>> cache = ValidationCache.at(tempfile.mkdtemp())
        >>> key = cache.key("content of a checkpoint", "fingerprint of a function", {"lr": 0.1})
        >>> cache.get(key)
        >>> cache.put(key, {"accuracy": 0.5})
        >>> cache.get(key)
        {'accuracy': 0.5}
    """

    def __init__(self, folder: Folder):
        self._folder = folder
        self._complained = False

    @classmethod
    def at(cls, where: str | Path) -> ValidationCache:
        """Return the cache in a local folder or at a URI, such as ``s3://bucket/scores``.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is no URI that pyarrow knows, or a file.
        """
        filesystem, path = storage_at(str(where), None)
        if filesystem.get_file_info(path).is_file:
            raise ValueError("it is a file")
        return cls(folder_at(filesystem, path))

    def key(self, digest: str, fingerprint: str, config: Mapping[str, Any]) -> str:
        """Return the name of a score.

        Args:
            digest: That of the checkpoint: :func:`digest_of`.
            fingerprint: That of the function and its arguments.
            config: The hyperparameters that the checkpoint was trained with.
        """
        parts = [_FORMAT, digest, fingerprint, written(dict(config), keys=False)]
        return hashlib.sha256(as_json(parts, sort_keys=True).encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the metrics of a score; None if there are none, or they cannot be read."""
        name = _name(key)
        try:
            entry = json.loads(self._folder.read(name), object_hook=reader())
            metrics = entry["metrics"]
            return metrics if isinstance(metrics, dict) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._complain(f"{name} cannot be read", error)
            return None

    def put(self, key: str, metrics: Mapping[str, Any], **about: Any) -> None:
        """Keep a score; if that fails, nothing but a message comes of it.

        Args:
            key: Its name.
            metrics: The metrics.
            **about: What else to write, for people who look into the folder.
        """
        entry = {"tunekit": VERSION, **about, "metrics": written(dict(metrics))}
        try:
            self._folder.put(_name(key), f"{json.dumps(entry)}\n".encode())
        except OSError as error:
            self._complain("a score cannot be kept", error)

    def close(self) -> None:
        """Write what waits to be written."""
        if not self._folder.settle(_PATIENCE_S):
            self._complain("not all scores were kept", None)
        self._folder.close()

    def _complain(self, what: str, error: Exception | None) -> None:
        if not self._complained:
            self._complained = True
            why = "" if error is None else f": {type(error).__name__}: {error}"
            logger.warning("The cache of validations does not work: %s%s.", what, why)


def _name(key: str) -> str:
    return f"{key[:2]}/{key}.json"
