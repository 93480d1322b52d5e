"""How TensorBoard is started on a sweep."""

from __future__ import annotations

import importlib.util
import os
import sys

import fsspec

from tunekit.core.problems import Problems
from tunekit.extras import extra

__all__ = ["command_of"]


def command_of(path: str, port: int | None = None, host: str | None = None) -> list[str]:
    """The command that shows the experiment in a folder.

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
