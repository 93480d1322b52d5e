"""The driver of a sweep whose trial is stopped by hand, in a process that can be killed.

python -m tests.integration.stopped FOLDER
"""

from __future__ import annotations

import logging
import sys

import ray
from ray import tune

import tunekit
from tests import forked_workers
from tests.integration.runs import counting, validate


def main(folder: str) -> None:
    forked_workers.use()
    ray.init("local", num_cpus=3, include_dashboard=False, logging_level=logging.ERROR)
    tunekit.Tuner(
        counting,
        param_space={
            "scale": tune.grid_search([1.0, 2.0, 3.0]),
            "length": 12,
            "sleep_s": 0.5,
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="sweep", storage_path=folder, verbose=0),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1])
