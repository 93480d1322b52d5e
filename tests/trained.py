"""Sweeps whose checkpoints are files with weights, run in this process, to be validated later."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from tests.kills import Killed, bury, killed_after
from tests.sweeps import sweep
from tunekit.core.validation import Attempt

LENGTH = 8


class Approaching(tune.Trainable):
    """A trial whose weights are a number, which training brings closer to 1."""

    def setup(self, config: dict[str, Any]) -> None:
        self.weights = 0.0

    def step(self) -> dict[str, Any]:
        self.weights += self.config["lr"] * (1 - self.weights)
        return {"loss": 1 - self.weights, "done": self.iteration + 1 >= LENGTH}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "weights.json").write_text(json.dumps(self.weights))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.weights = json.loads(Path(checkpoint_dir, "weights.json").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


def weights(attempt: Attempt) -> dict[str, Any]:
    """Return the weights as accuracy; those of the slowest learner cannot be validated at first."""
    found = json.loads(Path(attempt.request.path, "weights.json").read_text())
    if found < 0.11:
        raise ValueError("too little was learned")
    return {"accuracy": found}


def _lower(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "lr": config["lr"] + 0.01}


def trained(folder: Path, name: str) -> Path:
    """Run a sweep, ``"asha"``, or ``"pbt-killed"``, which is; return its folder."""
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=_lower,
        quantile_fraction=0.25,
        synch=True,
        log_config=False,
    )
    asha = ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2)
    with suppress(Killed), killed_after(150 if name == "pbt-killed" else 10**6):
        sweep(
            folder,
            pbt if name == "pbt-killed" else asha,
            on_pending="wait" if name == "pbt-killed" else "continue",
            trainable=Approaching,
            trials=1,
            param_space={"lr": tune.grid_search([0.3, 0.2, 0.15, 0.1])},
            validate=weights,
        )
    bury(folder / "sweep")
    return folder / "sweep"
