"""Further stages of validation on a real Ray."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.integration.runs import counting, fit
from tests.journals import read

pytestmark = pytest.mark.ray


def accuracy_of(checkpoint) -> float:
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return state["steps"] * state["scale"] / 10


def quick(checkpoint):
    assert tunekit.get_validation_context().stage == ""
    return {"accuracy": accuracy_of(checkpoint)}


def thorough(checkpoint, *, share):
    time.sleep(0.3)
    held = ray.get_runtime_context().get_assigned_resources()
    context = tunekit.get_validation_context()
    assert context.stage == "full"
    return {"accuracy": accuracy_of(checkpoint) * share, "cpus": held.get("CPU", 0.0)}


def no_data(checkpoint):
    raise FileNotFoundError("/data/other")


def test_a_full_validation_of_the_winners_and_one_that_is_broken(ray_cluster, tmp_path, caplog):
    results = fit(
        counting,
        tmp_path,
        param_space={"length": 4, "scale": tune.grid_search([1.0, 2.5, 0.2, 0.1])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=4, grace_period=2, reduction_factor=2),
        ),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        validation_config=tunekit.ValidationConfig(
            fn=quick,
            on_pending="wait",
            stages=[
                tunekit.Stage(
                    "full",
                    thorough,
                    task_config=ray.train.ValidationTaskConfig(fn_kwargs={"share": 0.5}),
                    ray_remote_kwargs={"num_cpus": 2},
                ),
                tunekit.Stage("other", no_data, every=1, max_retries=0, evaluators=1),
            ],
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    assert not results.errors
    table = results.get_dataframe().set_index("config/scale")
    assert table.accuracy[2.5] == 1.0 and table["full/accuracy"][2.5] == 0.5
    assert table["full/cpus"][2.5] == 2.0
    assert results.get_best_result("full/accuracy", "max").config["scale"] == 2.5
    sweep = tunekit.load(results.experiment_path)
    full = sweep.validations.query("stage == 'full'")
    kept = set(full.trial_id) - set(sweep.trials.query("stopped and iteration == 2").trial_id)
    assert {*full.iteration} == {2, 4} and (full.status == "validated").all() and kept
    other = sweep.summary()["stages"]["other"]
    assert set(other) <= {"failed", "skipped"} and other["failed"] >= 3
    assert "continues without this stage" in caplog.text and "/data/other" in caplog.text
    ended = [event["id"] for event in read(results.experiment_path) if event["event"] == "ended"]
    assert len(ended) == len(set(ended))
