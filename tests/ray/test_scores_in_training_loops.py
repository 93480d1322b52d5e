"""A training loop that asks for its scores receives those of all its reports."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from ray import train, tune
from ray.train.torch import TorchTrainer

import tunekit
from tests.support.real_sweeps import fit

pytestmark = pytest.mark.usefixtures("leaves_nothing")

VALIDATED = train.CheckpointConsistencyMode.VALIDATED


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    """The score is a tenth of the iteration, later."""
    assert tunekit.get_all_reported_checkpoints() == [], "a validation is no part of the trial"
    time.sleep(0.3)
    with checkpoint.as_directory() as folder:
        return {"accuracy": int(Path(folder, "steps").read_text()) / 10}


class Evaluator:
    """The same, in a process that is kept."""

    def __call__(self, checkpoint: tune.Checkpoint) -> dict[str, float]:
        return validate(checkpoint)


def known(reported: list[train.ReportedCheckpoint]) -> str:
    """What a loop was told, as a text for its next report."""
    assert all(Path(one.checkpoint.path).is_dir() for one in reported)
    return " ".join(f"{one.status.value}:{one.metrics.get('accuracy')}" for one in reported)


def function(config: dict[str, Any]) -> None:
    steps, seen = 0, ""
    tunekit.checkpoint_with(lambda folder: (folder / "steps").write_text(str(steps)))
    while steps < 4:
        steps += 1
        tune.report({"loss": 1 / steps, "seen": seen})
        seen = known(tunekit.get_all_reported_checkpoints(VALIDATED))


class Class(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        seen = known(tunekit.get_all_reported_checkpoints())
        if self.steps == 1:
            with pytest.raises(tunekit.errors.WiringError):
                tunekit.get_all_reported_checkpoints(VALIDATED)
        return {"loss": 1 / self.steps, "seen": seen, "done": self.steps == 4}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "steps").write_text(str(self.steps))


def loop(config: dict[str, Any]) -> None:
    """All ranks see the same, and report it."""
    import torch.distributed as dist

    rank, seen = train.get_context().get_world_rank(), ""
    for steps in range(1, 5):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "steps").write_text(str(steps))
            checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"loss": 1 / steps, "seen": seen}, checkpoint=checkpoint)
        seen = known(train.get_all_reported_checkpoints())
        if dist.is_initialized():
            everywhere = [None] * dist.get_world_size()
            dist.all_gather_object(everywhere, seen)
            assert {*everywhere} == {seen}


def trainer(workers: int) -> TorchTrainer:
    return TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=workers))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["trial", "elsewhere", "evaluators"])
@pytest.mark.parametrize("form", ["function", "class", "worker", "workers"])
def test_training_loop_receives_the_scores_of_all_its_reports(tmp_path, form, where):
    trainable = {
        "function": lambda: function,
        "class": lambda: Class,
        "worker": lambda: trainer(1),
        "workers": lambda: trainer(2),
    }[form]()
    results = fit(
        trainable,
        tmp_path,
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        validation_config=tunekit.ValidationConfig(
            Evaluator if where == "evaluators" else validate,
            ray_remote_kwargs={"num_cpus": 0.5},
            when=1,
            on_pending="wait" if form == "class" else "auto",
            **({"evaluators": 1} if where == "evaluators" else {"where": where}),
        ),
        **({} if form.startswith("worker") else {"callbacks": [tunekit.EveryIterations(1)]}),
    )
    assert not results.errors
    for result in results:
        seen = result.metrics_dataframe["seen"].fillna("").tolist()
        scores = [f"VALIDATED:{n / 10}" for n in range(1, 5)]
        assert seen == [" ".join(scores[:n]) for n in range(4)]


def asking_alone(config: dict[str, Any]) -> None:
    """Each rank asks for itself, after another number of reports; nothing is validated."""
    rank, seen = train.get_context().get_world_rank(), 0
    for steps in range(1, 4):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"loss": 1 / steps, "seen": seen}, checkpoint=checkpoint)
        if steps == 3 - rank:
            reported = train.get_all_reported_checkpoints()
            assert [one.metrics for one in reported] == [
                {"loss": 1 / n, "seen": 0} for n in range(1, steps + 1)
            ]
            assert {one.status.value for one in reported} == {"COMMITTED"}


def test_trainer_without_validation_receives_its_committed_checkpoints(tmp_path):
    alone = TorchTrainer(asking_alone, scaling_config=train.ScalingConfig(num_workers=2))
    results = tunekit.Tuner(
        alone, run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    ).fit()
    assert not results.errors and results[0].metrics["training_iteration"] == 3
