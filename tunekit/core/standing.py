"""What a trial is to do next, given where its scheduler believes it to be.

A scheduler that judges by validated results lives behind the trials: it has seen a trial up to
its last delivered score. There the trial is in a *phase*, which changes by the scheduler's word
only. What the trial is *doing* meanwhile is another matter: it trains ahead, waits for a score
with or without its resources, saves, or has ended. :func:`next_move` brings the two together.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Doing", "Move", "Phase", "next_move"]


class Phase(Enum):
    """Where a trial is in the eyes of its scheduler."""

    PENDING = "pending"  #: not started, or chosen to go on and not started yet
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"  #: stopped by the scheduler, or ended and the scheduler knows it


class Doing(Enum):
    """What a trial really does."""

    STARTING = "starting"  #: it has no actor yet
    TRAINING = "training"
    HELD = "held"  #: it has reported and was told to wait
    SAVING = "saving"
    PAUSED = "paused"  #: it has given its resources back
    ENDED = "ended"


class Move(Enum):
    """What is to be done about a trial."""

    NOTHING = "nothing"
    TRAIN = "train"  #: let a held trial run its next iteration
    GIVE_WAY = "give way"  #: pause a held trial until its score is known
    PAUSE = "pause"  #: pause a held trial because the scheduler says so
    CHANGE = "change"  #: give it the weights, configuration or resources that were decided
    RESUME = "resume"  #: let a trial that gave way run again
    STOP = "stop"


def next_move(
    phase: Phase,
    doing: Doing,
    *,
    overwritten: bool = False,
    changed: bool = False,
    waits: bool = False,
    gives_way: bool = False,
) -> Move:
    """Say what to do about a trial now.

    A trial that is saving is left alone: Tune would keep a decision for the trial's next save,
    and carry it out then, long after it was overruled. One whose actor starts is left alone until
    it runs: it starts with what it was given.

    Args:
        phase: Where the scheduler believes the trial to be.
        doing: What it does.
        overwritten: Whether the scheduler has given it other weights, which it has not got yet:
            what it does now is lost, so that it need not finish it.
        changed: Whether it has other new settings that it can take up when it is paused.
        waits: Whether it stands still for a score that is pending.
        gives_way: Whether it gives its resources back meanwhile.

    Example:
        >>> next_move(Phase.RUNNING, Doing.HELD, waits=True)
        <Move.NOTHING: 'nothing'>
        >>> next_move(Phase.RUNNING, Doing.HELD)
        <Move.TRAIN: 'train'>
        >>> next_move(Phase.ENDED, Doing.SAVING), next_move(Phase.ENDED, Doing.TRAINING)
        (<Move.NOTHING: 'nothing'>, <Move.STOP: 'stop'>)
    """
    if doing in (Doing.ENDED, Doing.SAVING):
        return Move.NOTHING
    if phase is Phase.ENDED:
        return Move.STOP
    if doing is Doing.STARTING:
        return Move.NOTHING
    if overwritten or (changed and doing is Doing.PAUSED):
        return Move.CHANGE
    if doing is Doing.HELD:
        if phase is Phase.PAUSED:
            return Move.PAUSE
        if not waits:
            return Move.TRAIN
        return Move.GIVE_WAY if gives_way else Move.NOTHING
    if doing is Doing.PAUSED and phase is Phase.RUNNING and not waits:
        return Move.RESUME
    return Move.NOTHING
