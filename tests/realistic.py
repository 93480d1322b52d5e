"""Realistic sweeps to look at: many trials and hyperparameters, and long names."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from tests.sweeps import Ran, sweep
from tunekit.core.validation import Attempt

__all__ = ["SPACE", "asha"]

#: Ten hyperparameters: logarithmic, linear, integers, choices, nested ones, and long names.
SPACE = {
    "optimizer": {
        "name": tune.choice(["adamw", "lion", "sgd"]),
        "learning_rate": tune.loguniform(1e-5, 1e-1),
        "weight_decay": tune.loguniform(1e-6, 1e-1),
        "warmup_steps": tune.randint(0, 2001),
    },
    "model": {
        "hidden_dim": tune.choice([128, 256, 512, 1024]),
        "dropout": tune.uniform(0.0, 0.5),
        "activation": tune.choice(["gelu", "relu", "silu"]),
    },
    "augmentation_policy": tune.choice(
        ["none", "crop-and-flip", "randaugment-magnitude-9", "mixup-alpha-0.2-and-cutmix"]
    ),
    "label_smoothing": tune.quniform(0.0, 0.2, 0.05),
    "batch_size": tune.choice([32, 64, 128, 256]),
}


def _curve(config: dict[str, Any], iteration: int) -> tuple[float, float]:
    """Return the accuracy of a configuration, and its progress from 0 to 1."""
    optimizer, model = config["optimizer"], config["model"]
    best = 1e-3 if optimizer["name"] != "sgd" else 3e-2
    off = abs(math.log10(optimizer["learning_rate"] / best))
    top = 0.95 - 0.06 * off**2 - 0.3 * (model["dropout"] - 0.15) ** 2
    top += 0.01 * math.log2(model["hidden_dim"] / 128)
    top -= 0.02 * (config["augmentation_policy"] == "none")
    come = 1 - math.exp(-iteration / 8)
    noise = random.Random(f"{optimizer['learning_rate']}/{iteration}").gauss(0, 0.006)
    return max(0.1 + 0.01 * noise, min(0.99, 0.1 + (top - 0.1) * come + noise)), come


class Net(tune.Trainable):
    """Trains nothing; its loss and accuracy are those of its configuration and iteration."""

    length = 27

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        accuracy, _ = _curve(self.config, self.steps)
        noise = random.Random(self.steps).random() / 50
        return {
            "time_this_iter_s": _seconds(self.trial_id),
            "train_loss": -math.log(accuracy) * (1 + noise),
            "learning_rate_now": self.config["optimizer"]["learning_rate"] / self.steps,
            "done": self.steps >= self.length,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.steps = checkpoint["steps"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True


def _validate(attempt: Attempt) -> dict[str, float]:
    request = attempt.request
    accuracy, _ = _curve(request.report["config"], request.iteration)
    if random.Random(request.id).random() < 0.01:
        raise RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed.")
    return {"accuracy": accuracy, "top5_accuracy": 1 - (1 - accuracy) / 4}


def _took(seconds: float) -> Any:
    return lambda attempt: seconds * random.Random(attempt.request.id).uniform(0.7, 1.4)


def _seconds(trial_id: str) -> float:
    return random.Random(trial_id).uniform(30, 70)


def _trained(trial: Any, method: str) -> float:
    return _seconds(trial.trial_id) if method == "train" else 0.5


def asha(folder: Path, trials: int) -> Ran:
    """Successive halving, on eight slots and four for validations."""
    return sweep(
        folder,
        ASHAScheduler(time_attr="training_iteration", max_t=27, grace_period=1, reduction_factor=3),
        trainable=Net,
        trials=trials,
        param_space=SPACE,
        validate=_validate,
        validation_s=_took(25),
        validation_slots=4,
        training_s=_trained,
        slots=8,
        listening=False,
    )
