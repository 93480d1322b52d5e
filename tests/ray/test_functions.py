"""Functions and classes save on demand, and a reused process does not change what they do."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler

import tunekit
from tests.support.real_sweeps import counting, fit

pytestmark = pytest.mark.usefixtures("ray_cluster")


class CountingClass(tune.Trainable):
    def setup(self, config):
        self.length, self.steps = config["length"], 0

    def step(self):
        self.steps += 1
        return {"loss": 1 / self.steps, "done": self.steps == self.length}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "state.json").write_text(json.dumps({"steps": self.steps}))

    def load_checkpoint(self, checkpoint_dir):
        self.steps = json.loads(Path(checkpoint_dir, "state.json").read_text())["steps"]


def reporting(config, every=2):
    """Knows nothing of tunekit; reports every second state with its own checkpoint."""
    for step in range(1, config["length"] + 1):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"steps": step}))
            checkpoint = tune.Checkpoint.from_directory(folder) if step % every == 0 else None
            tune.report({"loss": 1 / step}, checkpoint=checkpoint)


@pytest.mark.parametrize("form", ["function", "class", "reports", "with parameters and resources"])
def test_checkpoints_of_each_form_of_trainable_are_kept_with_their_scores(tmp_path, form):
    tune.register_trainable("reporting", reporting)
    with_parameters = tune.with_parameters(reporting, every=3)
    trainable, made = {
        "function": (counting, [[2, 4, 5], [2, 4, 6]]),
        "class": (CountingClass, [[2, 4, 5], [2, 4, 6]]),
        "reports": ("reporting", [[2, 4], [2, 4, 6]]),
        "with parameters and resources": (
            tune.with_resources(with_parameters, {"cpu": 2}),
            [[3], [3, 6]],
        ),
    }[form]
    on_demand = form in ("function", "class")
    every = {"checkpoint_frequency": 2, "checkpoint_at_end": True} if on_demand else {}
    results = fit(
        trainable,
        tmp_path,
        param_space={"length": tune.grid_search([5, 6])},
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2, **every),
        validation_config=tunekit.ValidationConfig(fn=validate_steps, when=1),
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
    )
    assert not results.errors
    for result, steps in zip(results, made, strict=True):
        scores = {step: step / 10 for step in steps}
        table = result.metrics_dataframe.set_index("training_iteration")
        assert table["accuracy"].dropna().to_dict() == scores
        for found in (result, tune.Result.from_path(result.path)):
            kept = {m["training_iteration"]: m["accuracy"] for _, m in found.best_checkpoints}
            assert kept == {step: scores[step] for step in steps[-2:]}
            for checkpoint in (found.checkpoint, found.get_best_checkpoint("accuracy", "max")):
                assert validate_steps(checkpoint) == {"accuracy": scores[steps[-1]]}


def validate_steps(checkpoint):
    with checkpoint.as_directory() as folder:
        return {"accuracy": json.loads(Path(folder, "state.json").read_text())["steps"] / 10}


def test_checkpoint_with_in_a_plain_tuner_raises_an_error_naming_checkpointable(tmp_path):
    results = tune.Tuner(
        counting,
        param_space={"length": 4},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert "tunekit.checkpointable(function)" in str(results.errors[0])


def test_restarted_function_may_ignore_only_checkpoints_that_it_saved_itself(tmp_path):
    """As in Tune; only what tunekit saves must be resumed."""

    def begins_anew(config):
        if config["registers"]:
            tunekit.checkpoint_with(lambda folder: None)
        failed = tmp_path / f"failed-{config['registers']}"
        for step in range(1, 4):
            if step == 3 and not failed.exists():
                failed.touch()
                raise RuntimeError("fails once")
            with tempfile.TemporaryDirectory() as folder:
                tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))

    space = {"registers": tune.grid_search([False, True])}
    results = fit(begins_anew, tmp_path / "results", max_failures=1, param_space=space)
    [error] = results.errors
    assert isinstance(error.cause, tunekit.errors.NotResumedError)
    [plain] = [result for result in results if not result.config["registers"]]
    assert plain.error is None
    # Tune goes on counting iterations where the checkpoint was.
    assert list(plain.metrics_dataframe["step"]) == [1, 2, 1, 2, 3]


# In the process of another trial -----------------------------------------------------------------

RUNS = 0


def scored(checkpoint):
    return {"accuracy": json.loads(Path(checkpoint.path, "state.json").read_text())["score"]}


def swept_in_one_process(folder, body):
    """Each trial reports what ``body`` returns, in a process that one after the other may use."""

    def train(config):
        global RUNS
        RUNS += 1
        found = body(config["n"])
        found |= {"runs": RUNS, "pid": os.getpid(), "drawn": torch.rand(1).item()}
        os.environ["LEFT_BEHIND"] = "1"
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        tunekit.checkpoint_with(
            lambda folder: (folder / "state.json").write_text(json.dumps({"score": config["n"]}))
        )
        tune.report(found)

    return fit(
        train,
        folder,
        param_space={"n": tune.grid_search([0, 1, 2])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=1, metric="accuracy", mode="max", reuse_actors=True
        ),
        validation_config=tunekit.ValidationConfig(fn=scored),
    )


def test_function_in_a_reused_process_finds_it_like_a_new_process(tmp_path):
    def found(n):
        return {
            "left": "LEFT_BEHIND" in os.environ,
            "type": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "folder": os.getcwd(),
        }

    results = swept_in_one_process(tmp_path, found)
    rows = [result.metrics for result in results]
    assert len({row["pid"] for row in rows}) == 1, "nothing started for the others"
    assert {(row["runs"], row["left"], row["type"]) for row in rows} == {
        (1, False, "torch.float32")
    }
    assert len({(row["drawn"], row["threads"]) for row in rows}) == 1
    assert [row["accuracy"] for row in rows] == [0, 1, 2]
    # Each has its own folder: what it writes there is not the former trial's.
    assert [os.path.basename(row["folder"]) for row in rows] == [
        os.path.basename(result.path) for result in results
    ]


def test_trial_that_fails_in_a_reused_process_continues_in_a_new_process(tmp_path):
    """What no reset can know of: a module's variable. The third trial's process dies of it."""

    def trips(n):
        if hasattr(sys, "tunekit_was_here"):
            if n == 2:
                os._exit(1)
            raise RuntimeError("somebody was here")
        sys.tunekit_was_here = True
        return {}

    results = swept_in_one_process(tmp_path, trips)
    assert not results.errors
    assert len({result.metrics["pid"] for result in results}) == 3
    assert [result.metrics["accuracy"] for result in results] == [0, 1, 2]


def test_stopped_function_that_does_not_return_does_not_block_the_next_trial(tmp_path):
    def lingers(config):
        tunekit.checkpoint_with(
            lambda folder: (folder / "state.json").write_text(json.dumps({"score": -config["n"]}))
        )
        try:
            for step in range(2):
                tune.report({"step": step})
        finally:
            if config["n"] == 1:
                time.sleep(60)

    results = fit(
        lingers,
        tmp_path,
        param_space={"n": tune.grid_search([0, 1, 2])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=1,
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=2, grace_period=1, reduction_factor=2),
            reuse_actors=True,
        ),
        validation_config=tunekit.ValidationConfig(fn=scored),
    )
    assert not results.errors
    assert [result.metrics["accuracy"] for result in results] == [0, -1, -2]


# Whose process a trial runs in ------------------------------------------------------------------


def marks() -> dict:
    """Leave a mark in this process; return what it has found there."""
    found = getattr(sys, "tunekit_mark", "")
    sys.tunekit_mark = "left behind"
    return {"found": found, "process": os.getpid(), "folder": os.getcwd()}


def function(config):
    row = marks()
    tunekit.checkpoint_with(lambda folder: (folder / "n").write_text(str(config["n"])))
    tune.report(row)


class Class(tune.Trainable):
    def setup(self, config):
        self.row = marks()

    def reset_config(self, new_config):
        self.setup(new_config)
        return True

    def step(self):
        return {**self.row, "done": True}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "n").write_text(str(self.config["n"]))


def loop(config):
    row = marks()
    checkpoint, step = train.get_checkpoint(), 0
    if checkpoint:
        step = int(Path(checkpoint.path, "step").read_text())
    while step < config["length"]:
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "n").write_text(str(config["n"]))
            Path(folder, "step").write_text(str(step))
            train.report({**row, "step": step}, checkpoint=train.Checkpoint.from_directory(folder))


def trainer(resources, length=1):
    return TorchTrainer(
        loop,
        train_loop_config={"length": length},
        scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker=resources),
    )


KINDS = {"function": function, "class": Class}


def validate(checkpoint):
    return {"accuracy": float(Path(checkpoint.path, "n").read_text())}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reuses", [False, True], ids=["by default", "reuse_actors"])
@pytest.mark.parametrize("kind", ["function", "class", "trainer"])
def test_trials_share_a_process_only_with_reuse_actors(tmp_path, kind, reuses):
    half, space = {"CPU": 3}, {"n": tune.grid_search([0, 1, 2])}
    results = fit(
        trainer(half) if kind == "trainer" else tune.with_resources(KINDS[kind], half),
        tmp_path,
        param_space={"train_loop_config": space} if kind == "trainer" else space,
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", **({"reuse_actors": True} if reuses else {})
        ),
        validation_config=tunekit.ValidationConfig(fn=validate, ray_remote_kwargs={"num_cpus": 0}),
    )
    assert not results.errors
    rows = [result.metrics for result in results]
    assert [row["accuracy"] for row in rows] == [0, 1, 2]
    assert (len({row["process"] for row in rows}) < 3) is reuses
    assert any(row["found"] for row in rows) is reuses
    folders = [os.path.basename(result.path) for result in results]
    assert [Path(row["folder"]).name for row in rows] == folders, "each writes into its own"


def test_paused_trials_never_share_their_worker_processes(tmp_path):
    """HyperBand pauses more trials than there is room for."""
    results = fit(
        trainer({"CPU": 2}, length=3),
        tmp_path,
        param_space={"train_loop_config": {"n": tune.grid_search(list(range(5)))}},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=HyperBandScheduler(
                time_attr="training_iteration", max_t=3, reduction_factor=3
            ),
        ),
        validation_config=tunekit.ValidationConfig(fn=validate),
    )
    assert not results.errors
    assert results.get_best_result().metrics["accuracy"] == 4
    found = [{*result.metrics_dataframe["process"]} for result in results]
    assert sum(map(len, found)) == len(set.union(*found)), "no two trials share one"
