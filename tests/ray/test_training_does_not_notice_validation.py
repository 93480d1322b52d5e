"""Validations in the processes of trials do not change their training."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
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
from tests.support.invariants import check_journal
from tests.support.real_sweeps import fit
from tunekit.core.pool import Durations
from tunekit.distributed import TrainerValidation
from tunekit.journal.journal import events_in
from tunekit.validating import ray_executor

pytestmark = pytest.mark.usefixtures("ray_cluster")

LENGTH = 4

# Trials: what comes out depends on all random numbers, and on what the process is set to ----------


def begun(n: int, seed: int, rank: int = 0) -> dict[str, Any]:
    for begin in (random.seed, numpy.random.seed, torch.manual_seed):
        begin(1000 * seed + 10 * n + rank)
    return {"n": n, "folder": os.getcwd()}


def trained(state: dict[str, Any], *computed: float) -> str:
    """Train for an iteration; return what training came to."""
    state["n"] += 1
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item(), *computed
    settings = torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.get_num_threads()
    settings += gc.isenabled(), signal.getitimer(signal.ITIMER_REAL)[0], os.fstat(1).st_rdev
    settings += (str(signal.getsignal(signal.SIGUSR1)),)
    print("trained")  # to a stream that is open
    return repr((drawn, settings, os.environ.get("DISTURBED"), os.getcwd() == state["folder"]))


def save(folder: Path, n: int, seed: int) -> None:
    (folder / "n").write_text(json.dumps([n, seed]))


def load(checkpoint: tune.Checkpoint) -> tuple[int, int]:
    with checkpoint.as_directory() as folder:
        n, seed = json.loads(Path(folder, "n").read_text())
    return n, seed


def function(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    state = begun(load(checkpoint)[0] if checkpoint else 0, config["seed"])
    tunekit.checkpoint_with(lambda folder: save(folder, state["n"], config["seed"]))
    while state["n"] < LENGTH:
        tune.report({"trained": trained(state), "process": os.getpid()})


class Class(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.state = begun(0, config["seed"])

    def step(self) -> dict[str, Any]:
        row = {"trained": trained(self.state), "process": os.getpid()}
        return {**row, "done": self.state["n"] >= LENGTH}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        save(Path(checkpoint_dir), self.state["n"], self.config["seed"])

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.state = begun(*json.loads(Path(checkpoint_dir, "n").read_text()))


def loop(config: dict[str, Any]) -> None:
    rank, n = train.get_context().get_world_rank(), 0
    torch.manual_seed(config["seed"])
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    if checkpoint := train.get_checkpoint():
        n, _ = load(checkpoint)
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder, "model")))
    state = begun(n, config["seed"], rank)
    model = train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while state["n"] < LENGTH:
        x = torch.rand(16, 4)
        loss = ((model(x)[:, 0] - x.sum(1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        of_ranks = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, trained(state, loss.item()))
        metrics = {"trained": repr(of_ranks), "process": os.getpid()}
        with tempfile.TemporaryDirectory() as saved:
            if rank == 0:
                save(Path(saved), state["n"], config["seed"])
                torch.save(getattr(model, "module", model).state_dict(), Path(saved, "model"))
            # What a loop sets for its own thread must not show in a score.
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                train.report(metrics, checkpoint=train.Checkpoint.from_directory(saved))


# Validations --------------------------------------------------------------------------------------


def disturbed() -> None:
    """Leave a process as no training would like it."""
    for draw in (random.random, numpy.random.rand, lambda: torch.rand(1)):
        draw()
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    os.environ["DISTURBED"] = "1"
    os.chdir("/")
    gc.disable()
    signal.alarm(1000)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # in the main thread
    sys.stdout.close()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def lose_the_gpu() -> None:
    raise RuntimeError("CUDA error: device-side assert triggered")


def fault(how: str, n: int, marks: str) -> None:
    """Once, at the second checkpoint."""
    if n != 2 or not how or os.path.exists(marks):
        return
    Path(marks).touch()
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exits":
        os._exit(0)
    elif how == "hangs":
        time.sleep(600)
    elif how == "raises":
        raise ValueError("once")
    elif how == "loses the GPU":
        torch.cuda.is_initialized = lambda: True  # as after an error in a kernel
        torch.cuda.synchronize = lose_the_gpu
        lose_the_gpu()
    elif how == "ends its process group":
        with tempfile.NamedTemporaryFile() as file:
            dist.init_process_group("gloo", f"file://{file.name}", rank=0, world_size=1)
            dist.destroy_process_group()


def validate(checkpoint: tune.Checkpoint, *, how: str = "", marks: str = "") -> dict[str, Any]:
    """Validate in one process; that of trainers is rank 0."""
    n, seed = load(checkpoint)
    fault(how, n, marks)
    alone = not (dist.is_initialized() or "RANK" in os.environ)
    exact = torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    result = {"accuracy": float(seed * n), "where": os.getpid(), "alone": alone and exact}
    if ray.get_runtime_context().get_actor_id() is not None:
        disturbed()  # the process of a task may run another test's
    return result


def validation_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Validate on all ranks, of which the second one fails."""
    n, _ = load(config["checkpoint"])
    rank = torch.tensor(train.get_context().get_world_rank())
    if rank == 1:
        fault(config.get("how", ""), n, config.get("marks", ""))
    dist.all_reduce(rank)
    train.report({"nobody": "hears of it"})
    told = tunekit.get_validation_context().config["train_loop_config"]["seed"]
    disturbed()
    return {"accuracy": float(told * n), "where": os.getpid(), "alone": rank.item() == 1}


