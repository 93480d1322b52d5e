"""The queue of a trial: its reports that Tune has not processed, in order.

Tune gets a report once its validation has ended, after all older ones of its trial. Meanwhile the
trial trains on, stands still or lends its place: :func:`what_next`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

#: The values of ``ValidationConfig(on_pending=...)``.
ON_PENDING = ("auto", "wait", "continue")


@dataclass(eq=False)
class Entry:
    """A report that Tune has not processed, or the failure of the trial.

    Attributes:
        report: What the trial has reported; empty for a failure.
        failure: The error that the trial has failed with.
        iteration: The training iteration of the report.
        validated: Whether its checkpoint is to be validated.
        serves: What its score will serve in the scheduler's internal state; None if nothing.
        last: Whether the trial ends with it, so that it does not train on.
        checkpoint: The checkpoint that was saved at the report; opaque here.
        metrics: The metrics of its validation; None until that has ended with a score.
        may_be_last: Whether its checkpoint is validated only if the trial ends with it, which the
            next report decides.
        saving: Whether the checkpoint is still to come.
        scoring: Whether the end of the validation is still to come.
        offered: Whether the scheduler has got its checkpoint, and may clone it later.
    """

    report: Mapping[str, Any] = field(default_factory=dict)
    failure: Any = None
    iteration: int = 0
    validated: bool = False
    serves: float | None = None
    last: bool = False
    checkpoint: Any = None
    metrics: Mapping[str, Any] | None = None
    may_be_last: bool = False
    saving: bool = False
    scoring: bool = False
    offered: bool = False

    @property
    def complete(self) -> bool:
        """Return whether nothing of it is still to come."""
        return not (self.saving or self.scoring or self.may_be_last)


class Queue:
    """The reports of a trial that Tune has not processed.

    Example:
        >>> queue = Queue()
        >>> first, second = Entry(iteration=1, scoring=True), Entry(iteration=2)
        >>> queue.add(first), queue.add(second)
        (None, None)
        >>> queue.take() is None  # the second waits for the first
        True
        >>> first.scoring = False
        >>> [queue.take().iteration, queue.take().iteration, queue.take()]
        [1, 2, None]
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def add(self, entry: Entry) -> None:
        """Add what a trial has reported last."""
        self._entries.append(entry)

    def fail(self, failure: Any, *, restarts: bool) -> list[Entry]:
        """Add the trial's failure; return the newest reports, whose checkpoints it has lost.

        A trial that restarts runs these iterations again. One that does not keeps them.
        """
        lost = []
        while restarts and self._entries and self._entries[-1].saving:
            lost.append(self._entries.pop())
        for entry in self._entries:
            entry.saving = False
        if restarts:
            self.settle()
        self.add(Entry(failure=failure, last=True))
        return lost

    def settle(self) -> None:
        """Take note that none of the reports is the trial's last one."""
        for entry in self._entries:
            entry.may_be_last = False

    def take(self) -> Entry | None:
        """Remove and return the oldest entry if it is complete; otherwise return None."""
        if not self._entries or not self._entries[0].complete:
            return None
        return self._entries.popleft()

    def drop(self) -> list[Entry]:
        """Remove and return all entries: a decision on an older one has made them void."""
        dropped = list(self._entries)
        self._entries.clear()
        return dropped

    @property
    def over(self) -> bool:
        """Return whether the trial has ended or failed, so that it does not train on."""
        return bool(self._entries) and self._entries[-1].last

    @property
    def resumable(self) -> bool:
        """Return whether the trial could resume where it stands: its newest report is saved."""
        return bool(self._entries) and self._entries[-1].checkpoint is not None

    @property
    def saves(self) -> bool:
        """Return whether a report is being saved, so that the trial will be resumable."""
        return any(entry.saving for entry in self._entries)

    @property
    def failed(self) -> bool:
        """Return whether the trial has failed, so that its process is of no use."""
        return bool(self._entries) and self._entries[-1].failure is not None

    @property
    def decisions(self) -> int:
        """Return how many scores are pending that the scheduler decides by."""
        if all(entry.complete for entry in self._entries):
            return 0  # they wait for the first score of the sweep
        return sum(entry.serves is not None for entry in self._entries)

    def coming(self, before: float) -> list[float]:
        """Return what the pending scores of iterations below ``before`` will serve."""
        return [
            entry.serves
            for entry in self._entries
            if entry.serves is not None and entry.iteration < before
        ]


class Next(Enum):
    """What a trial does next."""

    TRAIN = "train"  #: its next iteration
    STAND = "stand"  #: nothing, in its process
    LEND = "lend"  #: nothing; another trial or a validation has its place meanwhile


def what_next(
    queue: Queue,
    on_pending: str,
    *,
    each: bool = False,
    costs_nothing: bool = False,
    decides_again: Callable[[], bool] = lambda: True,
    lends: bool = False,
    others: bool = False,
    hedges: bool = False,
) -> Next:
    """Return what a trial does while reports of it wait for their scores.

    No trial trains past the point where its next decision is due while an older one is pending: if
    that is a STOP, the training is lost, and adds checkpoints to validate. If no further decision
    is due, the pending one is the trial's last, for example at ``max_t``.

    With ``"auto"``, it waits for scores that decide if something uses its process or its place
    meanwhile, because waiting then costs nothing.

    Args:
        queue: The trial's queue.
        on_pending: As for :class:`tunekit.ValidationConfig`.
        each: Whether it waits for each score, as with inline validation.
        costs_nothing: Whether its process or place can be used while it waits: by its own
            validation, or by another trial.
        decides_again: Returns whether the scheduler can use the score of a later report of the
            trial. It is called only if the result depends on it.
        lends: Whether it can lend its place and be resumed later.
        others: Whether something waits for its place.
        hedges: Whether, with ``"auto"``, it trains on nevertheless, because nothing can use its
            place now.

    Example:
        >>> queue = Queue()
        >>> what_next(queue, "wait", each=True)
        <Next.TRAIN: 'train'>
        >>> queue.add(Entry(iteration=1, scoring=True, validated=True, serves=1.0))
        >>> [what_next(queue, how) for how in ("continue", "auto")]
        [<Next.TRAIN: 'train'>, <Next.TRAIN: 'train'>]
        >>> what_next(queue, "auto", costs_nothing=True, lends=True, others=True)
        <Next.LEND: 'lend'>
        >>> queue.add(Entry(iteration=3, scoring=True, validated=True, serves=3.0))
        >>> what_next(queue, "continue")
        <Next.STAND: 'stand'>
    """
    if not queue.over:
        decisions = queue.decisions
        if each:
            stands = any(entry.validated and not entry.complete for entry in queue)
        elif on_pending == "auto" and costs_nothing:
            stands = decisions > 0 and not (hedges and decisions == 1 and decides_again())
        else:
            stands = decisions > 1 or (decisions == 1 and not decides_again())
        if not stands:
            return Next.TRAIN
    return Next.LEND if lends and others else Next.STAND


def pays_for_a_start(wait_s: float | None, start_s: float | None) -> bool:
    """Return whether a trial releases its resources to a trial that needs another process.

    The other trial has to start a process in any case. This trial has to start a second one, unless
    its score ends it: so releasing pays only if it waits for longer than a start takes.

    Args:
        wait_s: The seconds for which it will still wait; None if unknown.
        start_s: The seconds that a trial takes to start; None if unknown.

    Example:
        >>> pays_for_a_start(10.0, 3.0), pays_for_a_start(2.0, 3.0), pays_for_a_start(None, 3.0)
        (True, False, False)
    """
    return wait_s is not None and start_s is not None and wait_s > start_s
