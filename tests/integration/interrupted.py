"""Sweeps that are interrupted, and how they go on, in a driver of its own that gets signals.

python -m tests.integration.interrupted FOLDER
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
from ray import tune

import tunekit
from tests.integration.runs import counting, validate
from tunekit.cli.commands import tunekit as command


class Interrupts(tune.Callback):
    """Sends this process a signal after two validations; a restored sweep is left alone."""

    def __init__(self, number: int):
        self.number, self.left = number, 2

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "left": 0}

    def on_trial_result(self, result: Any, **info: Any) -> None:
        self.left -= "accuracy" in result
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def interrupted(folder: Path, name: str, number: int) -> tunekit.Tuner:
    """A sweep whose driver gets a signal after its second validation, with others pending."""
    tuner = tunekit.Tuner(
        counting,
        param_space={"length": 5, "sleep_s": 0.4},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder),
            verbose=0,
            callbacks=[Interrupts(number)],
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=ray.train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.4}),
            max_in_flight=1,
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    tuner.fit()
    return tuner


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def main(folder: Path) -> None:
    """Interrupt two sweeps, let Ray try to restore them, and go on with them."""
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    before = signal.getsignal(signal.SIGTERM)
    known: dict[str, Any] = {}
    for name, number in (("ctrl-c", signal.SIGINT), ("terminated", signal.SIGTERM)):
        trainable = interrupted(folder, name, number)._local_tuner.trainable
        home = folder / name
        found = contents(home)
        try:
            tune.Tuner.restore(str(home), trainable).fit()
        except tunekit.errors.RestoreError as error:
            refused = str(error)
        known[name] = {
            "state": tunekit.load(home).summary()["state"],
            "refused": refused,
            "unchanged": contents(home) == found,
        }
    known["handler"] = signal.getsignal(signal.SIGTERM) is before
    (folder / "known.json").write_text(json.dumps(known))
    for name in ("ctrl-c", "terminated"):
        command.main(["resume", str(folder / name)], standalone_mode=False)
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
