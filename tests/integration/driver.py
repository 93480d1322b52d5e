"""The driver of a sweep over the digits, in a process of its own that can be killed.

python -m tests.integration.driver s3://sweeps/digits?endpoint_override=... TRIALS EPOCHS
"""

from __future__ import annotations

import logging
import sys

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from notebooks import digits
from tests import forked_workers


def main(storage: str, trials: int, epochs: int) -> None:
    forked_workers.use()
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    tunekit.Tuner(
        digits.train_digits,
        param_space={**digits.SPACE, "epochs": epochs},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=trials,
            scheduler=ASHAScheduler(max_t=epochs, grace_period=1, reduction_factor=3),
            search_alg=tune.search.BasicVariantGenerator(max_concurrent=3, random_state=0),
        ),
        run_config=tune.RunConfig(name="digits", storage_path=storage, verbose=0),
        validation_config=tunekit.ValidationConfig(fn=digits.validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
