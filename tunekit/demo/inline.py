"""The demonstration's sweep in stock Ray Tune, with validation in the training loop.

``python -m tunekit.demo.inline 16 0 epochs``: the number of trials, the seed of the search, and
when to validate. It prints the result as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from tunekit.demo import digits

#: When to validate: after each epoch, or only after those at which ASHA decides.
AT = {"epochs": range(1, digits.EPOCHS + 1), "rungs": (1, 3, 9, 27)}


@dataclass(frozen=True)
class Spent:
    """The cost and the result of a sweep.

    Attributes:
        seconds: The time from creating the Tuner to its results.
        epochs: The number of epochs that all trials trained.
        accuracy: The best accuracy on the validation images, from 0 to 1.
    """

    seconds: float
    epochs: int
    accuracy: float


def train_inline(config: dict[str, Any]) -> None:
    """Train as :func:`tunekit.demo.digits.train_digits` does, and validate in between."""
    training = digits.Training(config)
    scores: dict[str, float] = {}
    while training.epochs < config["epochs"]:
        loss = training.epoch()
        with tempfile.TemporaryDirectory() as folder:
            training.save(Path(folder))
            checkpoint = tune.Checkpoint.from_directory(folder)
            if training.epochs in AT[config["at"]]:
                scores = digits.scores_of(training.model)
            # ASHA requires the metric in each report: repeat the last value between rungs.
            tune.report({"loss": loss, **scores}, checkpoint=checkpoint)


def run(trials: int, seed: int, at: str) -> Spent:
    """Run the sweep on a new Ray instance."""
    digits.start_ray()
    with tempfile.TemporaryDirectory(prefix="tunekit-demo-") as folder:
        began = time.monotonic()
        results = tune.Tuner(
            train_inline,
            param_space={**digits.SPACE, "epochs": digits.EPOCHS, "at": at},
            tune_config=digits.tune_config(trials, seed),
            run_config=tune.RunConfig(name="digits", storage_path=folder, verbose=0),
        ).fit()
        seconds = time.monotonic() - began
        tables = [one.metrics_dataframe for one in results]
    ray.shutdown()
    known = [table for table in tables if table is not None]
    return Spent(
        seconds,
        sum(int(table["training_iteration"].max()) for table in known),
        max(float(table["accuracy"].max()) for table in known),
    )


def run_alone(trials: int, seed: int, at: str = "epochs") -> Spent:
    """Run the sweep in a separate process.

    Raises:
        subprocess.CalledProcessError: If it fails; the error is on the terminal.
    """
    command = [sys.executable, "-m", "tunekit.demo.inline", str(trials), str(seed), at]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Spent(**json.loads(done.stdout.splitlines()[-1]))


def compared(ours: Spent, inline: Spent) -> list[str]:
    """Return two sweeps as the lines of a table, and their ratio.

    Example:
        >>> for line in compared(Spent(45.2, 214, 0.975), Spent(50.0, 220, 0.9733)):
        ...     print(line)
                 seconds  epochs  best accuracy
        tunekit     45.2     214         97.50%
        inline      50.0     220         97.33%
        tunekit took 0.90 times as long. Either may train more or less in another run, because
        ASHA's decisions depend on the order of the trials.
    """
    rows = [
        f"{name:7}  {one.seconds:7.1f}  {one.epochs:6}  {one.accuracy:13.2%}"
        for name, one in (("tunekit", ours), ("inline", inline))
    ]
    return [
        f"{'':7}  seconds  epochs  best accuracy",
        *rows,
        f"tunekit took {ours.seconds / inline.seconds:.2f} times as long. Either may train more or "
        "less in another run, because",
        "ASHA's decisions depend on the order of the trials.",
    ]


if __name__ == "__main__":
    print(json.dumps(asdict(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))
