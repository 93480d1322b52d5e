"""The next action for a trial, given where its scheduler believes it to be.

A scheduler that decides by validated results lags behind the trials: it has seen a trial up to its
last delivered score. For the scheduler, the trial is in a *phase*, which only the scheduler's
decisions change. Meanwhile, the trial trains ahead, waits for a score with or without its
resources, saves, or has ended: this is what it is *doing*. :func:`next_action` reconciles the two.
"""

from __future__ import annotations

from enum import Enum


class Desired(Enum):
    """The phase of a trial for its scheduler."""

    PENDING = "pending"  #: not started, or chosen to continue and not started yet
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"  #: stopped by the scheduler, or ended and the scheduler was notified


class Actual(Enum):
    """The actual state of a trial."""

    STARTING = "starting"  #: it has no actor yet
    TRAINING = "training"
    HELD = "held"  #: it has reported and has to wait
    SAVING = "saving"
    PAUSED = "paused"  #: it has released its resources
    ENDED = "ended"


class Action(Enum):
    """An action for a trial."""

    NOTHING = "nothing"
    TRAIN = "train"  #: let a held trial run its next iteration
    GIVE_WAY = "give way"  #: pause a held trial until its score is known
    PAUSE = "pause"  #: pause a held trial because the scheduler or its node says so
    CHANGE = "change"  #: give it the weights, configuration or resources that were decided
    RESUME = "resume"  #: let a trial that released its resources run again
    STOP = "stop"


def next_action(
    phase: Desired,
    doing: Actual,
    *,
    overwritten: bool = False,
    changed: bool = False,
    waits: bool = False,
    gives_way: bool = False,
    validates: bool = False,
    leaves: bool = False,
    stopped: bool = False,
) -> Action:
    """Return the action for a trial now.

    A trial that is saving is left alone: Tune would defer a decision to the trial's next save, when
    it may long be obsolete. A trial whose actor is starting is left alone until it runs: it starts
    with the settings that it was launched with.

    Args:
        phase: Where the scheduler believes the trial to be.
        doing: What it is actually doing.
        overwritten: Whether the scheduler has given it other weights that it does not have yet:
            its current work is lost, so it need not finish.
        changed: Whether it has other new settings, which it can apply when it is paused.
        waits: Whether it waits for a pending score.
        gives_way: Whether it releases its resources meanwhile.
        validates: Whether a validation runs in its process: it does nothing until that has ended.
        leaves: Whether its node is about to end: it pauses, and resumes elsewhere.
        stopped: Whether it was stopped by hand.

    Example:
        >>> next_action(Desired.RUNNING, Actual.HELD, waits=True)
        <Action.NOTHING: 'nothing'>
        >>> next_action(Desired.RUNNING, Actual.HELD)
        <Action.TRAIN: 'train'>
        >>> next_action(Desired.ENDED, Actual.SAVING), next_action(Desired.ENDED, Actual.TRAINING)
        (<Action.NOTHING: 'nothing'>, <Action.STOP: 'stop'>)
    """
    if validates or doing in (Actual.ENDED, Actual.SAVING):
        return Action.NOTHING
    if phase is Desired.ENDED or stopped:
        return Action.STOP
    if doing is Actual.STARTING:
        return Action.NOTHING
    if overwritten or (changed and doing is Actual.PAUSED):
        return Action.CHANGE
    if doing is Actual.HELD:
        if leaves or phase is Desired.PAUSED:
            return Action.PAUSE
        if not waits:
            return Action.TRAIN
        return Action.GIVE_WAY if gives_way else Action.NOTHING
    if doing is Actual.PAUSED and phase is Desired.RUNNING and not waits:
        return Action.RESUME
    return Action.NOTHING
