"""What is recorded when a sweep is over of trials that their scheduler has left paused."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tests.sweeps import SavesWhen, sweep
from tunekit.core.events import Decided, EndDelivered
from tunekit.journal.journal import events_in


class PausesForGood(FIFOScheduler):
    """Pauses each trial at its first score, and resumes none."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return self.PAUSE

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self.removed.append(trial.trial_id)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        pending = (t for t in tune_controller.get_trials() if t.status == Trial.PENDING)
        return next(pending, None)


def test_the_end_of_a_sweep_is_no_decision_of_its_scheduler(tmp_path):
    scheduler = PausesForGood()
    ran = sweep(
        tmp_path,
        scheduler,
        on_pending="continue",
        trials=3,
        validation_s=lambda attempt: 50.0,
        # With a second one pending they would not train on.
        policy=SavesWhen(lambda trial, result: result["training_iteration"] == 1),
    )
    events = events_in(tmp_path / "sweep")
    assert not [event for event in events if isinstance(event, Decided)]
    ends = [event.trial_id for event in events if isinstance(event, EndDelivered)]
    assert sorted(ends) == sorted(scheduler.removed) == sorted(t.trial_id for t in ran.trials)
