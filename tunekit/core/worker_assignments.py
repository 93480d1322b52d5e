"""What the workers of a distributed trial work on, and how far they may run ahead.

A worker group can outlive its trial: at a report all workers leave their training loop together
and begin another one, with another configuration and checkpoint. That is an assignment. They stay
together without a word among themselves: after its n-th report of an assignment a worker goes on
if it may return from that report, and leaves if another assignment is there. The permission to
return is the same for all of them and is not raised after the next assignment was given, so that
all leave at the same report, the first that they may not return from.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

__all__ = ["WorkerAction", "WorkerInbox", "abandoned", "may_return"]


def may_return(decided: int, ahead: int, clear: int | None = None) -> int:
    """Return the number of the last report that a worker may return from.

    Args:
        decided: Of how many reports it is known what becomes of the trial.
        ahead: How many more a worker may return from before that is known.
        clear: The newest report that has no checkpoint, if workers wait in those that have one:
            they may be asked to validate it.

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
    """What a worker does that has reported."""

    GO_ON = "go on"
    WAIT = "wait"
    LEAVE = "leave"  #: leave the training loop, for the next assignment


class WorkerInbox:
    """A worker's side: which assignment is the newest, and how far it may run.

    Example:
        >>> inbox = WorkerInbox()
        >>> inbox.assigned(1, upto=1)
        >>> inbox.action(1, report=1), inbox.action(1, report=2)
        (<WorkerAction.GO_ON: 'go on'>, <WorkerAction.WAIT: 'wait'>)
        >>> inbox.allowed(1, upto=2)
        >>> inbox.assigned(2, upto=0)  # the second report may return still, the third leaves
        >>> inbox.action(1, report=2), inbox.action(1, report=3)
        (<WorkerAction.GO_ON: 'go on'>, <WorkerAction.LEAVE: 'leave'>)
    """

    def __init__(self) -> None:
        #: The number of the newest assignment; 0 if there was none.
        self.newest = 0
        self._upto: dict[int, int] = {}

    def assigned(self, number: int, upto: int) -> None:
        """There is a new assignment, in which a worker may return from ``upto`` reports."""
        self.newest = number
        self._upto[number] = upto

    def allowed(self, number: int, upto: int) -> None:
        """In an assignment a worker may return from its reports up to that one.

        What comes after the next assignment is too late: some worker may have left already.
        """
        if number == self.newest:
            self._upto[number] = max(self._upto[number], upto)

    def action(self, number: int, report: int) -> WorkerAction:
        """Say what a worker does that has made its ``report``-th report of an assignment."""
        if report <= self._upto.get(number, 0):
            return WorkerAction.GO_ON
        return WorkerAction.WAIT if number == self.newest else WorkerAction.LEAVE


def abandoned(there: Collection[str], token: str, taken: Collection[str]) -> list[str]:
    """Return which uploaded checkpoints nobody knows of.

    Workers may have run ahead of what was decided, or have died while they uploaded.

    Args:
        there: The names in the trial's directory.
        token: What the names of those end with that the assignment has uploaded.
        taken: The names of those that the trial has handed over.

    Example:
        >>> there = ["checkpoint_1-aa", "checkpoint_2-aa", "checkpoint_2-bb", "result.json"]
        >>> abandoned(there, "aa", taken=["checkpoint_1-aa"])
        ['checkpoint_2-aa']
    """
    own = (name for name in there if name.endswith(f"-{token}"))
    return sorted(name for name in own if name not in taken)
