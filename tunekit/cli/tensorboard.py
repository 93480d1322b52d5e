"""How TensorBoard is started on a sweep."""

from __future__ import annotations

import importlib.util
import os
import sys

from tunekit.core.problems import Problems
from tunekit.extras import extra

__all__ = ["tensorboard_at"]


def tensorboard_at(path: str, port: int | None = None, host: str | None = None) -> list[str]:
    """Return the command that shows the experiment in a folder.

    Args:
        path: The folder, or its URI. TensorBoard reads ``s3://`` with boto3, and what fsspec has an
            implementation of; of a URI's query, such as ``?endpoint_override=``, it knows nothing.
        port: Where it listens; its own default is 6006.
        host: The address on which it listens; its own default is this machine alone.

    Raises:
        tunekit.errors.ConfigError: If TensorBoard cannot read that.
        tunekit.errors.MissingExtraError: If TensorBoard is not installed.

    Example:
        >>> tensorboard_at("/no/such/folder")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit tensorboard: PATH='/no/such/folder' is no folder...
    """
    problems = Problems("tunekit tensorboard")
    scheme, remote, _ = path.partition("://")
    if not remote and not os.path.isdir(path):
        problems.add(f"PATH={path!r} is no folder. Pass an experiment's: results.experiment_path.")
    if remote and "?" in path:
        problems.add(
            f"PATH={path!r} has a query, which TensorBoard does not know. Pass what is before the "
            "'?'; the address of an S3 server goes into the environment: S3_ENDPOINT=http://..."
        )
    if remote and scheme == "s3" and importlib.util.find_spec("boto3") is None:
        problems.add(
            f"PATH={path!r} is read by TensorBoard with boto3, which is not installed. Run "
            "pip install boto3, or pass a local copy."
        )
    problems.raise_any()
    with extra("tensorboard"):
        import tensorboard  # noqa: F401
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", path]
    command += [] if port is None else ["--port", str(port)]
    return command if host is None else [*command, "--host", host]
