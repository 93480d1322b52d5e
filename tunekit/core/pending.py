"""What a trial does while scores that it is judged by are pending."""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "ON_PENDING",
    "are_paused",
    "chosen",
    "gives_way",
    "needs_room",
    "stands_still",
    "trains_on",
]

#: What ``ValidationConfig(on_pending=...)`` may be.
ON_PENDING = ("auto", "yield", "continue", "hold", "pause")


def chosen(on_pending: str, *, lends: bool, swaps: bool, synchronous: bool = False) -> str:
    """Return what a trial does about pending scores, with ``"auto"`` resolved for it.

    Standing still costs nothing if the trial's place is used meanwhile, by the validation that it
    waits for or by another trial.

    Args:
        on_pending: What the user wants.
        lends: Whether a validation can run in the trial's place.
        swaps: Whether its actor can go on with another trial, and the trial can be resumed.
        synchronous: Whether the scheduler compares all trials at the same time.

    Example:
        >>> chosen("auto", lends=True, swaps=False), chosen("auto", lends=False, swaps=False)
        ('yield', 'continue')
        >>> chosen("hold", lends=True, swaps=True)
        'hold'
    """
    if on_pending != "auto":
        return on_pending
    if lends or swaps:
        return "yield"
    return "hold" if synchronous else "continue"


def stands_still(
    on_pending: str,
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
        on_pending: What the user wants.
        scores: How many scores of the trial are pending.
        decisions: How many of them the scheduler will decide by.
        past_last: Returns whether the trial has reported after the last report that the scheduler
            can decide by. It is called only if the answer depends on it.

    Example:
        >>> stands_still("hold", scores=1, decisions=0)
        True
        >>> [stands_still("yield", scores=2, decisions=n) for n in (0, 1)]
        [False, True]
        >>> [stands_still("continue", scores=2, decisions=n) for n in (0, 1, 2)]
        [False, False, True]
        >>> stands_still("continue", scores=2, decisions=1, past_last=lambda: True)
        True
    """
    if on_pending in ("hold", "pause"):
        return scores > 0
    if on_pending == "continue" and decisions == 1:
        return past_last()
    return decisions > 0


def trains_on(
    on_pending: str,
    *,
    decisions: int,
    idle: bool,
    decides_again: Callable[[], bool],
    synchronous: bool = False,
) -> bool:
    """Return whether a trial that would wait trains on.

    If nothing could use its place meanwhile, what it trains costs nothing, even if the pending
    score turns out to be a STOP. This is asked again after each iteration, so the trial makes room
    when something can use its place.

    It waits nevertheless if the scheduler compares all trials at the same time, or will not decide
    by a later report of the trial.

    Args:
        on_pending: What the user wants.
        decisions: How many pending scores of the trial the scheduler will decide by.
        idle: Whether its place would be idle if it waited.
        decides_again: Returns whether the scheduler can decide by a later report of the trial, too.
            It is called only if the answer depends on it.
        synchronous: Whether the scheduler compares all trials at the same time.

    Example:
        >>> yes = lambda: True
        >>> [trains_on("auto", decisions=1, idle=i, decides_again=yes) for i in (True, False)]
        [True, False]
        >>> trains_on("auto", decisions=2, idle=True, decides_again=yes)  # its next one is due
        False
        >>> trains_on("auto", decisions=1, idle=True, decides_again=lambda: False)
        False
        >>> trains_on("auto", decisions=1, idle=True, decides_again=yes, synchronous=True)
        False
        >>> trains_on("yield", decisions=1, idle=True, decides_again=yes)
        False
    """
    if on_pending != "auto" or synchronous or not idle:
        return False
    return decisions <= 1 and decides_again()


def gives_way(
    on_pending: str, *, will_lend: bool, ready: bool, alone: bool, others_wait: bool
) -> bool:
    """Return whether a trial that waits gives up its actor to others.

    Args:
        on_pending: What the trial does: never ``"auto"``.
        will_lend: Whether a validation is about to run in its place.
        ready: Whether a trial that gave way itself is waiting to go on.
        alone: Whether trials and validations can only run one after the other.
        others_wait: Whether another trial could go on in its actor.

    Example:
        >>> known = {"ready": False, "alone": False, "others_wait": True}
        >>> [gives_way("yield", will_lend=lends, **known) for lends in (True, False)]
        [False, True]
        >>> gives_way("hold", will_lend=False, **known)
        False
    """
    if on_pending == "pause":
        return True
    if will_lend:
        return False
    return ready or alone or (on_pending == "yield" and others_wait)


def are_paused(on_pending: str, *, swaps: bool, scheduler: bool) -> bool:
    """Return whether trials are paused in the course of a sweep while others run.

    Args:
        on_pending: What the user wants.
        swaps: Whether an actor can go on with another trial.
        scheduler: Whether the scheduler pauses trials.

    Example:
        >>> are_paused("auto", swaps=True, scheduler=False)
        True
        >>> are_paused("hold", swaps=True, scheduler=False)
        False
    """
    return scheduler or (swaps and on_pending in ("auto", "yield"))


def needs_room(on_pending: str, every: int | str, *, lends: bool, in_trials: bool = False) -> bool:
    """Return whether to leave room for validations beside trials.

    Not if trials make room when they wait for scores, and nothing else is validated, or is
    validated in their processes, too.

    Args:
        on_pending: What the user wants.
        every: Which checkpoints are validated, as in ``ValidationConfig(every=...)``.
        lends: Whether a validation can run in the place of a trial that waits.
        in_trials: Whether it runs in the trial's process then.

    Example:
        >>> needs_room("auto", "decision", lends=True), needs_room("auto", 1, lends=True)
        (False, True)
        >>> needs_room("auto", 1, lends=True, in_trials=True)
        False
    """
    if on_pending == "pause":
        return False
    return not (
        lends and (every == "decision" or in_trials) and on_pending in ("auto", "yield", "hold")
    )
