"""Detect training functions that do not resume from their checkpoint.

A class receives its checkpoint, but a function has to ask for it. A function that does not ask
starts from scratch, while its reports continue the trial's rows. The rows then mix two runs, and a
trial that is paused repeatedly never ends. :class:`Resumption` detects this when it happens.
"""

from __future__ import annotations

#: How a function continues from its checkpoint.
HOW_TO_RESUME = """\
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            ...  # read the state from the files in folder"""


class Resumption:
    """Detect a resumed function that reports before it has asked for its checkpoint.

    Example:
        >>> resumption = Resumption()
        >>> resumption.reported()  # it was not resumed
        True
        >>> resumption.resumed()
        >>> resumption.asked()
        >>> resumption.reported()
        True
        >>> resumption.resumed()
        >>> resumption.reported()
        False
    """

    def __init__(self) -> None:
        self._owes = False
        #: Whether it has ever asked.
        self.has_asked = False

    def resumed(self) -> None:
        """Record that the function is about to start, with a checkpoint to continue from."""
        self._owes = True

    def asked(self) -> None:
        """Record that it has asked for its checkpoint."""
        self._owes, self.has_asked = False, True

    def reported(self) -> bool:
        """Return whether it continues from its checkpoint, as far as its report shows."""
        return not self._owes


def begins_anew(trial: str, iteration: int, *, get_checkpoint: str = "tune.get_checkpoint") -> str:
    """Return the error of a resumed function that did not ask for its checkpoint.

    Args:
        trial: The trial's name.
        iteration: The iteration of the checkpoint that it was resumed from.
        get_checkpoint: The function that returns the checkpoint.

    Example:
        >>> print(begins_anew("train_0", 4))
        Trial train_0 was resumed from its checkpoint of iteration 4 and has reported without ...
    """
    how = HOW_TO_RESUME.replace("tune.get_checkpoint", get_checkpoint)
    return (
        f"Trial {trial} was resumed from its checkpoint of iteration {iteration} and has reported "
        f"without calling {get_checkpoint}(): it has started from scratch, and its reports would "
        f"mix two runs. Begin the training function with\n{how}\n"
        f"A function that needs no checkpoint calls {get_checkpoint}() and ignores what it "
        "returns. The trial has failed and is not retried; its reports and checkpoints are kept, "
        "and tunekit.Tuner.restore(..., resume_errored=True) with the fixed function continues "
        "from them."
    )
