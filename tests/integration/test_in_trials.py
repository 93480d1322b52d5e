"""Validations in the processes of trials, which go on as if nothing had been there."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray
import torch
from ray import train, tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.integration.test_in_workers import disturbed, read
from tests.invariants import check_journal
from tunekit.core.pool import Durations
from tunekit.journal.journal import events_in

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

LENGTH = 4


def step(state: dict[str, Any]) -> dict[str, Any]:
    """Train: what comes out depends on all random numbers, and on what the process is set to."""
    state["n"] += 1
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    settings = torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.get_num_threads()
    return {
        "drawn": repr(drawn),
        "set": repr((*settings, os.environ.get("DISTURBED"), os.getcwd() == state["folder"])),
        "pid": os.getpid(),
    }


def begun(n: int, seed: int) -> dict[str, Any]:
    for begin in (random.seed, numpy.random.seed, torch.manual_seed):
        begin(1000 * seed + n)
    return {"n": n, "folder": os.getcwd()}


def function(config: dict[str, Any]) -> None:
    checkpoint, n = tune.get_checkpoint(), 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            n = json.loads(Path(folder, "n").read_text())[0]
    state = begun(n, config["seed"])
    saved = lambda d: (d / "n").write_text(json.dumps([state["n"], config["seed"]]))  # noqa: E731
    tunekit.checkpoint_with(saved)
    while state["n"] < LENGTH:
        tune.report(step(state))


class Class(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.state = begun(0, config["seed"])

    def step(self) -> dict[str, Any]:
        return {**step(self.state), "done": self.state["n"] >= LENGTH}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        saved = json.dumps([self.state["n"], self.config["seed"]])
        Path(checkpoint_dir, "n").write_text(saved)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        n, seed = json.loads(Path(checkpoint_dir, "n").read_text())
        self.state = begun(n, seed)


def lose_the_gpu() -> None:
    raise RuntimeError("CUDA error: device-side assert triggered")


def disturb(checkpoint: tune.Checkpoint, *, how: str = "", marks: str = "") -> dict[str, Any]:
    """Validate, and leave a process as no training would like it."""
    n, seed = read(checkpoint)
    if how and n == 2 and seed == 2 and not os.path.exists(marks):
        Path(marks).touch()
        if how == "crashes":
            os._exit(1)
        if how == "hangs":
            time.sleep(600)
        torch.cuda.is_initialized = lambda: True  # as after an error in a kernel
        torch.cuda.synchronize = lose_the_gpu
        lose_the_gpu()
    accuracy = {"accuracy": float(seed * n), "where": os.getpid()}
    if ray.get_runtime_context().get_actor_id() is None:
        return accuracy  # the process of a task may run another test's
    disturbed()
    return accuracy


def swept(folder: Path, trainable: Any, **fn_kwargs: Any) -> tuple[Any, tunekit.Sweep]:
    """Two trials after each other, each of which takes all CPUs."""
    limit = train.ValidationTaskConfig(fn_kwargs=fn_kwargs, timeout_s=5 if fn_kwargs else None)
    results = tunekit.Tuner(
        tune.with_resources(trainable, {"cpu": ray.cluster_resources()["CPU"]}),
        param_space={"seed": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=LENGTH, grace_period=2, reduction_factor=2),
        ),
        run_config=tune.RunConfig(storage_path=str(folder), name="sweep", verbose=0),
        validation_config=tunekit.ValidationConfig(disturb, limit, when=1),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()
    assert not results.errors
    lives = check_journal(events_in(folder / "sweep"))
    assert len(lives.scores) == 2 * LENGTH
    return results, tunekit.load(folder / "sweep")


def trained(results: Any) -> list[Any]:
    """By trial, what training came to."""
    return [list(zip(one.drawn, one.set, strict=True)) for one in rows(results)]


def rows(results: Any) -> list[Any]:
    found = sorted(results, key=lambda result: result.config["seed"])
    return [result.metrics_dataframe for result in found]


@pytest.fixture(params=[function, Class], ids=["function", "class"])
def trainable(request) -> Any:
    return request.param


def test_training_does_not_notice(tmp_path, trainable, monkeypatch):
    # Forked workers start in no time, beside which no validation is short.
    monkeypatch.setattr(Durations, "are_short", lambda *_: True)
    results, sweep = swept(tmp_path, trainable)
    alone = tune.Tuner(
        tunekit.checkpointable(function) if trainable is function else trainable,
        param_space={"seed": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="alone", verbose=0),
    ).fit()
    assert trained(results) == trained(alone)
    # Each ran where its trial trained. (The class ends itself with the last one.)
    reports = sweep.reports[sweep.reports.training_iteration < LENGTH]
    assert (reports["where"] == reports["pid"]).all()


@pytest.mark.parametrize(
    ("trainable", "how"),
    [
        (function, "loses the GPU"),
        (Class, "hangs"),
        pytest.param(function, "crashes", marks=pytest.mark.at_night),
        pytest.param(function, "hangs", marks=pytest.mark.at_night),
        pytest.param(Class, "crashes", marks=pytest.mark.at_night),
    ],
)
def test_a_trial_whose_process_a_validation_ends_goes_on(tmp_path, trainable, how, caplog):
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        results, sweep = swept(tmp_path, trainable, how=how, marks=str(tmp_path / "ended"))
    assert [list(one.training_iteration) for one in rows(results)] == [[1, 2, 3, 4]] * 2
    reports = sweep.reports.set_index("trial_id")
    hit = reports[reports["config/seed"] == 2] if "config/seed" in reports else reports
    assert hit.pid.nunique() >= 2, "it began again in another process"
    told = [record.getMessage() for record in caplog.records]
    assert sum("run in separate processes" in text for text in told) == 1
