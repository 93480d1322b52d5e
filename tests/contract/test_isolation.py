"""Each trial has a process of its own, as in Tune, unless the user shares them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)

import tunekit
from tests.sweeps import Counting, sweep
from tunekit._ray.tuner import settings_of

LENGTH = 9
RATES = [8.0, 1.0, 4.0, 2.0, 6.0, 3.0, 5.0, 7.0]

BASES = {
    "fifo": lambda: FIFOScheduler(),
    "asha": lambda: ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=3),
    "hyperband": lambda: HyperBandScheduler(max_t=LENGTH, reduction_factor=3),
    "pbt": lambda: PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"rate": [1.0, 2.0]},
    ),
}


class KeepsItsNetwork(tune.Trainable):
    """Its ``reset_config`` takes the new hyperparameters, and forgets the network."""

    def setup(self, config):
        self.weight, self.rate = 0.0, config["rate"]

    def reset_config(self, new_config):
        self.rate = new_config["rate"]
        return True

    def step(self):
        self.weight += self.rate
        return {"weight": self.weight, "done": self.training_iteration + 1 >= LENGTH}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "weight.json").write_text(json.dumps(self.weight))

    def load_checkpoint(self, checkpoint_dir):
        self.weight = json.loads(Path(checkpoint_dir, "weight.json").read_text())


class Reports(tune.Callback):
    """The first report of each trial, by trial and generation."""

    def __init__(self):
        self.firsts = {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.firsts.setdefault(trial, (trial.config["rate"], result["weight"]))


def validate(attempt):
    path = Path(attempt.request.checkpoint.path, "weight.json")
    return {"accuracy": json.loads(path.read_text())}


@pytest.mark.parametrize("on_pending", ["auto", "wait", "continue"])
@pytest.mark.parametrize("base", BASES)
def test_a_trial_begins_with_its_own_network(tmp_path, base, on_pending):
    settings = settings_of(
        tunekit.Tuner(
            KeepsItsNetwork,
            run_config=tune.RunConfig(storage_path=str(tmp_path / "unused"), name="sweep"),
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=BASES[base]()),
            validation_config=tunekit.ValidationConfig(
                fn=lambda checkpoint: {"accuracy": 0.0}, on_pending=on_pending
            ),
        )
    )
    reports = Reports()
    ran = sweep(
        tmp_path,
        BASES[base](),
        trainable=KeepsItsNetwork,
        on_pending=on_pending,
        reuse_actors=bool(settings.tune_config.reuse_actors),
        param_space={"rate": tune.grid_search(RATES)},
        trials=1,
        slots=2,
        validate=validate,
        more_callbacks=(reports,),
    )
    assert len(reports.firsts) == len(RATES)
    assert [weight for _, weight in reports.firsts.values()] == [
        rate for rate, _ in reports.firsts.values()
    ]
    if base != "pbt":  # where clones continue with their donors' weights
        best = max(ran.trials, key=lambda trial: trial.last_result.get("accuracy", 0.0))
        assert best.config["rate"] == max(RATES)


@pytest.mark.parametrize(
    ("start_s", "trials", "reuses", "advised"),
    [
        (5.0, 6, False, True),
        (5.0, 6, True, False),
        (0.1, 6, False, False),
        (5.0, 2, False, False),  # each has a slot of its own
    ],
)
def test_a_sweep_that_has_mostly_started_processes_says_what_would_save_that(
    tmp_path, caplog, start_s, trials, reuses, advised
):
    with caplog.at_level(logging.INFO, logger="tunekit"):
        sweep(
            tmp_path,
            FIFOScheduler(),
            trainable=Counting,
            trials=trials,
            slots=2,
            reuse_actors=reuses,
            training_s=lambda trial, method: {"start": start_s, "train": 1.0}.get(method, 0.0),
        )
    said = [text for text in caplog.messages if "reuse_actors=True" in text]
    assert len(said) == advised
    if advised:  # 4 of 6 starts of 5 s
        assert "took 20 of the" in said[0]
