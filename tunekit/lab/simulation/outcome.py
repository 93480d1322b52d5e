"""What came of a simulated sweep, and which of its decisions late results have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

if TYPE_CHECKING:
    import pandas

__all__ = ["Arrival", "Decision", "Score", "Simulation", "wrong_decisions"]


@dataclass(frozen=True)
class Score:
    """A score, and when it was known.

    Attributes:
        time_s: When, in seconds since the sweep began.
        trial: The trial, as ``curves`` names it.
        iteration: The iteration of the checkpoint.
        value: The value of the metric.
    """

    time_s: float
    trial: Any
    iteration: int
    value: float


@dataclass(frozen=True)
class Decision:
    """A decision of the scheduler.

    Attributes:
        time_s: When, in seconds since the sweep began.
        trial: The trial, as ``curves`` names it.
        iteration: The iteration of the result that the scheduler got.
        reached: The iteration that the trial had reported by then.
        score: The metric's value in that result; None if it had none.
        decision: ``"CONTINUE"``, ``"PAUSE"``, ``"STOP"`` or ``"NOOP"``.
    """

    time_s: float
    trial: Any
    iteration: int
    reached: int
    score: float | None
    decision: str


@dataclass(frozen=True)
class Simulation:
    """A sweep in virtual time: how long it took, what it trained, and what it found.

    Attributes:
        makespan_s: The time from its beginning to its end, in virtual seconds.
        iterations: How many iterations were trained.
        iterations_after_stop: How many of these were reported by trials that the scheduler had
            stopped, or would stop for a score that was on its way: those beyond the iteration it
            judged.
        validations: How many validations ended with a score.
        skipped: How many checkpoints should have been validated and were not.
        best: The trial with the best score.
        best_score: That score.
        regret: How far that falls short of the best score of all curves, each as far as it was
            recorded.
        extrapolated: How many iterations were trained beyond what was recorded; the last recorded
            values stand in for theirs.
        training_busy: The share of the time of all slots during which trials trained.
        validation_busy: The share during which validations ran.
        scores: Every score, in the order in which they were known.
        wrong_decisions: How many decisions would have been different if the scheduler had got the
            same results as soon as they were reported. None, because it cannot be said, for
            schedulers other than FIFO, ``ASHAScheduler`` and ``MedianStoppingRule``.
        mode: ``"min"`` or ``"max"``: which scores are better.
        decided: The decisions; :attr:`decisions` has them as a table.

    Example:
        >>> import pandas, ray.tune, tunekit
        >>> rows = [(t, i, t + i / 4) for t in range(4) for i in (1, 2, 3)]
        >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
        >>> judged = ray.tune.TuneConfig(metric="accuracy", mode="max")
        >>> ran = tunekit.simulate(curves, tune_config=judged, slots=2, train_s=1, validate_s=0.5)
        >>> ran.iterations, ran.validations, ran.best, ran.best_score
        (12, 12, 3, 3.75)
    """

    makespan_s: float
    iterations: int
    iterations_after_stop: int
    validations: int
    skipped: int
    best: Any
    best_score: float
    regret: float
    extrapolated: int
    training_busy: float
    validation_busy: float
    wrong_decisions: int | None
    mode: str = field(repr=False)
    scores: Sequence[Score] = field(repr=False)
    decided: Sequence[Decision] = field(repr=False)

    def time_to(self, score: float) -> float | None:
        """Return when a score at least this good was first known, in seconds; None if never.

        Args:
            score: The value of the metric.

        Example:
            >>> import pandas, ray.tune, tunekit
            >>> rows = [("a", i, i / 10) for i in range(1, 5)]
            >>> curves = pandas.DataFrame(rows, columns=["trial", "training_iteration", "accuracy"])
            >>> judged = ray.tune.TuneConfig(metric="accuracy", mode="max")
            >>> ran = tunekit.simulate(curves, tune_config=judged, train_s=1.0, validate_s=0.5)
            >>> ran.time_to(0.2), ran.time_to(0.9)
            (2.5, None)
        """
        sign = 1.0 if self.mode == "max" else -1.0
        return next((s.time_s for s in self.scores if sign * s.value >= sign * score), None)

    @property
    def decisions(self) -> pandas.DataFrame:
        """Return one row per decision of the scheduler, in order.

        Columns: ``time_s``: when; ``trial``; ``iteration``: that of the result that the scheduler
        got; ``score``: the metric in it; ``reached``: the iteration that the trial had reported by
        then; ``decision``.
        """
        import pandas as pd

        columns = list(Decision.__dataclass_fields__)
        return pd.DataFrame([vars(one) for one in self.decided], columns=columns)


@dataclass(frozen=True)
class Arrival:
    """A result that a scheduler got.

    Attributes:
        reported: The number of its report, in the order in which trials reported.
        trial: The trial.
        result: The result.
        decision: What the scheduler decided.
    """

    reported: int
    trial: Trial
    result: Mapping[str, Any]
    decision: str


def wrong_decisions(
    scheduler: TrialScheduler, trials: Sequence[Trial], arrivals: Sequence[Arrival]
) -> int | None:
    """Count the decisions that would have been different without delay.

    A scheduler that has heard nothing yet gets the results in the order in which they were
    reported, those of each trial up to the one at which either scheduler stops the trial.

    Args:
        scheduler: The scheduler as it was before the sweep; it is changed.
        trials: The sweep's trials, in the order in which they were made.
        arrivals: What the sweep's own scheduler got.

    Returns:
        How many; None for a scheduler that changes trials or decides by more than results.
    """
    if type(scheduler) not in (AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule):
        return None
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    ended: set[Trial] = set()
    wrong = 0
    for arrival in sorted(arrivals, key=lambda one: one.reported):
        trial = arrival.trial
        if trial in ended:
            continue
        decision = scheduler.on_trial_result(None, trial, {**arrival.result})
        wrong += decision != arrival.decision
        if TrialScheduler.STOP in (decision, arrival.decision):
            ended.add(trial)
            scheduler.on_trial_complete(None, trial, {**arrival.result, DONE: True})
    return wrong
