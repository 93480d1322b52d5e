"""The duties of training loops: resume from their checkpoints, and stay in step.

A class receives its checkpoint, but a function has to ask for it. A function that does not ask
starts from scratch, while its reports continue the trial's rows. The rows then mix two runs, and a
trial that is paused repeatedly never ends. :class:`Resumption` detects this when it happens.

A worker group can outlive its trial: all workers leave their training loop at the same report and
begin another one, with a different configuration and checkpoint. That is an assignment. They stay
in step without communicating: after its n-th report of an assignment, a worker continues if it may
return from that report, and leaves if there is another assignment. The last report that they may
return from is the same for all, and does not move once the next assignment exists. So all leave at
the same report, the first that they may not return from.
"""

from __future__ import annotations

from enum import Enum

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
        """Return whether the report shows that the loop resumed from its checkpoint."""
        return not self._owes


def format_not_resumed(
    trial: str, iteration: int, *, get_checkpoint: str = "tune.get_checkpoint"
) -> str:
    """Return the error of a resumed function that did not ask for its checkpoint.

    Args:
        trial: The trial's name.
        iteration: The iteration of the checkpoint that it was resumed from.
        get_checkpoint: The function that returns the checkpoint.

    Example:
        >>> print(format_not_resumed("train_0", 4))
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


# The workers of a distributed trial --------------------------------------------------------------


def may_return(decided: int, ahead: int, clear: int | None = None) -> int:
    """Return the number of the last report that a worker may return from.

    Args:
        decided: The number of reports after which it is known whether the trial continues.
        ahead: How many reports beyond ``decided`` a worker may return from.
        clear: The newest report without a checkpoint; None if workers do not validate. Those
            that do wait in each report with a checkpoint, because they may have to validate it.

    Example:
        >>> may_return(decided=3, ahead=0)  # it waits in its fourth report
        3
        >>> may_return(decided=3, ahead=2)
        5
        >>> may_return(decided=3, ahead=2, clear=2), may_return(decided=3, ahead=2, clear=4)
        (3, 4)
    """
    furthest = decided + ahead
    return furthest if clear is None else max(decided, min(furthest, clear))


class WorkerAction(Enum):
    """The action of a worker that has reported."""

    CONTINUE = "continue"
    WAIT = "wait"
    LEAVE = "leave"  #: leave the training loop, for the next assignment


class WorkerInbox:
    """A worker's state: its newest assignment, and how far it may run.

    Example:
        >>> inbox = WorkerInbox()
        >>> inbox.assigned(1, upto=1)
        >>> inbox.action(1, report=1), inbox.action(1, report=2)
        (<WorkerAction.CONTINUE: 'continue'>, <WorkerAction.WAIT: 'wait'>)
        >>> inbox.allowed(1, upto=2)
        >>> inbox.assigned(2, upto=0)  # the second report may return still, the third leaves
        >>> inbox.action(1, report=2), inbox.action(1, report=3)
        (<WorkerAction.CONTINUE: 'continue'>, <WorkerAction.LEAVE: 'leave'>)
    """

    def __init__(self) -> None:
        #: The number of the newest assignment; 0 if there was none.
        self.newest = 0
        self._upto: dict[int, int] = {}

    def assigned(self, number: int, upto: int) -> None:
        """Record a new assignment, in which a worker may return from ``upto`` reports."""
        self.newest = number
        self._upto[number] = upto

    def allowed(self, number: int, upto: int) -> None:
        """Record that a worker may return from its first ``upto`` reports of an assignment.

        It has no effect after the next assignment, because a worker may already have left.
        """
        if number == self.newest:
            self._upto[number] = max(self._upto[number], upto)

    def leaves(self, number: int) -> bool:
        """Return whether a worker that has not reported leaves an assignment."""
        return number != self.newest

    def action(self, number: int, report: int) -> WorkerAction:
        """Return the action of a worker after its ``report``-th report of an assignment."""
        if report <= self._upto.get(number, 0):
            return WorkerAction.CONTINUE
        return WorkerAction.WAIT if number == self.newest else WorkerAction.LEAVE
