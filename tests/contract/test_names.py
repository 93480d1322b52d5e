"""Training reports metrics of the names that validation returns: only validation's count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.sweeps import LENGTH, Counting, Endless, SavesWhen, sweep

MODES = ["continue", "wait", "wait-paused"]


class Boasting(Counting):
    """Reports an accuracy of its own, on what it has learned from."""

    def step(self):
        return {**super().step(), "accuracy": 0.99}


def modest(attempt):
    return {"accuracy": attempt.request.iteration / 100}


@pytest.mark.parametrize("on_pending", MODES)
def test_a_trial_without_a_score_is_not_ranked_by_trainings(tmp_path, on_pending):
    """Also when it ends before the first score shows which names are validation's."""

    def validate(attempt):
        if attempt.request.trial_id.endswith("0"):
            raise ValueError("never works")
        return modest(attempt)

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending=on_pending,
        trainable=Boasting,
        validate=validate,
        validation_s=lambda attempt: 0.1 if attempt.request.trial_id.endswith("0") else 30.0,
        settings={"max_retries": 0},
        trials=2,
        loggers=True,
    )
    without, scored = ran.trials
    assert "accuracy" not in without.metric_analysis
    assert scored.metric_analysis["accuracy"]["last"] == LENGTH / 100
    assert scored.metric_analysis["accuracy"]["max"] == LENGTH / 100
    assert "accuracy" not in without.last_result
    assert without.last_result["reported"] == scored.last_result["reported"] == {"accuracy": 0.99}
    for trial in ran.trials:
        lines = Path(trial.path, "result.json").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert all(row["reported"] == {"accuracy": 0.99} for row in rows)
        assert [row.get("accuracy") for row in rows] == [
            None if trial is without else n / 100 for n in range(1, LENGTH + 1)
        ]


@pytest.mark.parametrize("on_pending", MODES)
def test_retention_ranks_by_validated_scores_only(tmp_path, on_pending):
    def validate(attempt):
        if attempt.request.iteration > 4:
            raise ValueError("works no more")
        return modest(attempt)

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending=on_pending,
        trainable=Boasting,
        validate=validate,
        settings={"max_retries": 0},
        trials=1,
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="accuracy"
        ),
    )
    manager = ran.trials[0].run_metadata.checkpoint_manager
    best = {
        r.metrics["training_iteration"]: r.metrics["accuracy"]
        for r in manager.best_checkpoint_results
    }
    assert best == {3: 0.03, 4: 0.04}
    left = sorted(p.name for p in Path(ran.trials[0].path).glob("checkpoint_*"))
    assert len(left) == 3, "the best two, and the latest"


def test_a_criterion_on_a_validated_metric_does_not_look_at_trainings(tmp_path):
    for on_pending in MODES:
        ran = sweep(
            tmp_path / on_pending,
            FIFOScheduler(),
            on_pending=on_pending,
            trainable=Boasting,
            validate=modest,
            stop={"accuracy": 0.5},
            trials=2,
        )
        assert set(ran.lengths().values()) == {LENGTH}


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


def test_a_sweep_without_any_checkpoint_is_an_error_at_its_end(tmp_path):
    with pytest.raises(tunekit.errors.MetricNotFoundError, match="No trial has saved a checkpoint"):
        sweep(
            tmp_path,
            FIFOScheduler(),
            policy=SavesWhen(lambda trial, result: False),
            trials=2,
        )


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
    assert trial.num_failures == 1
    assert trial.last_result["training_iteration"] == 3


def test_a_later_score_with_a_new_name_changes_what_was_folded_before(tmp_path):
    """The second trial's validation also returns a loss: training's is then another quantity."""

    def validate(attempt):
        more = {"loss": 0.7} if attempt.request.trial_id.endswith("1") else {}
        return {**modest(attempt), **more}

    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        trials=2,
        slots=1,
        loggers=True,
    )
    first, second = (
        [json.loads(line) for line in Path(trial.path, "result.json").read_text().splitlines()]
        for trial in ran.trials
    )
    assert all("loss" not in row and row["reported"]["loss"] for row in first)
    assert all(row["loss"] == 0.7 and row["reported"]["loss"] for row in second)
    assert [row["accuracy"] for row in first] == [n / 100 for n in range(1, LENGTH + 1)]
