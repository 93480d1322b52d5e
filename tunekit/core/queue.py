"""The queue of a trial: its reports that Tune has not processed, in order.

Tune gets a report once its validation has ended, after all older ones of its trial. Meanwhile the
trial trains on, waits, or releases its slot: :func:`what_next`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, NamedTuple

from tunekit.core.report import Report, Stage, Wants


class Queue(deque[Report]):
    """The reports of a trial that Tune has not processed, the oldest first.

    Example:
        >>> queue = Queue()
        >>> first, second = Report(iteration=1, saves=True), Report(iteration=2)
        >>> queue.extend([first, second])
        >>> queue.take() is None  # the second waits for the first
        True
        >>> first.saved("checkpoint")
        >>> [queue.take().iteration, queue.take().iteration, queue.take()]
        [1, 2, None]
    """

    def fail(self, failure: Any, *, restarts: bool) -> list[Report]:
        """Add the trial's failure; return the newest reports, whose checkpoints it has lost.

        A trial that restarts runs these iterations again. One that does not keeps them.
        """
        void = []
        while restarts and self and self[-1].stage is Stage.SAVING:
            void.append(self.pop())
        for report in self:
            if report.stage is Stage.SAVING:
                report.lost()
        if restarts:
            self.continues()
        self.append(Report(failure=failure, last=True))
        return void

    def continues(self) -> None:
        """Record that none of the reports is the trial's last one."""
        for report in self:
            report.continued()

    def take(self) -> Report | None:
        """Remove and return the oldest report if nothing is still to come; otherwise, None."""
        return self.popleft() if self and self[0].stage is Stage.READY else None

    @property
    def undecided(self) -> Report | None:
        """Return the report that is validated only if the trial ends with it; None if none is."""
        return next((report for report in self if report.wants is Wants.SCORE_IF_LAST), None)

    @property
    def over(self) -> bool:
        """Return whether the trial has ended or failed, so that it does not train on."""
        return bool(self) and self[-1].last

    @property
    def resumable(self) -> bool:
        """Return whether the trial could resume from its newest report, which is saved."""
        return bool(self) and self[-1].checkpoint is not None

    @property
    def saves(self) -> bool:
        """Return whether a report is being saved, after which the trial will be resumable."""
        return any(report.stage is Stage.SAVING for report in self)

    @property
    def failed(self) -> bool:
        """Return whether the trial has failed, so that its process is useless."""
        return bool(self) and self[-1].failure is not None

    @property
    def decisions(self) -> int:
        """Return the number of pending scores that the scheduler will use."""
        if all(report.stage is Stage.READY for report in self):
            return 0  # they wait for the first score of the sweep
        return sum(report.decision_point is not None for report in self)

    def pending_points(self, before: float) -> list[float]:
        """Return what the pending scores of iterations below ``before`` will fill."""
        return [
            report.decision_point
            for report in self
            if report.decision_point is not None and report.iteration < before
        ]


class Next(Enum):
    """What a trial does next."""

    TRAIN = "train"  #: its next iteration
    WAIT = "wait"  #: nothing, in its process
    RELEASE = "release"  #: nothing; another trial or a validation has its slot meanwhile


class Process(Enum):
    """What a trial's process is needed for, and whether it stays."""

    FREE = "free"  #: the trial may train in it
    VALIDATES = "validates"  #: a validation runs in it
    ENDED = "ended"  #: it has ended with a validation
    LEAVES = "leaves"  #: it must end: its node or the trial does, or a validation needs its slot


class Wait(NamedTuple):
    """How long a trial waits for a score that is computed elsewhere, and what follows.

    Attributes:
        wait_s: The seconds that the validation will run (:meth:`tunekit.core.pool.Pool.wait_s`).
        late_s: How many seconds later it begins than in the trial's process
            (:class:`tunekit.core.timing.Durations`).
        start_s: The seconds that a trial's process takes to start
            (:class:`tunekit.core.timing.StartTimes`).
        iteration_s: The seconds that an iteration takes (the same).
        continues: The share of the scheduler's decisions after which trials continued.

    All are measured in the sweep; None where nothing was measured yet.

    Example:
        >>> Wait(10.0, start_s=4.0).pays_to_release, Wait(3.0, start_s=4.0).pays_to_release
        (True, False)
        >>> Wait(3.0, start_s=4.0, continues=0.5).pays_to_release
        True
        >>> [Wait(4.0, iteration_s=s, continues=0.5).pays_to_train for s in (3.0, 7.0, 9.0)]
        [True, True, False]
        >>> Wait(4.0, late_s=5.0, iteration_s=3.0, continues=0.5).pays_to_train
        False
    """

    wait_s: float | None = None
    late_s: float = 0.0
    start_s: float | None = None
    iteration_s: float | None = None
    continues: float = 1.0

    @property
    def pays_to_release(self) -> bool:
        """Return whether the trial releases its resources to one that needs another process.

        The other trial has to start a process in any case. This trial has to start a second one, if
        it continues.
        """
        if self.wait_s is None or self.start_s is None:
            return False
        return self.wait_s + self.late_s > self.continues * self.start_s

    @property
    def pays_to_train(self) -> bool:
        """Return whether the trial trains another iteration instead of waiting.

        If it does not continue, others get its resources later: when the score is there and that
        iteration has ended.
        """
        if self.wait_s is None or self.iteration_s is None:
            return True
        ends_s = max(self.wait_s + self.late_s, self.iteration_s)
        gained_s = self.continues * min(self.wait_s, self.iteration_s)
        return gained_s >= (1 - self.continues) * (ends_s - self.wait_s)


