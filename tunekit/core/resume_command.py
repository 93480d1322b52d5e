"""How a user goes on with a sweep: the exact words."""

from __future__ import annotations

import shlex

__all__ = ["how_to_resume"]


def how_to_resume(path: str, trainable: str | None, *, own_filesystem: bool = False) -> str:
    """Return the command, and the line of Python, that go on with a sweep.

    Args:
        path: The sweep's folder, a local path or a URI.
        trainable: Where the trainable can be imported from, ``"module:name"``, or None.
        own_filesystem: Whether ``path`` is in a filesystem that the user passed; the command line
            does not reach that.

    Example:
        >>> print(how_to_resume("/results/digits", "train:train_digits"))
            tunekit resume /results/digits
        or, in Python:
            tunekit.Tuner.restore("/results/digits", train_digits).fit()
        >>> print(how_to_resume("/my results/digits", None))
            tunekit resume '/my results/digits' --trainable FILE.py:NAME
        or, in Python:
            tunekit.Tuner.restore("/my results/digits", trainable).fit()
        >>> print(how_to_resume("bucket/digits", None, own_filesystem=True))
            tunekit.Tuner.restore("bucket/digits", trainable, storage_filesystem=filesystem).fit()
    """
    name = "trainable" if trainable is None else trainable.rsplit(":", 1)[-1]
    also = ", storage_filesystem=filesystem" if own_filesystem else ""
    quoted = '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
    python = f"    tunekit.Tuner.restore({quoted}, {name}{also}).fit()"
    if own_filesystem:
        return python
    command = f"    tunekit resume {shlex.quote(path)}"
    command += " --trainable FILE.py:NAME" if trainable is None else ""
    return f"{command}\nor, in Python:\n{python}"
