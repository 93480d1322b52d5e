"""Finds the due reports of a sweep, by a rule and by the pending scores."""

from __future__ import annotations

from tunekit.core.decision_points import DecisionRule
from tunekit.core.engine import Engine
from tunekit.core.events import (
    CheckpointSaved,
    Exploited,
    Reported,
    ValidationEnded,
    ValidationRequested,
)


class Decisions:
    """Trials that save at each due report, so that it is validated."""

    def __init__(self) -> None:
        self.engine = Engine("decisions")

    def asked(
        self, trial: str, iteration: int, now: float | None, rule: DecisionRule, *, done: bool
    ) -> bool:
        """Report for a trial; return whether the report is due."""
        engine = self.engine
        coming = engine.coming(trial, before=iteration)
        serves = None if now is None else rule.serves(now, coming)
        generation = engine.ancestry.generation(trial)
        report = {"training_iteration": iteration, "generation": generation, "done": done}
        engine.apply(Reported(trial_id=trial, report=report, offered=True, serves=serves))
        due = engine.record(trial).used
        if due:
            run = engine.history.run_of(trial, iteration, generation)
            place = {"generation": generation, "iteration": iteration, "run": run}
            saved = {"id": f"{trial}:{generation}:{iteration}:{run}", "trial_id": trial, **place}
            engine.apply(CheckpointSaved(**saved, used=True))
            engine.apply(ValidationRequested(**saved))
        return due

    def settled(self, trial: str, iteration: int) -> None:
        """End the validation of a report without a score that a trial waits for."""
        for request in self.engine.delivery.pending(trial):
            if request.iteration == iteration:
                self.engine.apply(ValidationEnded(id=request.id, status="failed"))

    def moved(self, trial: str) -> None:
        """Continue a trial with other weights."""
        generation = self.engine.ancestry.generation(trial) + 1
        donor = {"donor_id": "donor", "donor_generation": 0, "iteration": 0, "checkpoint": "c"}
        self.engine.apply(Exploited(trial_id=trial, generation=generation, reached=0, **donor))
