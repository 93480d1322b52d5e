"""A folder of scores, each by what it was computed from, that sweeps may share.

In a running sweep, the process that validates a checkpoint looks its score up first
(:class:`Lookup`): it is about to read the checkpoint anyway, while the driver has a sweep to
conduct. The driver writes the scores, as it alone knows which values are scores.

What counts is the content of a checkpoint, the function's and its arguments' fingerprint
(:mod:`tunekit.validating.fingerprint`), and the hyperparameters, for which a function may ask. The
place of a checkpoint, and its sweep, do not count.

An entry is one small file of JSON, written as a whole. Two processes that write the same one write
the same. Nothing in it is ever unpickled, so that a folder may be shared with people who may write
there; what JSON does not know is a text, as in :func:`tunekit.load`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs

from tunekit._ray.storage import storage_at
from tunekit.core.sequential import gathered, recordable, resumable
from tunekit.core.validation import Outcome
from tunekit.core.values import as_json, reader, written
from tunekit.errors import ConfigError
from tunekit.journal.storage import Folder, folder_at
from tunekit.validating.fingerprint import fingerprint
from tunekit.version import VERSION

__all__ = ["FunctionMark", "Lookup", "SweepCache", "ValidationCache", "digest_of"]

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
            config: The hyperparameters that the checkpoint was trained with: as they are, or as a
                journal has them.
        """
        parts = [_FORMAT, digest, fingerprint, written(_as_recorded(config), keys=False)]
        return hashlib.sha256(as_json(parts, sort_keys=True).encode()).hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the metrics of a score; None if there are none, or they cannot be read."""
        entry = self._entry(key)
        return None if entry is None else entry["metrics"]

    def get_evaluated(self, key: str) -> dict[str, Any] | None:
        """Return what a score was made from: the metrics, with the estimates among them.

        An interval that was computed for one sweep, with its confidence, is not another one's.
        """
        entry = self._entry(key)
        if entry is None:
            return None
        try:
            return gathered(entry["metrics"], resumable(entry.get("estimates") or {}))
        except (ConfigError, KeyError, TypeError, AttributeError, IndexError) as error:
            self._complain(f"{_name(key)} cannot be read", error)
            return None

    def _entry(self, key: str) -> dict[str, Any] | None:
        name = _name(key)
        try:
            entry = json.loads(self._folder.read(name), object_hook=reader())
            return entry if isinstance(entry["metrics"], dict) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._complain(f"{name} cannot be read", error)
            return None

    def keep(self, key: str, outcome: Outcome, function: str) -> None:
        """Keep the score of a validation that has run to its end.

        Args:
            key: Its name.
            outcome: How the validation ended.
            function: The name of its function, for people who look into the folder.
        """
        about: dict[str, Any] = {"function": function}
        if outcome.request.known:
            about["estimates"] = recordable(outcome.request.known)
        self.put(key, outcome.metrics, **about)

    def put(self, key: str, metrics: Mapping[str, Any], **about: Any) -> None:
        """Keep a score; if that fails, nothing but a message comes of it.

        Args:
            key: Its name.
            metrics: The metrics.
            **about: What else to write.
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


def _as_recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as a journal gives them back: objects are texts there."""
    known: dict[str, Any] = json.loads(as_json(written(dict(config))), object_hook=reader())
    return known


class FunctionMark:
    """What tells a validation function with its arguments from others in the names of scores.

    Args:
        fn: The function.

    Example:
        >>> mark, same = FunctionMark(digest_of), FunctionMark(digest_of)
        >>> mark.of({"n": 1}) == same.of({"n": 1}), mark.of({"n": 1}) == mark.of({"n": 2})
        (True, False)
        >>> FunctionMark(x for x in "abc").of({}) is None  # it cannot be told from others
        True
    """

    def __init__(self, fn: Any):
        self._fn = fn

    @functools.cached_property
    def _own(self) -> str | None:
        return fingerprint(self._fn)

    def of(self, kwargs: Mapping[str, Any]) -> str | None:
        """Return the mark of calls with these keyword arguments; None if there is none."""
        given = fingerprint(sorted(kwargs.items()))
        if self._own is None or given is None:
            return None
        return hashlib.sha256(f"{self._own} {given}".encode()).hexdigest()


@dataclass(frozen=True)
class Lookup:
    """Where the process that validates a checkpoint looks for its score. It travels there.

    Attributes:
        cache: The folder or URI of the cache.
        mark: That of the function and its arguments.
    """

    cache: str
    mark: str

    def find(
        self, checkpoint: Any, config: Mapping[str, Any]
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Return the name of the score, and what it was made from, if it is there.

        Whatever goes wrong: the checkpoint is validated then.

        Args:
            checkpoint: The checkpoint; all of it is read.
            config: The hyperparameters that it was trained with.
        """
        try:
            cache = _opened(self.cache)
            digest = digest_of(checkpoint.filesystem, checkpoint.path)
            key = cache.key(digest, self.mark, config)
            return key, cache.get_evaluated(key)
        except Exception as error:  # of storages, and of what a checkpoint's filesystem may be
            logger.warning(
                "A score was not looked up in the cache %s: %s: %s",
                self.cache,
                type(error).__name__,
                error,
            )
            return None, None


@functools.lru_cache(maxsize=8)
def _opened(cache: str) -> ValidationCache:
    """Return the cache; a process that validates looks into the same one again and again."""
    return ValidationCache.at(cache)


class SweepCache:
    """A running sweep's side of a cache. Nothing that goes wrong with it harms the sweep.

    Args:
        where: The folder or URI.
    """

    def __init__(self, where: str):
        self._where = where
        self._cache: ValidationCache | None = None
        self._works = True

    def lookup(self, mark: FunctionMark, kwargs: Mapping[str, Any]) -> Lookup | None:
        """Return where the score of a call with these arguments is looked for; None: nowhere."""
        own = mark.of(kwargs)
        return None if own is None else Lookup(self._where, own)

    def keep(self, key: str, outcome: Outcome, function: str) -> None:
        """Keep a score; see :meth:`ValidationCache.keep`."""
        if self._cache is None and self._works:
            try:
                self._cache = ValidationCache.at(self._where)
            except (OSError, ValueError) as error:
                self._works = False
                logger.warning(
                    "No scores are kept in the cache %s: %s: %s. The sweep goes on without it.",
                    self._where,
                    type(error).__name__,
                    error,
                )
        if self._cache is not None:
            self._cache.keep(key, outcome, function)

    def close(self) -> None:
        """Write what waits to be written."""
        if self._cache is not None:
            cache, self._cache = self._cache, None
            cache.close()


def _name(key: str) -> str:
    return f"{key[:2]}/{key}.json"
