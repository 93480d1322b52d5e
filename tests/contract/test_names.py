"""Training reports metrics of the names that validation returns: only validation's count."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.schedulers import moasha
from tests.sweeps import LENGTH, Counting, Endless, SavesWhen, sweep


def modest(attempt):
    return {"accuracy": attempt.request.iteration / 100}


def test_a_trial_that_ends_before_its_first_checkpoint_ends_no_sweep(tmp_path, caplog):
    class EndsSoon(Counting):
        def step(self):
            soon = self.trial_name.endswith("0") and self.steps == 1
            return {**super().step(), **({"done": True} if soon else {})}

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        trainable=EndsSoon,
        policy=tunekit.EveryIterations(3),
        trials=4,
    )
    assert ran.lengths() == {0: 2, 1: LENGTH, 2: LENGTH, 3: LENGTH}
    assert ran.validated()[0] == {}


@pytest.mark.parametrize("on_pending", ["wait", "continue"])
def test_results_that_wait_for_the_names_of_metrics_pass_in_the_order_of_their_scores(
    tmp_path, on_pending
):
    """Until the first validations have ended, the loss could be one of their metrics."""
    ran = sweep(
        tmp_path,
        moasha(),
        on_pending=on_pending,
        trials=4,
        validation_s=lambda attempt: 9.0 - 0.3 * int(attempt.request.trial_id.rsplit("_", 1)[1]),
    )
    assert list(dict.fromkeys(index for index, *_ in ran.heard.results)) == [3, 2, 1, 0]


def test_a_stop_survives_a_failure_while_saving(tmp_path):
    class SavesBadlyOnce(Endless):
        def save_checkpoint(self, checkpoint_dir):
            mark = Path(self.logdir, "has-failed")
            if self.steps == 3 and not mark.exists():
                mark.touch()
                raise OSError("no space left")
            return super().save_checkpoint(checkpoint_dir)

    class StopsAtTheFirstScore(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return self.STOP

    ran = sweep(
        tmp_path,
        StopsAtTheFirstScore(),
        trainable=SavesBadlyOnce,
        trials=1,
        # The score of iteration 1, saved at 2 s, arrives while iteration 3 is saved, from 4 s on.
        policy=SavesWhen(lambda trial, result: result["training_iteration"] % 2),
        validation_s=lambda attempt: 2.5,
        training_s=lambda trial, method: {"train": 1.0, "save": 1.0}.get(method, 0.0),
        max_failures=1,
        stop={"training_iteration": 30},
    )
    [trial] = ran.trials
    assert [(i, decision) for _, i, _, decision in ran.heard.results] == [(1, "STOP")]
    assert trial.status == "TERMINATED"
    assert trial.last_result["training_iteration"] == 1


def test_a_name_that_only_later_scores_have_is_validations_when_it_is_read(tmp_path):
    """The second trial's validation also returns a loss: training's is then another quantity."""

    def validate(attempt):
        more = {"loss": 0.7} if attempt.request.trial_id.endswith("1") else {}
        return {**modest(attempt), **more}

    ran = sweep(tmp_path, FIFOScheduler(), validate=validate, trials=2, slots=1)
    reports = tunekit.load(ran.home).reports
    first, second = (reports[reports.trial_id == trial.trial_id] for trial in ran.trials)
    assert first["loss"].isna().all() and set(second["loss"]) == {0.7}
    assert reports["reported/loss"].notna().all()
    assert list(first["accuracy"]) == [n / 100 for n in range(1, LENGTH + 1)]
