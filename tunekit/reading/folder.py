"""Reads a sweep's folder: the journal, the driver's lock, later validations, trials' errors."""

from __future__ import annotations

import gc
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow.fs

from tunekit._ray.storage import absolute, storage_at
from tunekit.core.problems import Problems
from tunekit.core.seeds import check_known, check_seed
from tunekit.core.timeline import TrialSummary
from tunekit.evaluation.later import read_sessions
from tunekit.journal.experiments import no_sweep
from tunekit.journal.lines import SERIES, record_of
from tunekit.journal.lock import driver_of
from tunekit.journal.storage import folder_at

__all__ = ["UNTOLD", "read_sweep", "read_trial_errors"]

#: Lines of the journal that no table needs.
UNTOLD = ("saved", "snapshot")

_TRIAL_ERROR = "error.txt"  # Tune writes this into the folder of a failed trial
# Its end has the last failure.
_MOST_ERROR_BYTES = 64 * 1024


class _WithTrials(Protocol):
    """What is made from what was read."""

    def hyperparameters(self) -> list[dict[str, Any]]:
        """Return each trial's hyperparameters by flat name."""


_Sweep = TypeVar("_Sweep", bound=_WithTrials)


def read_sweep(
    make: Callable[..., _Sweep],
    path: str | Path,
    storage_filesystem: pyarrow.fs.FileSystem | None = None,
    *,
    metric: str | None = None,
    mode: str | None = None,
    seed: str | None = None,
) -> _Sweep:
    """Read what became of a sweep; see :func:`tunekit.load`.

    Args:
        make: Makes a sweep, as :class:`tunekit.Sweep` does.
        path: As for :func:`tunekit.load`, like all others.
        storage_filesystem: See there.
        metric: See there.
        mode: See there.
        seed: See there.

    Raises:
        tunekit.ConfigError: If an argument is wrong, if the folder has no journal, or if no trial
            has the hyperparameter ``seed``.
        tunekit.JournalError: If the journal is damaged or of another version.
        OSError: If the storage fails.

    Example:
        >>> read_sweep(dict, "/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.load: path='/no/such/folder' does not exist...
    """
    problems = Problems("tunekit.load")
    folder, home, filesystem = None, "", None
    if problems.instance("path", path, (str, os.PathLike), "Pass an experiment's folder."):
        try:
            filesystem, home = storage_at(os.fspath(path), storage_filesystem)
            folder = folder_at(filesystem, home)
        except (OSError, ValueError) as error:
            problems.add(
                f"path={os.fspath(path)!r} cannot be reached: {error}. Pass a local path, or a URI "
                "of a storage that pyarrow knows, such as s3://bucket/digits."
            )
    if folder is not None and filesystem is not None and not folder.names(SERIES):
        given = os.fspath(path)
        problems.add(f"path={given!r} {no_sweep(filesystem, home, given)}")
    if mode is not None:
        problems.choice("mode", mode, ["min", "max"])
    check_seed(seed, problems)
    problems.raise_any()
    assert folder is not None and filesystem is not None  # or it was raised
    source = None if storage_filesystem is not None else absolute(os.fspath(path))
    where: dict[str, Any] = {"path": home, "filesystem": filesystem, "source": source}
    with _without_collector():
        before = driver_of(filesystem, home, time.time())
        record = record_of(folder, without=UNTOLD)
        driver = driver_of(filesystem, home, time.time())
        if before is not None and driver is None:
            # It has let go meanwhile, and recorded first how the sweep ended.
            record = record_of(folder, without=UNTOLD)
        known = {**where, "metric": metric, "mode": mode, "seed": seed, "driver": driver}
        known["later"] = read_sessions(folder)
        sweep = make(record.events, record.sessions, **known)
    if seed is not None:
        check_known(seed, sweep.hyperparameters(), problems)
        problems.raise_any()
    return sweep


def read_trial_errors(
    filesystem: pyarrow.fs.FileSystem, path: str, trials: Iterable[TrialSummary]
) -> dict[str, str]:
    """Return what Tune recorded of the failures of failed trials, by trial.

    Args:
        filesystem: The storage that the sweep is in.
        path: The experiment's folder there.
        trials: The trials.

    Returns:
        By trial: the end of the file in which Tune has recorded them; or why it cannot be read.

    Example:
        >>> read_trial_errors(pyarrow.fs.LocalFileSystem(), "/sweep", [TrialSummary("a")])
        {}
    """
    folder, found = folder_at(filesystem, path), {}
    for story in trials:
        if story.failures:
            name = posixpath.join(story.folder, _TRIAL_ERROR)
            try:
                text = folder.end_of(name, _MOST_ERROR_BYTES).decode(errors="replace").strip()
            except FileNotFoundError:
                continue
            except OSError as error:
                text = f"{name} cannot be read: {error}"
            found[story.trial_id] = text
    return found


@contextmanager
def _without_collector() -> Iterator[None]:
    """Suspend garbage collection: where many objects are made and kept, it takes half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
