"""A small residual network for the digits, trained by several workers, and validated in four ways.

The training loop is stock Ray Train: nothing in it is special to tunekit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ray import train, tune

import tunekit
from tunekit.demo.digits import shifts, split
from tunekit.extras import extra

with extra("demo"):
    import numpy as np
    import torch
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, TensorDataset

__all__ = [
    "Evaluator",
    "ResNet",
    "train_resnet",
    "trainer",
    "validate",
    "validate_by_mapping",
    "validate_by_workers",
]

STATE = "state.pt"


class Block(nn.Module):
    """Two convolutions, and what came in added to what they make of it (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.past = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """n x inputs x height x width to n x outputs x height/stride x width/stride."""
        return torch.relu(self.convolutions(images) + self.past(images))


class ResNet(nn.Module):
    """Logits of ten digits for images of n x 1 x 8 x 8.

    Args:
        width: Channels of the first block; the second and third have two and four times as many.
    """

    def __init__(self, width: int = 8):
        super().__init__()
        self.layers = nn.Sequential(
            Block(1, width),
            Block(width, 2 * width, stride=2),
            Block(2 * width, 4 * width, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The logits, n x 10."""
        return self.layers(images)


def train_resnet(config: dict[str, Any]) -> None:
    """Train for ``config["epochs"]`` epochs; one report and one checkpoint an epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(config.get("seed", 0))
    model = prepare_model(ResNet(config["width"]))
    optimizer = torch.optim.SGD(
        model.parameters(), config["lr"], momentum=0.9, weight_decay=config["weight_decay"]
    )
    epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, STATE), weights_only=True)
        _bare(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for group in optimizer.param_groups:  # a clone's own, not its donor's
            group.update(lr=config["lr"], weight_decay=config["weight_decay"])
        epoch = state["epoch"]
    loader = prepare_data_loader(
        DataLoader(TensorDataset(*split("train")), config["batch_size"], shuffle=True)
    )
    rank = train.get_context().get_world_rank()
    while epoch < config["epochs"]:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {
                    "model": _bare(model).state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                    "width": config["width"],
                }
                torch.save(state, Path(folder, STATE))
            saved = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"loss": loss.item()}, checkpoint=saved)


def _bare(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel."""
    inside = getattr(model, "module", model)
    assert isinstance(inside, nn.Module)
    return inside


def trainer(workers: int = 2, *, epochs: int = 9, **config: Any) -> TorchTrainer:
    """The trainer that a sweep is to tune, with settings that do well."""
    settings = {"width": 8, "lr": 0.1, "weight_decay": 1e-4, "batch_size": 32, "epochs": epochs}
    return TorchTrainer(
        train_resnet,
        train_loop_config={**settings, **config},
        scaling_config=train.ScalingConfig(num_workers=workers),
    )


def _load(checkpoint: tune.Checkpoint) -> nn.Module:
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, STATE), weights_only=True)
    model = ResNet(state["width"])
    model.load_state_dict(state["model"])
    return model.eval()


@torch.no_grad()
def _right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images the network gets right: as they are, and all moved by a pixel, 9 x n."""
    return torch.stack([model(moved).argmax(1) == labels for moved in shifts(images)])


def _scores(right: Tensor) -> dict[str, float]:
    plain = right[len(right) // 2]  # the fifth of nine is not moved
    return {
        "accuracy": plain.float().mean().item(),
        "shifted_accuracy": right.float().mean().item(),
    }


def validate(checkpoint: tune.Checkpoint, *, part: str = "validation") -> dict[str, float]:
    """In a task of its own."""
    torch.set_num_threads(1)
    return _scores(_right(_load(checkpoint), *split(part)))


class Evaluator:
    """In a process that lives on: its images are loaded once."""

    def __init__(self, part: str = "validation"):
        torch.set_num_threads(1)
        self.images, self.labels = split(part)

    def __call__(self, checkpoint: tune.Checkpoint) -> dict[str, float]:
        """The scores of a checkpoint."""
        return _scores(_right(_load(checkpoint), self.images, self.labels))


def _validation_loop(config: dict[str, Any]) -> dict[str, float]:
    """In each of several workers: its part of the images."""
    torch.set_num_threads(1)
    context = train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, labels = split("validation")
    right = _right(_load(config["checkpoint"]), images[rank::workers], labels[rank::workers])
    counts = torch.stack([right.sum(1), torch.full((len(right),), right.shape[1])])
    torch.distributed.all_reduce(counts)
    by_shift = counts[0] / counts[1]
    return {
        "accuracy": by_shift[len(by_shift) // 2].item(),
        "shifted_accuracy": by_shift.mean().item(),
    }


#: By two workers of a trainer.
validate_by_workers = tunekit.distributed.TrainerValidation(
    _validation_loop, train.ScalingConfig(num_workers=2)
)


class _Predictor:
    def __init__(self, checkpoint: tune.Checkpoint):
        torch.set_num_threads(1)
        self.model = _load(checkpoint)
        self.images, self.labels = split("validation")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = torch.tensor(batch["id"])
        right = _right(self.model, self.images[rows], self.labels[rows]).float()
        return {"plain": right[len(right) // 2].numpy(), "shifted": right.mean(0).numpy()}


def validate_by_mapping(checkpoint: tune.Checkpoint) -> dict[str, float]:
    """By an actor of Ray Data, which maps batches, and an aggregation of what it gives."""
    from ray import data
    from ray.data.aggregate import Mean

    rows = data.range(len(split("validation")[1]))
    right = rows.map_batches(
        _Predictor, fn_constructor_args=(checkpoint,), batch_size=200, concurrency=1
    )
    means = right.aggregate(Mean("plain"), Mean("shifted"))
    return {"accuracy": means["mean(plain)"], "shifted_accuracy": means["mean(shifted)"]}
