"""Whose process a trial runs in, on a real Ray."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import HyperBandScheduler

import tunekit
from tests.support.real_sweeps import fit

pytestmark = pytest.mark.usefixtures("ray_cluster")


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


@pytest.mark.parametrize("reuses", [False, True], ids=["by default", "reuse_actors"])
@pytest.mark.parametrize("kind", ["function", "class", "trainer"])
def test_only_with_reuse_actors_a_trial_has_another_ones_process(tmp_path, kind, reuses):
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


def test_a_trial_that_pauses_leaves_its_workers_only_to_itself(tmp_path):
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
