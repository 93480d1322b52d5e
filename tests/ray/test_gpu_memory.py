"""Idle evaluators, reused actors and reused workers leave no GPU memory behind.

Skipped where there is no GPU. Ray counts one GPU here, whatever the machine has. How trials and
validations share it is what `scripts/gpu_check.py` shows.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

import pytest
import ray
import torch
from ray import train, tune

import tunekit
from tests.support.real_sweeps import fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MB = 2**20


@pytest.fixture(scope="module", autouse=True)
def one_gpu():
    """A Ray of its own: the session's has no GPU."""
    if ray.is_initialized():
        pytest.skip("needs a Ray of its own: run this file by itself")
    ray.init("local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    yield
    ray.shutdown()


def saved(weights):
    folder = tempfile.mkdtemp()
    torch.save(weights.cpu(), Path(folder, "weights.pt"))
    return train.Checkpoint.from_directory(folder)


def loaded(checkpoint):
    with checkpoint.as_directory() as folder:
        return torch.load(Path(folder, "weights.pt")).cuda()


def validate(checkpoint):
    return {"accuracy": loaded(checkpoint).mean().item()}


class Hungry:
    """Says what its process had reserved of the GPU before it takes 256 MB."""

    def __call__(self, checkpoint):
        before = torch.cuda.memory_reserved() / MB
        weights = loaded(checkpoint)
        torch.zeros(256 * MB // 4, device="cuda").sum().item()
        return {"accuracy": weights.mean().item(), "before": before}


def slowly(config):
    for epoch in range(3):
        time.sleep(3)  # longer than an evaluator waits before it gives memory back
        tune.report({"epoch": epoch}, checkpoint=saved(torch.full((8,), float(epoch))))


def test_idle_evaluator_releases_its_gpu_memory(tmp_path):
    results = fit(
        tune.with_resources(slowly, {"cpu": 1, "gpu": 0.5}),
        tmp_path,
        param_space={},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        validation_config=tunekit.ValidationConfig(
            fn=Hungry, ray_remote_kwargs={"num_gpus": 0.5}, evaluators=1, on_pending="continue"
        ),
    )
    assert not results.errors
    assert (results[0].metrics_dataframe["before"] < 64).all()


def hungry(config):
    before = torch.cuda.memory_reserved() / MB
    torch.zeros(256 * MB // 4, device="cuda").sum().item()
    tune.report({"before": before}, checkpoint=saved(torch.full((8,), config["lr"])))


def test_reused_actor_begins_its_next_trial_with_free_gpu_memory(tmp_path):
    results = fit(
        tune.with_resources(hungry, {"cpu": 1, "gpu": 0.5}),
        tmp_path,
        param_space={"lr": tune.grid_search([0.1, 0.2, 0.3])},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", reuse_actors=True, max_concurrent_trials=1
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate, ray_remote_kwargs={"num_gpus": 0.5}
        ),
    )
    assert not results.errors
    assert all(result.metrics["before"] < 64 for result in results)


def hungry_loop(config):
    before = torch.cuda.memory_reserved() / MB
    torch.zeros(256 * MB // 4, device="cuda").sum().item()
    weights = torch.full((8,), config["lr"], device="cuda")
    metrics = {"before": before, "drawn": torch.rand(1, device="cuda").item()}
    train.report(metrics, checkpoint=saved(weights))


def test_reused_workers_begin_with_free_gpu_memory_and_the_same_random_state(tmp_path):
    """Its memory is free, and its random generator begins at the same place."""
    from ray.train.torch import TorchTrainer

    scaling = train.ScalingConfig(
        num_workers=1, use_gpu=True, resources_per_worker={"CPU": 1, "GPU": 0.5}
    )
    results = fit(
        TorchTrainer(hungry_loop, scaling_config=scaling),
        tmp_path,
        param_space={"train_loop_config": {"lr": tune.grid_search([0.1, 0.2, 0.3])}},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", max_concurrent_trials=1),
        validation_config=tunekit.ValidationConfig(
            fn=validate, ray_remote_kwargs={"num_gpus": 0.5}
        ),
    )
    assert not results.errors
    assert all(result.metrics["before"] < 64 for result in results)
    assert len({result.metrics["drawn"] for result in results}) == 1
