"""A training loop of several workers whose weights are a version, and its validation."""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import train, tune

import tunekit
from tests.support import real_sweeps
from tests.support.versioned import score_of, version_at


def loop(config: dict[str, Any]) -> None:
    """``length`` iterations, each a checkpoint of a file per rank.

    The ranks compare their versions in each iteration. ``kill_at`` kills rank 1 there, the first
    time; ``folder`` is where that, and what ran, is written down. It does not pass ten before the
    file ``gate`` exists. If ``named``, it calls its checkpoints by their iteration.
    """
    import torch
    import torch.distributed as dist

    context = train.get_context()
    rank, folder = context.get_world_rank(), Path(config["folder"])
    version = random.Random(context.get_experiment_name()).randrange(1, 10**9) * 1000
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            version = version_at(directory)
            own = Path(directory, f"rank{rank}").read_text()
            assert int(own) == version, "each rank finds its own file"
    while version % 1000 < config["length"]:
        time.sleep(config.get("sleep_s", 0.0))
        if version % 1000 == 10:
            real_sweeps.wait_for(config.get("gate"))
        version += 1
        versions = [torch.zeros(1, dtype=torch.int64) for _ in range(context.get_world_size())]
        dist.all_gather(versions, torch.tensor([version]))
        assert {int(v) for v in versions} == {version}, "all ranks are at the same version"
        _note(folder / "ran", f"{context.get_experiment_name()} {rank} {version}")
        killed = folder / f"killed-{context.get_experiment_name()}"
        if config.get("kill_at") == version % 1000 and rank == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), 9)
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, f"rank{rank}").write_text(str(version))
            if rank == 0:
                Path(directory, "version").write_text(str(version))
            metrics = {"version": version, "worker_pid": os.getpid(), "at": time.time()}
            saved = train.Checkpoint.from_directory(directory)
            name = f"epoch-{version % 1000}" if config.get("named") else None
            train.report(metrics, checkpoint=saved, checkpoint_dir_name=name)


def validate(checkpoint: tune.Checkpoint, *, sleep_s: float = 0.0) -> dict[str, float]:
    """The score of the version."""
    time.sleep(sleep_s)
    with checkpoint.as_directory() as directory:
        return {"accuracy": score_of(version_at(directory), 5.0)}


def _note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def trainer(
    folder: Path,
    *,
    length: int = 5,
    workers: int = 2,
    cpus: float = 1,
    resources: dict[str, float] | None = None,
    run_config: train.RunConfig | None = None,
    **options: Any,
) -> Any:
    """A trainer of that loop, which gets the options; each worker takes so many CPUs."""
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder), "length": length, **options},
        scaling_config=train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": cpus, **(resources or {})}
        ),
        run_config=run_config,
    )


def fit(trainable: Any, folder: Path, **options: Any) -> tune.ResultGrid:
    """Run a sweep whose checkpoints are validated alongside their trials."""
    beside = tunekit.ValidationConfig(fn=validate, ray_remote_kwargs={"num_cpus": 0.5})
    return real_sweeps.fit(trainable, folder, **{"validation_config": beside, **options})
