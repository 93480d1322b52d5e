"""Cache scores in a folder that sweeps may share.

The process that validates a checkpoint first looks up its score (:meth:`ValidationCache.find`),
because it reads the checkpoint anyway. The driver writes the scores, because only the driver
decides which values are scores.

The key is made of the checkpoint's content, the fingerprint of the function and its arguments
(:mod:`tunekit.validating.fingerprint`), and the hyperparameters, which a function may read. The
checkpoint's path and sweep are not part of it.

An entry is a small JSON file, written atomically; processes that write the same entry write the
same content. Nothing is ever unpickled, so the folder may be shared with others who can write
there. Values that JSON cannot represent become texts, as in :func:`tunekit.load`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow.fs

from tunekit._ray.storage import storage_at
from tunekit.core.validation import Outcome
from tunekit.core.values import admitted, as_json
from tunekit.journal.storage import Folder, folder_at
from tunekit.validating.fingerprint import fingerprint
from tunekit.version import VERSION

logger = logging.getLogger(__name__)

#: Looks up a checkpoint's score, as :meth:`ValidationCache.find` does.
Lookup = Callable[
    [Any, Mapping[str, Any]],  # the checkpoint, and its hyperparameters
    tuple[str | None, dict[str, Any] | None],
]

_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_PATIENCE_S = 60.0


def digest_of(filesystem: pyarrow.fs.FileSystem, path: str) -> str:
    """Return a digest of the files below a path: of their relative names and their contents.

    Raises:
        OSError: If they cannot be read, or there are none.

    Example:
        >>> import pathlib, tempfile
        >>> folders = [pathlib.Path(tempfile.mkdtemp()) for _ in range(3)]
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
    """A cache of the scores that this sweep and others have computed.

    Its errors do not affect the sweep: the first is logged, and checkpoints are validated instead.

    Args:
        where: A local folder, or a URI such as ``s3://bucket/scores``.

    Example:
        >>> import tempfile
        >>> from tunekit.core.validation import Request, Status
        >>> cache = ValidationCache(tempfile.mkdtemp())
        >>> key = cache.key("content of a checkpoint", "fingerprint of a function", {"lr": 0.1})
        >>> cache.get(key)
        >>> outcome = Outcome(Request("a", 1), Status.VALIDATED, {"accuracy": 0.5})
        >>> cache.keep(key, outcome, "validate")
        >>> cache.get(key)
        {'accuracy': 0.5}
    """

    def __init__(self, where: str):
        self._where = where
        self._folder: Folder | None = None
        self._unreachable: Exception | None = None
        self._complained = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path only; each process that validates opens its own cache."""
        return _of_this_process, (self._where,)

    def opened(self) -> Folder:
        """Return the folder.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is a file, or a URI that pyarrow does not support.
        """
        if self._unreachable is not None:
            raise self._unreachable
        if self._folder is None:
            try:
                filesystem, path = storage_at(self._where, None)
                if filesystem.get_file_info(path).is_file:
                    raise ValueError("it is a file")
            except (OSError, ValueError) as error:
                self._unreachable = error  # do not let the driver wait for it again
                raise
            self._folder = folder_at(filesystem, path)
        return self._folder

    def key(self, digest: str, mark: str, config: Mapping[str, Any]) -> str:
        """Return the key of a score.

        Args:
            digest: The checkpoint's digest: :func:`digest_of`.
            mark: The digest of the function and its arguments.
            config: The hyperparameters that the checkpoint was trained with, original or as read
                from a journal.
        """
        parts = [_FORMAT, digest, mark, _as_recorded(config)]
        return hashlib.sha256(as_json(parts, sort_keys=True).encode()).hexdigest()

    def lookup(self, function: str | None, kwargs: Mapping[str, Any]) -> Lookup | None:
        """Return the lookup for a call of a function; None if the call has no fingerprint.

        Args:
            function: The fingerprint of the function, if it has one.
            kwargs: The keyword arguments.
        """
        given = fingerprint(sorted(kwargs.items()))
        if function is None or given is None:
            return None
        mark = hashlib.sha256(f"{function} {given}".encode()).hexdigest()
        return functools.partial(self.find, mark)

    def find(
        self, mark: str, checkpoint: Any, config: Mapping[str, Any]
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Return the key of a checkpoint's score, and its metrics if it is cached.

        Args:
            mark: The digest of the function and its arguments.
            checkpoint: The checkpoint; all of it is read.
            config: The hyperparameters that it was trained with.
        """
        try:
            self.opened()
            key = self.key(digest_of(checkpoint.filesystem, checkpoint.path), mark, config)
        except Exception as error:  # storages and a checkpoint's filesystem can raise anything
            self._complain("a score could not be looked up", error)
            return None, None
        return key, self.get(key)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the metrics of a cached score."""
        try:
            entry = json.loads(self.opened().read(_name(key)))
            return msgspec.convert(entry["metrics"], dict[str, Any])
        except FileNotFoundError:
            return None
        except Exception as error:  # others may have written anything there
            self._complain(f"{_name(key)} cannot be read", error)
            return None

    def keep(self, key: str, outcome: Outcome, function: str) -> None:
        """Store the score of a complete validation.

        Args:
            key: Its key.
            outcome: The outcome of the validation.
            function: The name of the function, for readers of the file.
        """
        entry = {"tunekit": VERSION, "function": function, "metrics": admitted(outcome.metrics)}
        try:
            self.opened().put(_name(key), f"{json.dumps(entry)}\n".encode())
        except (OSError, ValueError) as error:
            self._complain("a score could not be stored", error)

    def close(self) -> None:
        """Write the entries that wait to be written."""
        folder, self._folder = self._folder, None
        if folder is not None:
            if not folder.settle(_PATIENCE_S):
                self._complain("not all scores could be stored", None)
            folder.close()

    def _complain(self, what: str, error: Exception | None) -> None:
        if not self._complained:
            self._complained = True
            why = "" if error is None else f": {type(error).__name__}: {error}"
            logger.warning("The cache %s does not work: %s%s.", self._where, what, why)


@functools.lru_cache(maxsize=8)
def _of_this_process(where: str) -> ValidationCache:
    return ValidationCache(where)


def _as_recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as read from a journal, with objects as text."""
    known: dict[str, Any] = json.loads(json.dumps(admitted(dict(config))))
    return known


def _name(key: str) -> str:
    return f"{key[:2]}/{key}.json"