# Sweeps -------------------------------------------------------------------------------------------

TWO = train.ScalingConfig(num_workers=2)
TRAINER = TorchTrainer(loop, scaling_config=TWO)
KINDS: dict[str, tuple[Any, Any]] = {
    "function": (function, validate),
    "class": (Class, validate),
    "trainer": (TRAINER, validate),
    "all workers": (TRAINER, TrainerValidation(validation_loop, TWO)),
}


def swept(folder: Path, trainable: Any, validation: Any = None, **fn_kwargs: Any) -> Any:
    """Run a trial, by itself or with each checkpoint validated; return its table."""
    workers, seed, more = trainable is TRAINER, {"seed": 2}, {}
    if not workers:  # no resources are left over
        trainable = tune.with_resources(trainable, {"cpu": ray.cluster_resources()["CPU"]})
    if validation is not None:
        limit = train.ValidationTaskConfig(fn_kwargs=fn_kwargs, timeout_s=10 if fn_kwargs else None)
        needs = {"num_cpus": 0 if isinstance(validation, TrainerValidation) else 1}
        more["validation_config"] = tunekit.ValidationConfig(validation, limit, needs, when=1)
        asha = ASHAScheduler(max_t=LENGTH, grace_period=2, reduction_factor=2)
        more["tune_config"] = tune.TuneConfig(metric="accuracy", mode="max", scheduler=asha)
        if not workers:
            more["checkpoint_policy"] = tunekit.EveryIterations(1)
    results = fit(
        trainable, folder, param_space={"train_loop_config": seed} if workers else seed, **more
    )
    assert not results.errors
    if validation is not None:
        assert len(check_journal(events_in(folder / "sweep")).scores) == LENGTH
    return results[0].metrics_dataframe


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    # Forked workers start in no time, beside which no validation is short.
    monkeypatch.setattr(Durations, "are_short", lambda *_: True)


@pytest.fixture(scope="module")
def alone(ray_cluster, tmp_path_factory) -> Callable[[Any], list[str]]:
    """What training comes to without any validation."""
    return functools.cache(lambda kind: list(swept(tmp_path_factory.mktemp("alone"), kind).trained))


@pytest.mark.parametrize("kind", KINDS)
def test_training_in_the_trials_process_is_the_same_with_and_without_validation(
    tmp_path, kind, alone
):
    trainable, validation = KINDS[kind]
    table = swept(tmp_path, trainable, validation)
    assert list(table.trained) == alone(trainable)
    # Each ran where its trial trained, on rank 0. (The class ends itself with the last one.)
    inside = table["where"] == table["process"]
    assert inside[: LENGTH - (kind == "class")].all() and table.alone.all()


ENDS = [(kind, how) for kind in KINDS for how in ("exits", "segfault", "hangs")] + [
    ("function", "loses the GPU"),
    ("trainer", "loses the GPU"),
    ("trainer", "ends its process group"),
    ("trainer", "raises"),
    ("all workers", "raises"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "how"), ENDS)
def test_trial_restarts_from_the_checkpoint_whose_validation_ended_its_process(
    tmp_path, kind, how, caplog
):
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        table = swept(tmp_path, *KINDS[kind], how=how, marks=str(tmp_path / "ended"))
    assert list(table.training_iteration) == [1, 2, 3, 4]
    first, second, third, fourth = table.process
    # The one thing of which the executor warns: validations run in separate processes from now on.
    elsewhere = sum(record.name == ray_executor.__name__ for record in caplog.records)
    if (kind, how) == ("trainer", "raises"):
        assert first == fourth and not elsewhere, "it is an exception like any other"
    else:
        assert first == second != third == fourth, "it began again at the second"
        assert elsewhere == 1
