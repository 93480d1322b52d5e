"""A trial that fails to save and restarts, when its scheduler has just paused or overwritten it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tests.contract.test_every_scheduler import check_contract
from tests.support.sweeps import Counting, Endless, SavesWhen, quality, sweep


def fails_to_save(trainable: type[tune.Trainable], when: Callable[[Any], bool]) -> Any:
    """Return a trainable that fails to save, once for each trial, at the first chance."""

    class Fails(trainable):  # type: ignore[misc,valid-type]
        def save_checkpoint(self, checkpoint_dir: str) -> Any:
            mark = Path(self.logdir, "save-failed")
            if when(self) and not mark.exists():
                mark.touch()
                raise OSError("not saved")
            return super().save_checkpoint(checkpoint_dir)

    return Fails


def a_second_each(trial: Trial, method: str) -> float:
    """Saves take as long as iterations, so that decisions arrive meanwhile."""
    return 1.0 if method in ("train", "save") else 0.0


class PausesAtTheSecond(FIFOScheduler):
    """Pauses each trial at its second score, and resumes them when all have one."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[str] = set()
        self.resumed: set[str] = set()

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 2:
            self.paused.add(trial.trial_id)
            return self.PAUSE
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Any) -> Trial | None:
        trials = controller.get_trials()
        if all(trial.trial_id in self.paused for trial in trials):
            self.resumed |= self.paused
        able = [t for t in trials if t.status == Trial.PENDING or t.trial_id in self.resumed]
        return next((t for t in able if t.status in (Trial.PENDING, Trial.PAUSED)), None)


def test_a_trial_that_was_paused_does_not_train_after_a_restart_until_it_is_resumed(tmp_path):
    base = PausesAtTheSecond()

    class Watch(tune.Callback):
        trained: list[str] = []

        def on_trial_start(self, iteration: int, trials: list, trial: Trial, **info: Any) -> None:
            if trial.trial_id in base.paused - base.resumed:
                self.trained.append(trial.trial_id)

    ran = sweep(
        tmp_path,
        base,
        trainable=fails_to_save(Counting, lambda trial: trial.steps == 3),
        trials=2,
        slots=2,
        max_failures=1,
        training_s=a_second_each,
        # The first trial's second score arrives while the trial saves its third checkpoint, and the
        # other's when the first has long restarted.
        validation_s=lambda attempt: 1.5 if attempt.request.trial_id.endswith("0") else 20.0,
        more_callbacks=(Watch(),),
    )
    check_contract(ran)
    assert [t.status for t in ran.trials] == [Trial.TERMINATED] * 2
    assert not Watch.trained


class EndsInItsSecondLife(Counting):
    """Fails after iteration 5, goes back to iteration 4, and ends by itself at 5."""

    def step(self) -> dict[str, Any]:
        reported = super().step()
        if self.steps == 6:
            raise RuntimeError("fails at 6")
        return {**reported, "done": self.steps == 5 and self._restored}


def test_a_report_that_ends_a_trial_by_itself_is_not_taken_for_the_one_before_a_failure(tmp_path):
    saves = SavesWhen(lambda trial, report: report["training_iteration"] == 4 or report["done"])
    options = {"trainable": EndsInItsSecondLife, "policy": saves, "max_failures": 1}
    ran = sweep(tmp_path, trials=1, **options)
    assert ran.heard.of(0) == [4]  # as in Tune, the last score goes with the end only
    assert ran.heard.ends == [(0, quality(0, 5))]


class StopsAtTheFirstScore(FIFOScheduler):
    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self.STOP


def test_a_stop_survives_a_failure_while_saving(tmp_path):
    ran = sweep(
        tmp_path,
        StopsAtTheFirstScore(),
        trainable=fails_to_save(Endless, lambda trial: trial.steps == 3),
        trials=1,
        # The score of iteration 1, saved at 2 s, arrives while iteration 3 is saved, from 4 s on.
        policy=SavesWhen(lambda trial, result: result["training_iteration"] % 2),
        validation_s=lambda attempt: 2.5,
        training_s=a_second_each,
        max_failures=1,
    )
    [trial] = ran.trials
    assert [(i, decision) for _, i, _, decision in ran.heard.results] == [(1, "STOP")]
    assert trial.status == "TERMINATED" and trial.last_result["training_iteration"] == 1
