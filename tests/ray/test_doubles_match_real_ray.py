"""The sweeps of the tests, in one process and in virtual time, have the journal of real ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.support.modes import Mode
from tests.support.real_sweeps import fit
from tests.support.sweeps import Plan
from tunekit.core.events import SnapshotTaken, Waited
from tunekit.journal.journal import events_in

LENGTH, TRIALS = 4, 4
SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2),
}
#: Fields of durations, of places, and of the line's number.
LEFT_OUT = {"n", "time", "after_s", "waited_s", "ran_s", "seconds", "folder", "search", "tune"}
REPORTED = ("training_iteration", "loss", "done", "should_checkpoint")


class Net(tune.Trainable):
    """Its checkpoint has its steps and its hyperparameter."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        return {"loss": 1.0 / self.steps, "done": self.steps >= LENGTH}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "state").write_text(f"{self.config['lr']} {self.steps}")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        raise AssertionError("no trial of this sweep is restored")


def score(lr: float, steps: int) -> dict[str, float]:
    """Return the score of a checkpoint; raise for one checkpoint of each trial."""
    if (round(lr * 10) + steps) % 5 == 0:
        raise RuntimeError("fails")
    return {"accuracy": lr * steps + random.Random(f"{lr}/{steps}").random()}


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    with checkpoint.as_directory() as folder:
        lr, steps = Path(folder, "state").read_text().split()
    return score(float(lr), int(steps))


def history(home: Path) -> list[dict[str, Any]]:
    """Return the events of a sweep without times, with the numbers of trials for their names."""
    numbers: dict[str, str] = {}
    found = []
    for event in events_in(home):
        if isinstance(event, (SnapshotTaken, Waited)):  # follow from times
            continue
        fields = {"event": type(event).__name__, **structs.asdict(event)}
        if fields["event"] == "TrialAdded":
            numbers[fields["trial_id"]] = f"trial {len(numbers)}"
        own: dict[str, Any] = {}
        for name, value in fields.items():
            if name in LEFT_OUT or name == "error":
                continue
            if name == "report":
                value = {key: value.get(key) for key in REPORTED}
            if name == "checkpoint":
                value = bool(value)  # Ray names them by the time
            if isinstance(value, str):
                for trial_id, number in numbers.items():
                    value = value.replace(trial_id, number)
            own[name] = value
        found.append(own)
    return found


@pytest.mark.parametrize("name", SCHEDULERS)
def test_sweep_in_virtual_time_has_the_journal_of_the_same_sweep_on_real_ray(
    name, tmp_path, ray_cluster
):
    space = {"lr": tune.grid_search([float(lr) for lr in np.linspace(0.1, 0.4, TRIALS)])}
    settings = {"when": 1, "on_pending": "wait", "where": "elsewhere", "on_failure": "record"}
    fit(
        Net,
        tmp_path / "real",
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", scheduler=SCHEDULERS[name](), max_concurrent_trials=1
        ),
        callbacks=[tunekit.EveryIterations(1)],
        validation_config=tunekit.ValidationConfig(fn=validate, **settings),
    )
    lrs: dict[str, float] = {}

    class Configured(tune.Callback):
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            lrs[trial.trial_id] = trial.config["lr"]

    (
        Plan(tmp_path / "virtual", SCHEDULERS[name](), Mode.WAIT, trials=1)
        .training(Net)
        .validating(lambda one: score(lrs[one.request.trial_id], one.request.iteration), **settings)
        .tuning(param_space=space, max_concurrent=1)
        .calling(Configured())
        .run()
    )
    real, virtual = history(tmp_path / "real/sweep"), history(tmp_path / "virtual/sweep")
    assert {one.get("status") for one in real} >= {"validated", "failed"}
    assert virtual == real
