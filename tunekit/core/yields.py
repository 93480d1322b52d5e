"""Where the workers of a validation leave its loop together, once its estimates are enough.

Each worker runs a generator, and those of one group exchange data between two yields. So all have
to leave at the same yield: one that went on alone would wait for the others for ever.

They do not ask at each yield, as they would at a report of training (:mod:`.assignments`), and so
an estimate costs them nothing. Only when it is known that no more are needed, they are held: each
worker says how many yields it has gone past, and goes past no other. When all have said so, they
leave after the greatest of these numbers, at the next yield. Nobody has gone past that, and those
that were behind still go as far. So they evaluate at most what was begun, however slow a batch is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunekit.core.assignments import Verdict

__all__ = ["GroupYields", "YieldGate", "YieldProgress"]


@dataclass(frozen=True)
class YieldProgress:
    """How far one worker has come with an assignment.

    Attributes:
        assignment: Its number.
        yielded: How often its loop has yielded.
        upto: How many yields it may go past; None as long as it is not held.
        over: Whether its loop has returned, or was left.
    """

    assignment: int
    yielded: int = 0
    upto: int | None = None
    over: bool = False


class YieldGate:
    """A worker's side: whether its loop goes on after a yield.

    Args:
        assignment: The number of the assignment.

    Example:
        >>> gate = YieldGate(1)
        >>> gate.yields()
        >>> gate.verdict()
        <Verdict.GO_ON: 'go on'>
        >>> gate.hold()
        >>> gate.yields()
        >>> gate.verdict()
        <Verdict.WAIT: 'wait'>
        >>> gate.leave(after=1)  # none has gone past more
        >>> gate.verdict()
        <Verdict.LEAVE: 'leave'>
    """

    def __init__(self, assignment: int):
        self._assignment, self._yielded = assignment, 0
        self._upto: int | None = None
        self._leaves = self._over = False

    @property
    def progress(self) -> YieldProgress:
        """Return what it has to say."""
        return YieldProgress(self._assignment, self._yielded, self._upto, self._over)

    def yields(self) -> None:
        """Note that the loop has yielded; its :meth:`verdict` has to be asked for next."""
        self._yielded += 1

    def verdict(self) -> Verdict:
        """Say what the loop does that has yielded."""
        if self._upto is None or self._yielded <= self._upto:
            return Verdict.GO_ON
        return Verdict.LEAVE if self._leaves else Verdict.WAIT

    def hold(self) -> None:
        """Let the loop go past no more yields than those that it has gone past already."""
        if self._upto is None:
            self._upto = self._yielded

    def leave(self, after: int) -> None:
        """Let the loop go past so many yields, and be left at the next one."""
        self._upto, self._leaves = after, True

    def ends(self) -> None:
        """Note that the loop has returned, or was left."""
        self._over = True


class GroupYields:
    """The side of the group: where all leave, and whether they are still together.

    Args:
        assignment: The number of the assignment; what is said of others does not count.
        workers: How many workers there are.

    Example:
        >>> group = GroupYields(assignment=1, workers=2)
        >>> group.hears({0: YieldProgress(1, yielded=4, upto=3), 1: YieldProgress(1, yielded=4)})
        >>> group.last_to_pass  # the second one has not heard that it is to hold
        >>> group.hears({1: YieldProgress(1, yielded=5, upto=4)})
        >>> group.last_to_pass  # the first one goes past one more
        4
    """

    def __init__(self, assignment: int, workers: int):
        self._assignment, self._workers = assignment, workers
        self._known: dict[int, YieldProgress] = {}

    def hears(self, said: Mapping[int, YieldProgress]) -> None:
        """Take what workers say, by rank; not all of them say something each time."""
        own = {rank: one for rank, one in said.items() if one.assignment == self._assignment}
        self._known.update(own)

    @property
    def last_to_pass(self) -> int | None:
        """Return the number of the last yield that a worker goes past; None until all are held."""
        held = [one.upto for one in self._known.values() if one.upto is not None]
        return max(held) if len(held) == self._workers else None

    @property
    def some_over(self) -> bool:
        """Return whether the loop of a worker has ended."""
        return any(one.over for one in self._known.values())

    @property
    def uneven(self) -> str | None:
        """Return why the workers cannot leave together any more; None if they can.

        A loop that has returned cannot be at the same yield as one that has yielded more often.

        Example:
            >>> group = GroupYields(assignment=1, workers=2)
            >>> group.hears({0: YieldProgress(1, yielded=3), 1: YieldProgress(1, 2, over=True)})
            >>> group.uneven.partition(".")[0]
            'the loop of rank 1 has ended after 2 yields, and that of rank 0 has yielded 3 times'
        """
        ended = {rank: one.yielded for rank, one in self._known.items() if one.over}
        if not ended:
            return None
        least = min(ended, key=ended.__getitem__)
        most = max(self._known, key=lambda rank: self._known[rank].yielded)
        if self._known[most].yielded <= ended[least]:  # the others may still come as far
            return None
        return (
            f"the loop of rank {least} has ended after {_counted(ended[least])}, and that of rank "
            f"{most} has yielded {_times(self._known[most].yielded)}. All workers must yield "
            "equally often, because they leave the loop together. Give each the same number of "
            "batches: DistributedSampler does, or let a worker without data yield all the same."
        )


def _counted(number: int) -> str:
    return f"{number} yield{'s' * (number != 1)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
