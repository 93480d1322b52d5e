"""Tune a small network for scikit-learn's handwritten digits with ASHA, and print the results.

scripts/demo runs it: about a minute. The trainable and the validation function are written as in a
user's own program; the notebooks import them.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import tunekit

#: The search space.
SPACE = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "width": tune.choice([4, 8, 16, 32]),
    "weight_decay": tune.loguniform(1e-6, 1e-1),
    "dropout": tune.uniform(0.0, 0.6),
    "batch_size": tune.choice([16, 32, 64, 128]),
}

#: The maximum number of epochs of a trial.
EPOCHS = 27

STATE = "state.pt"


def split(part: str) -> tuple[Tensor, Tensor]:
    """Return the images (n x 1 x 8 x 8, from 0 to 1) and the labels of a part of the digits.

    The parts are ``"train"`` (600 images), ``"validation"`` (600) and ``"test"`` (597).
    """
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    every = range(len(labels))
    train, rest = train_test_split(every, train_size=600, stratify=labels, random_state=0)
    validation, test = train_test_split(rest, train_size=600, stratify=labels[rest], random_state=0)
    index = {"train": train, "validation": validation, "test": test}[part]
    return images[index], labels[index]


def build(config: dict[str, Any]) -> nn.Module:
    """Return the network of a configuration: two convolutions and a linear layer."""
    width = config["width"]
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(config["dropout"]), nn.Linear(8 * width, 10)),
    )


class Training:
    """A network in training: a new one, or the one in the trial's checkpoint.

    Args:
        config: The trial's configuration.
    """

    def __init__(self, config: dict[str, Any]):
        torch.set_num_threads(1)
        torch.manual_seed(config.get("seed", 0))
        self._config, self._data = config, split("train")
        self.model = build(config)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"]
        )
        #: The number of epochs trained so far.
        self.epochs = 0
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                state = torch.load(Path(folder, STATE), weights_only=True)
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            for group in self._optimizer.param_groups:  # a clone's own, not its donor's
                group.update(lr=config["lr"], weight_decay=config["weight_decay"])
            self.epochs = state["epoch"]

    def epoch(self) -> float:
        """Train for an epoch; return the mean loss."""
        images, labels = self._data
        self.model.train()
        total = 0.0
        for batch in torch.randperm(len(labels)).split(self._config["batch_size"]):
            loss = nn.functional.cross_entropy(self.model(images[batch]), labels[batch])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            total += loss.item() * len(batch)
        self.epochs += 1
        return total / len(labels)

    def save(self, directory: Path) -> None:
        """Save the state that training needs to continue."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "epoch": self.epochs,
            "config": {"width": self._config["width"], "dropout": self._config["dropout"]},
        }
        torch.save(state, directory / STATE)


def train_digits(config: dict[str, Any]) -> None:
    """Train for up to ``config["epochs"]`` epochs; one report an epoch."""
    training = Training(config)
    tunekit.checkpoint_with(training.save)
    while training.epochs < config.get("epochs", EPOCHS):
        tune.report({"loss": training.epoch()})


def validate(checkpoint: tune.Checkpoint, *, part: str = "validation") -> dict[str, float]:
    """Return accuracy and loss on held-out images.

    Each image is used as it is and moved by one pixel in each of eight directions: ``accuracy`` is
    for the images as they are, ``shifted_accuracy`` for all nine.
    """
    torch.set_num_threads(1)
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, STATE), weights_only=True)
    model = build(state["config"])
    model.load_state_dict(state["model"])
    model.eval()
    images, labels = split(part)
    with torch.no_grad():
        logits = [model(moved) for moved in shifts(images)]
    right = [(one.argmax(1) == labels).float().mean().item() for one in logits]
    return {
        "accuracy": right[4],  # the unmoved ones
        "shifted_accuracy": sum(right) / len(right),
        "validation_loss": nn.functional.cross_entropy(logits[4], labels).item(),
    }


def accuracy_of(checkpoint: tune.Checkpoint) -> float:
    """Return the accuracy on the test images."""
    return validate(checkpoint, part="test")["accuracy"]


def shifts(images: Tensor) -> Iterator[Tensor]:
    """Yield the images nine times: moved by up to a pixel in each direction, and unmoved."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    for down in range(3):
        for right in range(3):
            yield padded[:, :, down : down + 8, right : right + 8]


def tune_config(trials: int) -> tune.TuneConfig:
    """Return the settings that sample and stop trials."""
    return tune.TuneConfig(
        metric="accuracy",
        mode="max",
        num_samples=trials,
        scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
        search_alg=tune.search.BasicVariantGenerator(random_state=0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--storage", help="where the results go; by default a temporary folder")
    asked = parser.parse_args()
    print("Starting Ray. Training begins in about ten seconds.", flush=True)
    ray.init(  # a new one, because one that runs may have fewer CPUs
        address="local",
        num_cpus=max(4, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    results = tunekit.Tuner(
        train_digits,
        param_space=SPACE,
        tune_config=tune_config(asked.trials),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=asked.storage or tempfile.mkdtemp(prefix="tunekit-demo-"),
        ),
        validation_config=tunekit.ValidationConfig(fn=validate),
    ).fit(progress=True)
    try:
        best = tunekit.load(results.experiment_path).best()
    except tunekit.errors.MetricNotFoundError:
        return  # it was interrupted before the first score
    tested = accuracy_of(best.checkpoint) if best.checkpoint else float("nan")
    print(
        f"\nThe best checkpoint is that of trial {best.trial_id} at epoch {best.iteration}: its "
        f"accuracy is {best.score:.2%} on the validation images, {tested:.2%} on the test images."
    )
    where = shlex.quote(results.experiment_path)
    commands = [f"tunekit {command} {where}" for command in ("status", "best", "report --open")]
    print("\nNext:", *commands, sep="\n  ")


if __name__ == "__main__":
    main()
