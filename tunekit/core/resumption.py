"""Whether a training function that is resumed continues from its checkpoint.

A class is handed its checkpoint; a function has to ask for it. One that does not begins anew, and
its reports continue the trial's rows as if nothing had happened: they mix two runs, and a trial
that is paused again and again never ends. That is noticed when it happens (:class:`Resumption`).
"""

from __future__ import annotations

__all__ = ["HOW_TO_RESUME", "Resumption", "begins_anew"]

#: How a function goes on from its checkpoint.
HOW_TO_RESUME = """\
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            ...  # read the state from the files in folder"""


class Resumption:
    """Notices a resumed function that reports before it has asked for its checkpoint.

    Example:
        >>> resumption = Resumption()
        >>> resumption.reported()  # it was not resumed, and owes nothing
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
        """The function is about to be started, with a checkpoint to go on from."""
        self._owes = True

    def asked(self) -> None:
        """It has asked for its checkpoint."""
        self._owes, self.has_asked = False, True

    def reported(self) -> bool:
        """It has reported: True if it goes on from its checkpoint, as far as can be seen."""
        return not self._owes


def begins_anew(trial: str, iteration: int, *, get_checkpoint: str = "tune.get_checkpoint") -> str:
    """Return the error of a resumed function that did not ask for its checkpoint.

    Args:
        trial: The trial's name.
        iteration: Of the checkpoint that it was resumed from.
        get_checkpoint: How the function asks.

    Example:
        >>> print(begins_anew("train_0", 4))
        Trial train_0 was resumed from its checkpoint of iteration 4 and has reported without ...
    """
    how = HOW_TO_RESUME.replace("tune.get_checkpoint", get_checkpoint)
    return (
        f"Trial {trial} was resumed from its checkpoint of iteration {iteration} and has reported "
        f"without calling {get_checkpoint}(): it has begun anew, and its reports would mix two "
        f"runs. Begin the training function with\n{how}\n"
        f"A function that needs nothing from there calls {get_checkpoint}() and ignores what it "
        "returns. The trial has failed and is not retried; its reports and checkpoints are kept, "
        "and tunekit.Tuner.restore(..., resume_errored=True) with the fixed function goes on "
        "from them."
    )
