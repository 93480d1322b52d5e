"""What a trial does while scores that it is judged by are pending: the one rule of that.

Its steps, in the order in which a sweep comes to them: for which scores a trial waits
(:func:`waits_for`), whether it waits now (:func:`stands_still`), and what it does then
(:func:`while_it_waits`). In which process a validation runs is another rule: ``core/pool.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

__all__ = [
    "ON_PENDING",
    "Waits",
    "Way",
    "pays_for_a_start",
    "stands_still",
    "waits_for",
    "waits_for_each",
    "when_starved",
    "while_it_waits",
]

#: What ``ValidationConfig(on_pending=...)`` may be.
ON_PENDING = ("auto", "wait", "continue")


class Waits(Enum):
    """For which of its pending scores a trial waits."""

    EACH = "each"  #: for every one, as with validation inline
    DECISIONS = "decisions"  #: for those that its scheduler decides by
    LATE = "late"  #: for none, until its next decision is due


class Way(Enum):
    """What a trial does that would wait."""

    TRAIN = "train"  #: train on: nothing could use its resources
    KEEP = "keep"  #: keep its process
    SWAP = "swap"  #: let another trial run in its process, or with its resources
    RELEASE = "release"  #: give its resources back, to validations


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

    With ``"auto"``, for those that decide, if its resources are used meanwhile, by the validation
    that it waits for or by another trial: then standing still costs nothing.

    Args:
        on_pending: What the user wants.
        in_process: Whether its validations can run in its process.
        swaps: Whether another trial could use its resources, and the trial can be resumed.
        short: Whether validations run in its process, in a fraction of the time that another
            process takes to start.
        undecided: Whether they run in its process, and no score decides anything, so that it would
            wait for none.
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
    """Return whether trials that wait do so for each score, not only for those that decide.

    Args:
        on_pending: As of :func:`waits_for`; likewise the others.

    Example:
        >>> waits_for_each("wait", short=False, undecided=False)
        True
    """
    return on_pending == "wait" or short or undecided


def stands_still(
    waits: Waits,
    *,
    scores: int,
    decisions: int,
    past_last: Callable[[], bool] = lambda: False,
) -> bool:
    """Return whether a trial that has reported waits, rather than training on.

    No trial trains past the point where the next decision is due while an older one is pending:
    what is trained there is lost if the older one is a STOP, and makes more to validate. If no
    further decision is due, the one that is pending is the trial's last, at ``max_t`` for instance.
    A function may have nothing more to do and end, which makes room for others; one that reports
    again waits.

    Args:
        waits: For which scores the trial waits.
        scores: How many scores of the trial are pending.
        decisions: How many of them the scheduler will decide by.
        past_last: Returns whether the trial has reported after the last report that the scheduler
            can decide by. It is called only if the answer depends on it.

    Example:
        >>> stands_still(Waits.EACH, scores=1, decisions=0)
        True
        >>> [stands_still(Waits.DECISIONS, scores=2, decisions=n) for n in (0, 1)]
        [False, True]
        >>> [stands_still(Waits.LATE, scores=2, decisions=n) for n in (0, 1, 2)]
        [False, False, True]
        >>> stands_still(Waits.LATE, scores=2, decisions=1, past_last=lambda: True)
        True
    """
    if waits is Waits.EACH:
        return scores > 0
    if waits is Waits.LATE and decisions == 1:
        return past_last()
    return decisions > 0


def pays_for_a_start(wait_s: float | None, start_s: float | None) -> bool:
    """Return whether a trial gives its resources to one that needs another process for them.

    The other trial needs a process in any case. This one needs a second, unless its score ends it:
    so waiting for longer than a start takes costs more than that.

    Args:
        wait_s: For how many more seconds it will wait; None: that is not known.
        start_s: How long a trial takes to start, in seconds; None: that is not known.

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
    """Return what a trial does that would wait, unless a validation runs in its process.

    With ``"auto"``, it trains on while nothing could use its resources: what it trains costs
    nothing, even if the pending score turns out to be a STOP. This is asked again after each
    iteration, so that it makes room when something can. It waits nevertheless if the scheduler
    compares all trials at the same time, or will not decide by a later report of the trial. Where
    no score decides anything, it stands still for the validation in its process alone.

    Args:
        on_pending: What the user wants.
        waits: For which scores the trial waits.
        squeezed: Whether its validation can only run once the trial has given its resources back.
        ready: Whether a trial that gave way itself waits to go on.
        new_trials: Whether a trial waits to be started.
        handed_over: Whether another trial runs there meanwhile, if one waits for that: in its
            process, or in another one, for which the wait is long enough.
        undecided: Whether no score decides anything.
        decisions: How many of its pending scores the scheduler will decide by.
        synchronous: Whether the scheduler compares all trials at the same time.
        decides_again: Returns whether the scheduler can decide by a later report of the trial, too.
            It is called only if the answer depends on it.

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
    # Whoever stands still at each report does not wait long, unless the user has asked for that.
    swaps = ready or on_pending == "wait" or waits is Waits.DECISIONS
    return Way.SWAP if others and handed_over and swaps else Way.KEEP


def when_starved(waits: Waits, *, resumes: bool) -> Way:
    """Return what the first of the trials does that all wait, and keep validations from starting.

    Waiting and pausing lead to the same decisions. One that was not to wait for scores, and is not
    known to go on from its checkpoint, trains on.

    Example:
        >>> when_starved(Waits.EACH, resumes=False), when_starved(Waits.LATE, resumes=False)
        (<Way.RELEASE: 'release'>, <Way.TRAIN: 'train'>)
    """
    return Way.RELEASE if resumes or waits is not Waits.LATE else Way.TRAIN
