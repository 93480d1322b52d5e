"""Validations in the workers of trainers' trials, whose training goes on as if there were none."""

from __future__ import annotations

import json
import logging
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray
import torch
import torch.distributed as dist
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.invariants import check_journal
from tunekit.core.pool import Durations
from tunekit.distributed import TrainerValidation
from tunekit.journal.journal import events_in

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

LENGTH = 4


def training(config: dict[str, Any]) -> None:
    """Train: what comes out depends on all random numbers, and on what the process is set to."""
    rank, n = train.get_context().get_world_rank(), 0
    torch.manual_seed(config["seed"])
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            n = json.loads(Path(folder, "n").read_text())[0]
            model.load_state_dict(torch.load(Path(folder, "model")))
    for begin in (random.seed, numpy.random.seed, torch.manual_seed):
        begin(1000 * config["seed"] + 10 * n + rank)
    model = train.torch.prepare_model(model)
    optimizer, folder = torch.optim.SGD(model.parameters(), 0.1), os.getcwd()
    while n < LENGTH:
        x = torch.rand(16, 4)
        loss = ((model(x)[:, 0] - x.sum(1)) ** 2).mean() * random.random() * numpy.random.rand()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        settings = torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.get_num_threads()
        drawn = [None] * dist.get_world_size()
        own = loss.item(), settings, os.environ.get("DISTURBED"), os.getcwd() == folder
        dist.all_gather_object(drawn, repr(own))
        metrics = {"losses": repr(drawn), "worker": os.getpid()}
        with tempfile.TemporaryDirectory() as saved:
            if rank == 0:
                Path(saved, "n").write_text(json.dumps([n, config["seed"]]))
                torch.save(getattr(model, "module", model).state_dict(), Path(saved, "model"))
            # What a loop sets for its own thread must not show in a score.
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                train.report(metrics, checkpoint=train.Checkpoint.from_directory(saved))


def disturbed() -> None:
    """Leave a process as no training would like it."""
    for draw in (random.random, numpy.random.rand, lambda: torch.rand(1)):
        draw()
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    os.environ["DISTURBED"] = "1"
    os.chdir("/")


def read(checkpoint: tune.Checkpoint) -> tuple[int, int]:
    with checkpoint.as_directory() as folder:
        n, seed = json.loads(Path(folder, "n").read_text())
    return n, seed


def fault(how: str, n: int, seed: int, marks: str) -> None:
    """Once, at the second checkpoint of the second trial."""
    if n != 2 or seed != 2 or not how or os.path.exists(marks):
        return
    Path(marks).touch()
    if how == "segfault":
        import ctypes

        ctypes.string_at(0)
    elif how == "exits":
        os._exit(0)
    elif how == "hangs":
        time.sleep(600)
    elif how == "raises":
        raise ValueError("once")
    elif how == "out of memory":
        raise MemoryError("no more")
    elif how == "ends its process group":
        with tempfile.NamedTemporaryFile() as file:
            dist.init_process_group("gloo", f"file://{file.name}", rank=0, world_size=1)
            dist.destroy_process_group()


def function(checkpoint: tune.Checkpoint, *, how: str = "", marks: str = "") -> dict[str, Any]:
    """Validate on rank 0."""
    n, seed = read(checkpoint)
    fault(how, n, seed, marks)
    alone = not (dist.is_initialized() or "RANK" in os.environ)
    exact = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    result = {"accuracy": float(seed * n), "where": os.getpid(), "alone": alone and exact}
    if ray.get_runtime_context().get_actor_id() is not None:  # not the process of a task
        disturbed()
    return result


def loop(config: dict[str, Any]) -> dict[str, Any]:
    """Validate on all ranks, of which the second one fails."""
    n, seed = read(config["checkpoint"])
    rank = torch.tensor(train.get_context().get_world_rank())
    if rank == 1:
        fault(config.get("how", ""), n, seed, config.get("marks", ""))
    dist.all_reduce(rank)
    train.report({"nobody": "hears of it"})
    told = tunekit.get_validation_context().config["train_loop_config"]["seed"]
    disturbed()
    return {"accuracy": float(told * n), "where": os.getpid(), "alone": rank.item() == 1}


VALIDATIONS: dict[str, Any] = {
    "function": function,
    "loop": TrainerValidation(loop, train.ScalingConfig(num_workers=2)),
}


@pytest.fixture(params=list(VALIDATIONS))
def validate(request) -> Any:
    return VALIDATIONS[request.param]


def space() -> dict[str, Any]:
    return {"train_loop_config": {"seed": tune.grid_search([1, 2])}}


def swept(folder: Path, validate: Any, **fn_kwargs: Any) -> tuple[Any, tunekit.Sweep]:
    """Two trials of two workers each, one after the other."""
    limit = train.ValidationTaskConfig(fn_kwargs=fn_kwargs, timeout_s=10 if fn_kwargs else None)
    needs = {"num_cpus": 0 if isinstance(validate, TrainerValidation) else 1}
    results = tunekit.Tuner(
        TorchTrainer(training, scaling_config=train.ScalingConfig(num_workers=2)),
        param_space=space(),
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=LENGTH, grace_period=2, reduction_factor=2),
        ),
        run_config=tune.RunConfig(storage_path=str(folder), name="sweep", verbose=0),
        validation_config=tunekit.ValidationConfig(
            validate, limit, ray_remote_kwargs=needs, when=1
        ),
    ).fit()
    assert not results.errors
    lives = check_journal(events_in(folder / "sweep"))
    assert len(lives.scores) == 2 * LENGTH
    return results, tunekit.load(folder / "sweep")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    # Forked workers start in no time, beside which no validation is short.
    monkeypatch.setattr(Durations, "are_short", lambda *_: True)


def rows(results: Any) -> list[Any]:
    found = sorted(results, key=lambda result: result.config["train_loop_config"]["seed"])
    return [result.metrics_dataframe for result in found]


@pytest.fixture(scope="module")
def losses_alone(ray_cluster, tmp_path_factory) -> list[list[str]]:
    """The losses of trials without any validation."""
    alone = tunekit.Tuner(
        TorchTrainer(training, scaling_config=train.ScalingConfig(num_workers=2)),
        param_space=space(),
        run_config=tune.RunConfig(storage_path=str(tmp_path_factory.mktemp("alone")), verbose=0),
    ).fit()
    return [list(one.losses) for one in rows(alone)]


def test_training_does_not_notice(tmp_path, validate, losses_alone):
    results, sweep = swept(tmp_path, validate)
    assert [list(one.losses) for one in rows(results)] == losses_alone
    # Each ran where its trial trained: on rank 0.
    reports = sweep.reports
    assert (reports["where"] == reports["worker"]).all() and reports.alone.all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["segfault", "exits", "hangs", "raises", "ends its process group"])
def test_a_trial_whose_workers_a_validation_ends_goes_on(tmp_path, validate, how, caplog):
    if how == "ends its process group" and validate is not function:
        pytest.skip("it is the trial's own")
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        results, _ = swept(tmp_path, validate, how=how, marks=str(tmp_path / "ended"))
    assert [list(one.training_iteration) for one in rows(results)] == [[1, 2, 3, 4]] * 2
    first, second, third, fourth = rows(results)[1].worker
    told = [record.getMessage() for record in caplog.records]
    elsewhere = sum("run in separate processes" in text for text in told)
    if how == "raises" and validate is function:
        assert first == fourth and not elsewhere, "it is an exception like any other"
        return
    assert first == second != third == fourth, "it began again at the second"
    assert elsewhere == 1
