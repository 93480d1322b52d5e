"""States of class trainables: the dicts that ``save_checkpoint`` returns."""

from __future__ import annotations

from typing import Any

import pyarrow.fs
from ray import train, tune

from tunekit._ray.checkpoints import saved_dict
from tunekit.core.problems import Problems
from tunekit.errors import ConfigError

__all__ = ["load_state"]


def load_state(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    """Return the dict that a class trainable's ``save_checkpoint`` returned.

    Tune itself writes such a dict into the checkpoint's folder, as a pickle; a validation function
    reads it with ``load_state``. Reading a pickle can run arbitrary code, so read only what you
    trust.

    Args:
        checkpoint: The checkpoint that a validation function gets, or
            ``tunekit.load(path).best().checkpoint``.

    Raises:
        tunekit.ConfigError: If it is not a checkpoint, or if ``save_checkpoint`` wrote files
            instead; the message lists them.
        OSError: If the storage fails.

    Example:
        >>> import tunekit
        >>> def validate(checkpoint):
        ...     state = tunekit.load_state(checkpoint)  # what save_checkpoint returned
        ...     return {"accuracy": state["correct"] / state["seen"]}
    """
    problems = Problems("tunekit.load_state")
    fix = "Pass the checkpoint that a validation function gets."
    problems.instance("checkpoint", checkpoint, train.Checkpoint, fix)
    problems.raise_any()
    state = saved_dict(checkpoint)
    if state is None:
        selector = pyarrow.fs.FileSelector(checkpoint.path, allow_not_found=True)
        names = sorted(info.base_name for info in checkpoint.filesystem.get_file_info(selector))
        problem = (
            f"the checkpoint {checkpoint.path} has no dict that save_checkpoint returned. It holds "
            f"{', '.join(names) or 'nothing'}. Read files with checkpoint.as_directory()."
        )
        raise ConfigError("tunekit.load_state", [problem])
    return state
