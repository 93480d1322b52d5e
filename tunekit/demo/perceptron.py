"""A perceptron for digits that may be shifted: a trial that pauses, resumes and is cloned.

A perceptron does not know that a shifted digit is the same digit. It has to learn that from
augmented images, and improves more slowly the better it becomes. So the learning rate matters, and
so does the time at which it changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import tune

from tunekit.demo.digits import shifts, split
from tunekit.extras import extra

with extra("demo"):
    import torch
    from torch import Tensor, nn


#: The search space, which population based training mutates.
SPACE = {
    "lr": tune.loguniform(1e-4, 1.0),
    "weight_decay": tune.loguniform(1e-6, 1e-1),
    "shift": tune.uniform(0.0, 1.0),
    "noise": tune.uniform(0.0, 0.5),
}

BATCH = 32
STATE = "state.pt"


def build() -> nn.Module:
    """Return the network: two hidden layers of 64 units."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )


def augmented(images: Tensor, config: dict[str, Any], random: torch.Generator) -> Tensor:
    """Return noisy images (n x 1 x 8 x 8), some of them shifted by up to a pixel each way.

    ``config["shift"]`` is the probability that an image is shifted, ``config["noise"]`` the
    standard deviation of the noise.
    """
    n = len(images)
    offset = torch.randint(0, 3, (n, 2), generator=random)
    offset[torch.rand(n, generator=random) >= config["shift"]] = 1
    row, column = (o[:, None] + torch.arange(8) for o in offset.T)
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    moved = padded[torch.arange(n)[:, None, None], 0, row[:, :, None], column[:, None, :]]
    noise = torch.randn(moved.shape, generator=random)
    return (moved + config["noise"] * noise).unsqueeze(1)


class Perceptron(tune.Trainable):
    """One epoch a step. ``config["seed"]`` is that of the weights and of the epochs' batches."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin with new weights."""
        torch.set_num_threads(1)
        torch.manual_seed(config["seed"])
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.9)
        self.images, self.labels = split("train")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reuse the process for another trial, which Tune then restores."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, float]:
        """Train for an epoch."""
        random = torch.Generator().manual_seed(1000 * self.config["seed"] + self.iteration)
        # A restored optimizer has the hyperparameters that it was saved with.
        for group in self.optimizer.param_groups:
            group.update(lr=self.config["lr"], weight_decay=self.config["weight_decay"])
        total = 0.0
        for batch in torch.randperm(len(self.labels), generator=random).split(BATCH):
            logits = self.model(augmented(self.images[batch], self.config, random))
            loss = nn.functional.cross_entropy(logits, self.labels[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(batch)
        return {"loss": total / len(self.labels)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save weights and optimizer; Tune saves the iteration."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, Path(checkpoint_dir, STATE))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Continue from a checkpoint of this trial or another."""
        state = torch.load(Path(checkpoint, STATE), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def validate(checkpoint: tune.Checkpoint, *, part: str = "validation") -> dict[str, float]:
    """Return the accuracy and the loss on images that may be shifted.

    Each image is used nine times: as it is, and moved by one pixel in each of eight directions.
    """
    torch.set_num_threads(1)
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, STATE), weights_only=True)
    model = build()
    model.load_state_dict(state["model"])
    images, labels = split(part)
    seen, meant = torch.cat(list(shifts(images))), labels.repeat(9)
    with torch.no_grad():
        logits = model(seen)
    return {
        "accuracy": (logits.argmax(1) == meant).float().mean().item(),
        "validation_loss": nn.functional.cross_entropy(logits, meant).item(),
    }


def accuracy_of(checkpoint: tune.Checkpoint) -> float:
    """Return the accuracy on the test images, including shifted ones."""
    return validate(checkpoint, part="test")["accuracy"]