#: A wait for which nothing has been measured yet.
UNMEASURED = Wait()


class Circumstances(NamedTuple):
    """The circumstances that all trials of a sweep share at one time.

    While they stay the same, a waiting trial need not be reconsidered unless its queue or its
    validations change.

    Attributes:
        on_pending: As for :class:`tunekit.ValidationConfig`; ``"wait"`` also if trials wait for
            each score because validations are short.
        synchronous: Whether the scheduler compares all trials at the same time.
        others_wait: Whether another trial waits for a slot.
        exclusive: Whether validations can only run once a trial has released its resources.
        typical: How long trials typically wait, unless nothing depends on it.
        reuses: Whether other trials run in the processes of trials that pause or end.
        leaving: The trials whose processes must end, because their nodes do.
        stopping: The trials that were stopped by hand, and train no more.
        out_of_time: Whether the time of the sweep is up, so that no trial trains on.
        relieved: The trials that release their slots to validations that all trials starve.
        ended_hosts: The trials whose processes have ended with a validation.
    """

    on_pending: str = "auto"
    synchronous: bool = False
    others_wait: bool = False
    exclusive: bool = False
    typical: Wait = UNMEASURED
    reuses: bool = False
    leaving: AbstractSet[str] = frozenset()
    stopping: AbstractSet[str] = frozenset()
    out_of_time: bool = False
    relieved: AbstractSet[str] = frozenset()
    ended_hosts: AbstractSet[str] = frozenset()


def what_next(
    queue: Queue,
    now: Circumstances,
    process: Process = Process.FREE,
    wait: Wait = UNMEASURED,
    *,
    decides_again: bool = True,
    can_host: bool = False,
    can_release: bool = False,
    asks: bool = False,
) -> Next:
    """Return what a trial does while its reports wait for their scores.

    No trial trains past its next decision point while an older decision is pending: if that is a
    STOP, the training is lost, and adds checkpoints to validate. If there is no further decision
    point, the pending decision is the trial's last, for example at ``max_t``.

    With ``"auto"``, it waits for scores that decide if something uses its process or its slot
    meanwhile, because waiting then costs nothing. If nothing uses them, it trains on while a single
    decision is pending, unless others wait and would hardly benefit.

    Args:
        queue: The trial's queue.
        now: The circumstances.
        process: The state of its process.
        wait: How long it waits.
        decides_again: Whether the scheduler can use the score of a later report of the trial.
        can_host: Whether its validations can run in its process, and none runs elsewhere.
        can_release: Whether another trial can use its process or slot, and it can be resumed later.
        asks: Whether its loop waits for all its scores, in the middle of an iteration, which would
            be lost with its process.

    Example:
        >>> queue = Queue()
        >>> what_next(queue, Circumstances("wait"))
        <Next.TRAIN: 'train'>
        >>> queue.append(Report(iteration=1, decision_point=1.0, wants=Wants.SCORE, saves=True))
        >>> queue[0].saved("checkpoint")
        >>> [what_next(queue, Circumstances(how)) for how in ("continue", "auto")]
        [<Next.TRAIN: 'train'>, <Next.TRAIN: 'train'>]
        >>> what_next(queue, Circumstances(others_wait=True), can_release=True)
        <Next.RELEASE: 'release'>
        >>> queue.append(Report(iteration=3, decision_point=3.0, wants=Wants.SCORE, saves=True))
        >>> what_next(queue, Circumstances("continue"))
        <Next.WAIT: 'wait'>
    """
    if process is Process.VALIDATES:
        return Next.WAIT
    if process is Process.ENDED or queue.failed:
        return Next.RELEASE
    if process is Process.LEAVES or (queue.over and not can_host):  # it no longer needs its process
        return Next.WAIT if queue.saves else Next.RELEASE
    resumable = queue.resumable or queue.saves
    if not queue.over:
        decisions = queue.decisions
        if asks or now.on_pending == "wait":
            waits = any(
                report.wants is Wants.SCORE and report.stage is not Stage.READY for report in queue
            )
        else:
            hedges = decisions == 1
            if now.on_pending == "auto":
                used = can_host or (can_release and resumable) or not wait.pays_to_train
                hedges &= not now.synchronous and not (used and now.others_wait)
            waits = decisions > 0 and not (hedges and decides_again)
        if not waits:
            return Next.TRAIN
    away = now.exclusive or (can_release and now.others_wait and not asks)
    return Next.RELEASE if away and queue.resumable and not queue.saves else Next.WAIT
