"""The driver of a sweep, in a process that can be killed.

python -m tests.support.driver STORAGE GATE

Its trials do not pass iteration 10 before the file GATE exists.
"""

from __future__ import annotations

import logging
import os
import sys

import ray
from ray import tune

import tunekit
from tests.support.real_sweeps import counting, validate

LENGTH = 12


def main(storage: str, gate: str) -> None:
    keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    ray.init(runtime_env={"env_vars": keys}, logging_level=logging.ERROR)
    tunekit.Tuner(
        counting,
        param_space={
            "scale": tune.grid_search([1.0, 2.0, 3.0]),
            "length": LENGTH,
            "sleep_s": 0.1,
            "gate": gate,
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(name="sweep", storage_path=storage, verbose=0),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
