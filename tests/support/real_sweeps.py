"""Trainables and a short way to run them on a real Ray."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from ray import train, tune
from ray.tune.schedulers import TrialScheduler

import tunekit
from tests.support.journals import read

ROOT = Path(__file__).parents[2]


def joining(ray: Any, **more: str) -> dict[str, str]:
    """Return the environment of a program that runs on the cluster of the tests."""
    joins = {
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
        "RAY_AUTH_TOKEN_PATH": os.path.expanduser("~/.ray/auth_token"),
    }
    return {**os.environ, **joins, **more}


class Mounted(LocalFileSystem):
    """A folder that is not mounted on nodes with ``BLIND`` in their environment."""

    def info(self, path: str, **options: Any) -> Any:
        if "BLIND" in os.environ:
            raise FileNotFoundError(path)
        return super().info(path, **options)


def counting(config: dict[str, Any]) -> None:
    """Counts to ``length``; saves when asked; fails once at ``fail_at``; logs what it runs.

    It does not pass ten before the file ``gate`` exists. ``limits`` has the time limits of some
    steps' validations.
    """
    state = {"steps": 0, "scale": config.get("scale", 1.0)}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
    tunekit.checkpoint_with(lambda d: (d / "state.json").write_text(json.dumps(state)))
    while state["steps"] < config["length"]:
        if config.get("fail_at") == state["steps"] + 1 and not checkpoint:
            with open(config["log"], "a") as log:
                log.write(f"{state['steps'] + 1}\n")
            raise RuntimeError("fails once")
        state["steps"] += 1
        if config.get("log"):
            with open(config["log"], "a") as log:
                log.write(f"{state['steps']}\n")
        time.sleep(config.get("sleep_s", 0.0))
        if state["steps"] == 10:
            wait_for(config.get("gate"))
        limit = config.get("limits", {}).get(state["steps"])
        limited = None if limit is None else train.ValidationTaskConfig(timeout_s=limit)
        metrics = {"loss": 1 / state["steps"], **config.get("metrics", {})}
        tunekit.report(metrics, validation=limited)


def wait_for(path: str | None) -> None:
    """Wait until a file exists, if there is to be one."""
    while path is not None and not Path(path).exists():
        time.sleep(0.05)


def validate(checkpoint: tune.Checkpoint, *, sleep_s: float = 0.0) -> dict[str, float]:
    """The accuracy of a checkpoint is a tenth of its steps, times its scale."""
    time.sleep(sleep_s)
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
    return {"accuracy": round(state["steps"] * state["scale"] / 10, 6)}


class After(tune.Callback):
    """Calls something once Tune has so many validated results; not in a restored sweep."""

    left = -1

    def __init__(self, results: int, then: Callable[[], object]):
        self.left, self.then = results, then

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps a copy of its settings, and needs none of this

    def on_trial_result(self, result: Any, **info: Any) -> None:
        self.left -= result.get("accuracy", math.nan) >= 0
        if self.left == 0:
            self.left = -1
            self.then()


def by_accuracy(scheduler: TrialScheduler, trials: int) -> tune.TuneConfig:
    """Return the settings of a sweep that ranks so many trials by validated accuracy."""
    return tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler, num_samples=trials)


def fit(
    trainable: Any,
    folder: Path,
    *,
    name: str = "sweep",
    max_failures: int = 0,
    verbose: int = 0,
    **options: Any,
) -> tune.ResultGrid:
    """Run a sweep, by default with little output; options are those of a Tuner or a RunConfig."""
    of_run = {"checkpoint_config", "stop", "callbacks", "storage_filesystem"} & options.keys()
    return tunekit.Tuner(
        trainable,
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(folder),
            failure_config=tune.FailureConfig(max_failures=max_failures),
            verbose=verbose,
            **{option: options.pop(option) for option in of_run},
        ),
        **options,
    ).fit()


def events(results: tune.ResultGrid, kind: str) -> list[dict[str, Any]]:
    """Return the events of a sweep of one kind."""
    return read(results.experiment_path, kind)
