"""What to do about a trial next, given where its scheduler believes it to be.

A scheduler that judges by validated results lives behind the trials: it has seen a trial up to its
last delivered score. There the trial is in a *phase*, which only the scheduler's word changes. What
the trial is *doing* meanwhile is another matter: it trains ahead, waits for a score with or without
its resources, saves, or has ended. :func:`next_action` brings the two together.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Action", "Actual", "Desired", "next_action"]


class Desired(Enum):
    """Where a trial is in the eyes of its scheduler."""

    PENDING = "pending"  #: not started, or chosen to go on and not started yet
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"  #: stopped by the scheduler, or ended and the scheduler knows it


class Actual(Enum):
    """What a trial is really doing."""

    STARTING = "starting"  #: it has no actor yet
    TRAINING = "training"
    HELD = "held"  #: it has reported and was told to wait
    SAVING = "saving"
    PAUSED = "paused"  #: it has given its resources back
    ENDED = "ended"


class Action(Enum):
    """What to do about a trial."""

    NOTHING = "nothing"
    TRAIN = "train"  #: let a held trial run its next iteration
    GIVE_WAY = "give way"  #: pause a held trial until its score is known
    PAUSE = "pause"  #: pause a held trial because the scheduler or its node says so
    CHANGE = "change"  #: give it the weights, configuration or resources that were decided
    RESUME = "resume"  #: let a trial that gave way run again
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
    paused: bool = False,
    stopped: bool = False,
) -> Action:
    """Say what to do about a trial now.

    A trial that is saving is left alone: Tune would keep a decision until the trial's next save
    and carry it out then, long after it was overruled. A trial whose actor is starting is left
    alone until it runs: it starts with what it was given.

    Args:
        phase: Where the scheduler believes the trial to be.
        doing: What it is really doing.
        overwritten: Whether the scheduler has given it other weights that it does not have yet:
            what it does now is lost, so it need not finish.
        changed: Whether it has other new settings, which it can take up when it is paused.
        waits: Whether it waits for a score that is pending.
        gives_way: Whether it gives its resources back meanwhile.
        validates: Whether a validation runs in its process: it does nothing until that has ended.
        leaves: Whether its node is about to end: it pauses, and resumes elsewhere.
        paused: Whether it is paused by hand: it does not train on, whatever its scheduler says.
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
        if leaves or paused or phase is Desired.PAUSED:
            return Action.PAUSE
        if not waits:
            return Action.TRAIN
        return Action.GIVE_WAY if gives_way else Action.NOTHING
    if doing is Actual.PAUSED and phase is Desired.RUNNING and not (waits or paused):
        return Action.RESUME
    return Action.NOTHING
