"""How TensorBoard is started on a sweep."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import fsspec

from tunekit.core.problems import Problems
from tunekit.core.words import short_names
from tunekit.extras import extra
from tunekit.journal.lines import SERIES

__all__ = ["command_of", "has_links", "is_local_sweep", "run_names", "show_linked"]

# How often trials are looked for that have been added since.
_LOOK_AGAIN_S = 5.0

# Tune's id of a trial in the name of its folder: an experiment's part, and a number.
_TRIAL_ID = re.compile(r"(?:^|_)([0-9a-f]{5,8}_[0-9]{5,})(?=_|$)")


def command_of(path: str, port: int | None = None, host: str | None = None) -> list[str]:
    """Return the command that shows the experiment in a folder.

    Args:
        path: The folder, or its URI. TensorBoard reads ``s3://`` with boto3, and what fsspec has an
            implementation of; of a URI's query, such as ``?endpoint_override=``, it knows nothing.
        port: Where it listens; its own default is 6006.
        host: The address on which it listens; its own default is this machine alone.

    Raises:
        tunekit.ConfigError: If TensorBoard cannot read that.
        tunekit.MissingExtraError: If TensorBoard is not installed.

    Example:
        >>> command_of("/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit tensorboard: PATH='/no/such/folder' is no folder...
    """
    problems = Problems("tunekit tensorboard")
    scheme, remote, _ = path.partition("://")
    if not remote:
        if not os.path.isdir(path):
            problems.add(
                f"PATH={path!r} is no folder. Pass an experiment's: results.experiment_path."
            )
    elif "?" in path:
        problems.add(
            f"PATH={path!r} has a query, which TensorBoard does not know. Pass what is before the "
            "'?'; the address of an S3 server goes into the environment: S3_ENDPOINT=http://..."
        )
    elif scheme == "s3":
        if importlib.util.find_spec("boto3") is None:
            problems.add(
                f"PATH={path!r} is read by TensorBoard with boto3, which is not installed. Run "
                "pip install boto3, or pass a local copy."
            )
    else:
        problems.attempt(
            lambda: fsspec.get_filesystem_class(scheme),
            lambda error: (
                f"PATH={path!r} is not of a storage that TensorBoard can read here: {error}. "
                "Install what fsspec needs for it, or pass a local copy."
            ),
        )
    problems.raise_any()
    with extra("tensorboard"):
        import tensorboard  # noqa: F401
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", path]
    command += [] if port is None else ["--port", str(port)]
    command += [] if host is None else ["--host", host]
    return command


def is_local_sweep(path: str) -> bool:
    """Return whether a path is a sweep's folder on this machine."""
    return os.path.isdir(os.path.join(path, SERIES))


def has_links() -> bool:
    """Return whether folders can be linked here; Windows may not let a user."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.symlink(folder, os.path.join(folder, "link"), True)
        except OSError:
            return False
    return True


def run_names(folders: Collection[str]) -> dict[str, str]:
    """Return what runs are called in TensorBoard, by the names of the trials' folders.

    Tune names a folder after the trial, its hyperparameters and the time. The trial's number is
    enough, where numbers tell all of them apart; a name in which there is no trial's id stays.

    Example:
        >>> run_names(["train_8e906_00000_0_lr=0.1_2026-11-22", "train_8e906_00001_1_lr=0.2_2026"])
        {'train_8e906_00000_0_lr=0.1_2026-11-22': '00000',
         'train_8e906_00001_1_lr=0.2_2026': '00001'}
        >>> run_names(["trial-one"])
        {'trial-one': 'trial-one'}
    """
    ids = {name: found[1] for name in folders if (found := _TRIAL_ID.search(name))}
    if len(set(ids.values())) < len(ids):
        ids = {}
    short = short_names(list(ids.values()))
    return {name: short[ids[name]] if name in ids else name for name in folders}


def show_linked(path: str, command_of: Callable[[str], list[str]]) -> int:
    """Show a sweep of this machine under short names of its runs, until TensorBoard ends.

    TensorBoard names a run by its folder; so it is shown a folder with links to those of trials.
    Trials that are added meanwhile get theirs.

    Args:
        path: The sweep's folder.
        command_of: Returns the command that shows a folder.

    Returns:
        Its exit code.
    """
    with tempfile.TemporaryDirectory(prefix="tunekit-tensorboard-") as folder:
        links: dict[str, str] = {}
        _link(path, folder, links)
        process = subprocess.Popen(command_of(folder))
        former = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return _watched(process, lambda: _link(path, folder, links))
        finally:
            signal.signal(signal.SIGTERM, former)
            process.terminate()  # nothing, if it has ended
            process.wait()


def _watched(process: subprocess.Popen[bytes], refresh: Callable[[], None]) -> int:
    try:
        while True:
            try:
                return process.wait(_LOOK_AGAIN_S)
            except subprocess.TimeoutExpired:
                with suppress(OSError):  # the folder is gone, or cannot be read: it stays
                    refresh()
    except KeyboardInterrupt:  # which it gets, too
        return process.wait()


def _link(path: str, folder: str, links: dict[str, str]) -> None:
    """Link the folders of trials that have no link yet; ``links`` has the others."""
    names = run_names(_trials_in(path))
    for trial, name in names.items():
        if links.get(trial) == name:
            continue
        if trial in links:  # another one is called the same since
            os.unlink(os.path.join(folder, links[trial]))
        os.symlink(os.path.join(path, trial), os.path.join(folder, name), True)
        links[trial] = name


def _trials_in(path: str) -> Sequence[str]:
    return sorted(
        entry.name for entry in Path(path).iterdir() if entry.is_dir() and entry.name != SERIES
    )
