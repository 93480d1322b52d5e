"""The life of a report, from a trial to Tune, in one table of moves.

Only this file changes a report's state. A move that :data:`MOVES` lacks is a fault of the caller,
and raises where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Stage(Enum):
    """How far a report has come on its way to Tune."""

    SAVING = "saving"  #: its checkpoint is being saved
    OPEN = "open"  #: it is validated only if the trial ends with it, which is still to be seen
    SCORING = "scoring"  #: its validation has not ended
    READY = "ready"  #: nothing is still to come
    GIVEN = "given"  #: Tune has it
    DROPPED = "dropped"  #: it is void: the trial does not continue from it


class Wants(Enum):
    """Whether the checkpoint of a report is to be validated."""

    NOTHING = "nothing"
    SCORE = "score"
    SCORE_IF_LAST = "score if last"  #: only if the trial ends with the report


#: Each move there is: from a state, after a fact, to one of some states.
MOVES: Mapping[tuple[Stage, str], tuple[Stage, ...]] = {
    (Stage.SAVING, "saved"): (Stage.SCORING, Stage.OPEN, Stage.READY),
    (Stage.SAVING, "lost"): (Stage.READY,),
    (Stage.OPEN, "continued"): (Stage.READY,),
    (Stage.OPEN, "ended"): (Stage.SAVING, Stage.SCORING, Stage.READY),
    (Stage.SCORING, "scored"): (Stage.READY,),
    (Stage.READY, "requested"): (Stage.SCORING,),
    (Stage.READY, "given"): (Stage.GIVEN,),
    **{
        (state, "dropped"): (Stage.DROPPED,)
        for state in (Stage.SAVING, Stage.OPEN, Stage.SCORING, Stage.READY)
    },
}

_AFTER_SAVE = {
    Wants.NOTHING: Stage.READY,
    Wants.SCORE: Stage.SCORING,
    Wants.SCORE_IF_LAST: Stage.OPEN,
}


class IllegalMove(Exception):
    """A move of a report that :data:`MOVES` lacks."""


@dataclass(eq=False)
class Report:
    """A report that Tune has not processed; or the failure or the return of the trial's function.

    Attributes:
        report: What the trial has reported; empty for a failure.
        failure: The error with which the trial failed.
        iteration: The training iteration of the report.
        wants: Whether its checkpoint is to be validated.
        saves: Whether its checkpoint is saved now.
        config: The trial's hyperparameters.
        kwargs: The keyword arguments that the report gives the validation.
        timeout_s: The time limit that it gives the validation, in seconds; 0: no limit; None: the
            default applies.
        decision_point: The decision point that its score will fill, such as a rung; None if none.
        last: Whether the trial ends with it, so that it does not train on.
        checkpoint: The checkpoint that was saved at the report; opaque here.
        path: Its path; empty if there is none.
        metrics: The metrics of its validation; None until that has ended with a score.
        cloneable: Whether the scheduler received its checkpoint, and may clone it later.
        replayed: Whether it was scored in an earlier session.
        ranked: Whether the scheduler and the searcher get it: it has all metrics that they use.

    Example:
        >>> report = Report(iteration=3, wants=Wants.SCORE, saves=True)
        >>> report.saved("checkpoint")
        >>> report.stage
        <Stage.SCORING: 'scoring'>
        >>> report.give()
        Traceback (most recent call last):
        tunekit.core.report.IllegalMove: iteration 3 is SCORING, so it cannot be 'given'
        >>> report.scored({"accuracy": 0.9})
        >>> report.give(ranked=True)
    """

    report: Mapping[str, Any] = field(default_factory=dict)
    failure: Any = None
    iteration: int = 0
    wants: Wants = Wants.NOTHING
    saves: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    decision_point: float | None = None
    last: bool = False
    checkpoint: Any = None
    path: str = ""
    metrics: Mapping[str, Any] | None = None
    cloneable: bool = False
    replayed: bool = False
    ranked: bool = field(default=False, init=False)
    _stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        is_open = self.wants is Wants.SCORE_IF_LAST
        self._stage = Stage.SAVING if self.saves else Stage.OPEN if is_open else Stage.READY

    @property
    def stage(self) -> Stage:
        """Return how far it has come."""
        return self._stage

    def _move(self, fact: str, to: Stage) -> None:
        if to not in MOVES.get((self._stage, fact), ()):
            raise IllegalMove(
                f"iteration {self.iteration} is {self._stage.name}, so it cannot be {fact!r}"
            )
        self._stage = to

    def saved(self, checkpoint: Any, path: str = "") -> None:
        """Record that its checkpoint is saved in a path."""
        self.checkpoint, self.path = checkpoint, path
        self._move("saved", _AFTER_SAVE[self.wants])

    def lost(self) -> None:
        """Record that there will be no checkpoint."""
        self.wants = Wants.NOTHING
        self._move("lost", Stage.READY)

    def continued(self) -> None:
        """Record that the trial goes on after it, so that it is not the last one."""
        if self.wants is Wants.SCORE_IF_LAST:
            self.wants = Wants.NOTHING
            if self._stage is Stage.OPEN:
                self._move("continued", Stage.READY)

    def ended(self, *, validates: bool, saves: bool) -> None:
        """Record that the trial ends with it, if that decides whether it is validated.

        Args:
            validates: Whether its checkpoint is to be validated.
            saves: Whether a checkpoint is saved now, if it has none.
        """
        self.wants = Wants.SCORE if validates else Wants.NOTHING
        if self._stage is Stage.SAVING:
            return  # what follows is decided when it is saved
        if self.checkpoint is not None:
            self._move("ended", _AFTER_SAVE[self.wants])
        else:
            self._move("ended", Stage.SAVING if saves else Stage.READY)

    def requested(self) -> None:
        """Record that a restored sweep requests its validation again."""
        self.wants = Wants.SCORE
        self._move("requested", Stage.SCORING)

    def scored(self, metrics: Mapping[str, Any] | None) -> None:
        """Record that its validation has ended, with metrics if it has a score."""
        self.metrics = metrics
        self._move("scored", Stage.READY)

    def give(self, *, ranked: bool = False) -> None:
        """Record that Tune gets it."""
        self.ranked = ranked
        self._move("given", Stage.GIVEN)

    def drop(self) -> None:
        """Record that it is void."""
        self._move("dropped", Stage.DROPPED)
