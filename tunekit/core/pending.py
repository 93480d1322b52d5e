"""What a trial does while scores that it is judged by are pending: the one rule of that.

Its steps, in the order in which a sweep comes to them: for which scores a trial waits
(:func:`waits_for`), whether it waits now (:func:`stands_still`), and what it does then
(:func:`while_it_waits`). What trials leave for validations is another rule: ``core/room.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "ON_PENDING",
    "Place",
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

    TRAIN = "train"  #: train on: nothing could use its place
    KEEP = "keep"  #: keep its actor, in whose place a validation may run
    SWAP = "swap"  #: let another trial go on in its actor, or with its resources
    RELEASE = "release"  #: give its resources back, to validations


@dataclass(frozen=True)
class Place:
    """What could use the place of a trial that waits.

    Attributes:
        borrowed: Whether a validation is about to run there.
        ready: Whether a trial that gave way itself waits to go on.
        new_trials: Whether a trial waits to be started.
        handed_over: Whether another trial goes on there meanwhile, if one waits for that: in its
            actor, or in another process, for which the wait is long enough.
        alone: Whether trials and validations can only run one after the other.
    """

    borrowed: bool = False
    ready: bool = False
    new_trials: bool = False
    handed_over: bool = False
    alone: bool = False


def waits_for(
    on_pending: str,
    *,
    lends: bool = True,
    swaps: bool = False,
    short: bool = False,
    undecided: bool = False,
    synchronous: bool = False,
) -> Waits:
    """Return for which scores a trial waits.

    With ``"auto"``, for those that decide, if its place is used meanwhile, by the validation that
    it waits for or by another trial: then standing still costs nothing.

    Args:
        on_pending: What the user wants.
        lends: Whether a validation can run in the trial's place.
        swaps: Whether another trial could go on in its place, and the trial can be resumed.
        short: Whether validations run in its process, in a fraction of the time that another
            process takes to start.
        undecided: Whether they run in its process, and no score decides anything, so that it would
            wait for none.
        synchronous: Whether the scheduler compares all trials at the same time.

    Example:
        >>> waits_for("auto"), waits_for("auto", short=True), waits_for("auto", lends=False)
        (<Waits.DECISIONS: 'decisions'>, <Waits.EACH: 'each'>, <Waits.LATE: 'late'>)
        >>> waits_for("wait"), waits_for("continue")
        (<Waits.EACH: 'each'>, <Waits.LATE: 'late'>)
    """
    if on_pending == "continue":
        return Waits.LATE
    if waits_for_each(on_pending, short=short, undecided=undecided):
        return Waits.EACH
    if lends or swaps:
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


def when_starved(waits: Waits) -> Way:
    """Return what the first of the trials does that all wait, and keep validations from starting.

    Waiting and pausing lead to the same decisions. One that was not to wait for scores trains on:
    it might not be able to resume.

    Example:
        >>> when_starved(Waits.EACH), when_starved(Waits.LATE)
        (<Way.RELEASE: 'release'>, <Way.TRAIN: 'train'>)
    """
    return Way.TRAIN if waits is Waits.LATE else Way.RELEASE


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
    """Return whether a trial gives its place to one that goes on there in another process.

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
    place: Place,
    *,
    undecided: bool = False,
    decisions: int = 0,
    synchronous: bool = False,
    decides_again: Callable[[], bool] = lambda: True,
) -> Way:
    """Return what a trial does that would wait.

    With ``"auto"``, it trains on while nothing could use its place: what it trains costs nothing,
    even if the pending score turns out to be a STOP. This is asked again after each iteration, so
    that it makes room when something can. It waits nevertheless if the scheduler compares all
    trials at the same time, or will not decide by a later report of the trial. Where no score
    decides anything, it stands still for the validation in its process alone.

    Args:
        on_pending: What the user wants.
        waits: For which scores the trial waits.
        place: What could use its place.
        undecided: Whether no score decides anything.
        decisions: How many of its pending scores the scheduler will decide by.
        synchronous: Whether the scheduler compares all trials at the same time.
        decides_again: Returns whether the scheduler can decide by a later report of the trial, too.
            It is called only if the answer depends on it.

    Example:
        >>> while_it_waits("wait", Waits.EACH, Place()), while_it_waits("auto", Waits.LATE, Place())
        (<Way.KEEP: 'keep'>, <Way.TRAIN: 'train'>)
        >>> while_it_waits("wait", Waits.EACH, Place(new_trials=True, handed_over=True))
        <Way.SWAP: 'swap'>
        >>> while_it_waits("auto", Waits.EACH, Place(new_trials=True), undecided=True)
        <Way.TRAIN: 'train'>
        >>> while_it_waits("wait", Waits.EACH, Place(alone=True))
        <Way.RELEASE: 'release'>
        >>> while_it_waits("wait", Waits.EACH, Place(alone=True, borrowed=True))
        <Way.KEEP: 'keep'>
    """
    if place.borrowed:
        return Way.KEEP  # it would lose its actor, and the validation its place
    if on_pending == "auto" and undecided:
        return Way.TRAIN
    others = place.ready or place.new_trials
    idle = not (place.alone or others)
    hedges = on_pending == "auto" and not synchronous
    if idle and hedges and decisions <= 1 and decides_again():
        return Way.TRAIN
    if place.alone:
        return Way.RELEASE
    # Whoever stands still at each report does not wait long, unless the user has asked for that.
    swaps = place.ready or on_pending == "wait" or waits is Waits.DECISIONS
    return Way.SWAP if others and place.handed_over and swaps else Way.KEEP
