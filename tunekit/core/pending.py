"""What a trial does while scores are pending that the sweep decides by.

The rule's steps, in order: for which scores a trial waits (:func:`waits_for`), whether it waits now
(:func:`stands_still`), and what it does meanwhile (:func:`while_it_waits`). Another rule decides in
which process a validation runs: ``core/pool.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

#: The values of ``ValidationConfig(on_pending=...)``.
ON_PENDING = ("auto", "wait", "continue")


class Waits(Enum):
    """For which of its pending scores a trial waits."""

    EACH = "each"  #: for every one, as with inline validation
    DECISIONS = "decisions"  #: for those that its scheduler decides by
    LATE = "late"  #: for none, until its next decision is due


class Way(Enum):
    """What a trial does while it would wait."""

    TRAIN = "train"  #: continue training: nothing could use its resources
    KEEP = "keep"  #: keep its process
    SWAP = "swap"  #: let another trial use its process or its resources
    RELEASE = "release"  #: release its resources to validations


def waits_for(
    on_pending: str,
    *,
    in_process: bool = True,
    swaps: bool = False,
    short: bool = False,
    undecided: bool = False,
    synchronous: bool = False,
) -> Waits:
    """Return for which scores a trial waits.

    With ``"auto"``, it waits for scores that decide if the validation or another trial uses its
    resources meanwhile, because waiting then costs nothing.

    Args:
        on_pending: As for :class:`tunekit.ValidationConfig`.
        in_process: Whether its validations can run in its process.
        swaps: Whether another trial could use its resources, and the trial can be resumed.
        short: Whether validations run in its process, in a fraction of the time that another
            process takes to start.
        undecided: Whether they run in its process and no score decides anything, so that it would
            not wait for any.
        synchronous: Whether the scheduler compares all trials at the same time.

    Example:
        >>> waits_for("auto"), waits_for("auto", short=True), waits_for("auto", in_process=False)
        (<Waits.DECISIONS: 'decisions'>, <Waits.EACH: 'each'>, <Waits.LATE: 'late'>)
        >>> waits_for("wait"), waits_for("continue")
        (<Waits.EACH: 'each'>, <Waits.LATE: 'late'>)
    """
    if on_pending == "continue":
        return Waits.LATE
    if waits_for_each(on_pending, short=short, undecided=undecided):
        return Waits.EACH
    if in_process or swaps:
        return Waits.DECISIONS
    return Waits.EACH if synchronous else Waits.LATE


def waits_for_each(on_pending: str, *, short: bool, undecided: bool) -> bool:
    """Return whether trials wait for each score, not only for those that decide.

    Args:
        on_pending: This and the others are as for :func:`waits_for`.

    Example:
        >>> waits_for_each("wait", short=False, undecided=False)
        True
    """
    return on_pending == "wait" or short or undecided


def stands_still(
    waits: Waits,
    *,
    decisions: int,
    past_last: Callable[[], bool] = lambda: False,
) -> bool:
    """Return whether a trial waits for pending scores instead of continuing.

    No trial trains past the point where the next decision is due while an older one is pending: if
    the older one is a STOP, that training is lost, and adds checkpoints to validate. If no further
    decision is due, the pending one is the trial's last, for example at ``max_t``. A function may
    have nothing left to do and end, which frees its resources; one that reports again waits.

    Args:
        waits: For which scores the trial waits.
        decisions: The number of them that the scheduler will decide by.
        past_last: Returns whether the trial has reported after the last report that the scheduler
            can decide by. It is called only if the result depends on it.

    Example:
        >>> stands_still(Waits.EACH, decisions=0)
        True
        >>> [stands_still(Waits.DECISIONS, decisions=n) for n in (0, 1)]
        [False, True]
        >>> [stands_still(Waits.LATE, decisions=n) for n in (0, 1, 2)]
        [False, False, True]
        >>> stands_still(Waits.LATE, decisions=1, past_last=lambda: True)
        True
    """
    if waits is Waits.EACH:
        return True
    if waits is Waits.LATE and decisions == 1:
        return past_last()
    return decisions > 0


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


def while_it_waits(
    on_pending: str,
    waits: Waits,
    *,
    squeezed: bool = False,
    ready: bool = False,
    new_trials: bool = False,
    handed_over: bool = False,
    undecided: bool = False,
    decisions: int = 0,
    synchronous: bool = False,
    decides_again: Callable[[], bool] = lambda: True,
) -> Way:
    """Return what a waiting trial does while no validation runs in its process.

    With ``"auto"``, it continues training while nothing could use its resources, because that costs
    nothing, even if the pending score leads to a STOP. This is decided again after each iteration,
    so it makes room as soon as something can use its resources. It waits nevertheless if the
    scheduler compares all trials at the same time, or will not decide by a later report of the
    trial. If no score decides anything, it waits only for a validation in its own process.

    Args:
        on_pending: As for :class:`tunekit.ValidationConfig`.
        waits: For which scores the trial waits.
        squeezed: Whether its validation can only run once the trial has released its resources.
        ready: Whether a trial that released its resources is ready to continue.
        new_trials: Whether a trial is waiting to start.
        handed_over: Whether another waiting trial would run meanwhile: in its process, or in
            another one if the wait is long enough.
        undecided: Whether no score decides anything.
        decisions: The number of its pending scores that the scheduler will decide by.
        synchronous: Whether the scheduler compares all trials at the same time.
        decides_again: Returns whether the scheduler can decide by a later report of the trial, too.
            It is called only if the result depends on it.

    Example:
        >>> while_it_waits("wait", Waits.EACH), while_it_waits("auto", Waits.LATE)
        (<Way.KEEP: 'keep'>, <Way.TRAIN: 'train'>)
        >>> while_it_waits("wait", Waits.EACH, new_trials=True, handed_over=True)
        <Way.SWAP: 'swap'>
        >>> while_it_waits("auto", Waits.EACH, new_trials=True, undecided=True)
        <Way.TRAIN: 'train'>
        >>> while_it_waits("wait", Waits.EACH, squeezed=True)
        <Way.RELEASE: 'release'>
    """
    if on_pending == "auto" and undecided:
        return Way.TRAIN
    if squeezed:
        return Way.RELEASE
    others = ready or new_trials
    hedges = on_pending == "auto" and not synchronous and decisions <= 1
    if hedges and not others and decides_again():
        return Way.TRAIN
    # A trial that waits at each report does not wait long, unless the user has requested that.
    swaps = ready or on_pending == "wait" or waits is Waits.DECISIONS
    return Way.SWAP if others and handed_over and swaps else Way.KEEP


def when_starved(waits: Waits, *, resumes: bool) -> Way:
    """Return what the first trial does when all trials wait and no validation can start.

    Waiting and pausing lead to the same decisions. A trial that was not meant to wait for scores,
    and is not known to resume from its checkpoint, continues training.

    Example:
        >>> when_starved(Waits.EACH, resumes=False), when_starved(Waits.LATE, resumes=False)
        (<Way.RELEASE: 'release'>, <Way.TRAIN: 'train'>)
    """
    return Way.RELEASE if resumes or waits is not Waits.LATE else Way.TRAIN
