"""A sweep whose winner is confirmed, in a driver of its own that can be killed.

python -m tests.integration.confirmed FOLDER
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tunekit
from tests import forked_workers
from tests.integration.runs import counting

SIZE, BATCH = 10_000, 100


def accuracy_of(checkpoint: tune.Checkpoint) -> float:
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return state["steps"] * state["scale"] / 10


def validate(
    checkpoint: tune.Checkpoint, resume: Any, *, log: str, seconds: float = 0.01
) -> Iterator[dict[str, Any]]:
    """Yield after each batch; the log has a line for each call, with where it begins."""
    context = tunekit.get_validation_context()
    begins = resume["accuracy"].n if resume else 0
    with open(log, "a") as calls:
        calls.write(f"{context.trial_id}:{context.generation}:{context.iteration}:1 {begins}\n")
    for n in range(begins + BATCH, SIZE + 1, BATCH):
        time.sleep(seconds)
        mean = tunekit.Estimate(accuracy_of(checkpoint), n, bounds=(0, 1))
        yield {"accuracy": mean, "pid": os.getpid()}


def seeded(checkpoint: tune.Checkpoint, seed: int) -> dict[str, float]:
    """A score that depends a little on the seed."""
    return {"accuracy": accuracy_of(checkpoint) + (0.0, 0.004, 0.002)[seed % 3]}


def tuner(folder: Path, confirm: tunekit.Confirm, scales: list[float]) -> tunekit.Tuner:
    return tunekit.Tuner(
        counting,
        param_space={"length": 3, "scale": tune.grid_search(scales)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="sweep", storage_path=str(folder), verbose=0),
        validation_config=tunekit.ValidationConfig(
            validate,
            ray.train.ValidationTaskConfig(fn_kwargs={"log": str(folder / "log")}),
        ),
        confirm=confirm,
        checkpoint_policy=tunekit.EveryIterations(1),
    )


def main(folder: Path) -> None:
    forked_workers.use()
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    tuner(folder, tunekit.Confirm(top=3), [2.0, 1.98, 0.2]).fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
