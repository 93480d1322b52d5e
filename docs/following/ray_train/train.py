"""Train with Ray Train, with checkpoints in FOLDER: python train.py FOLDER."""

import sys
import tempfile
from pathlib import Path

import torch
from evals import examples, network
from ray import train
from ray.train.torch import TorchTrainer


def loop(config):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    x, y = examples(seed=1, count=2_000)
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(50):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), f"{folder}/model.pt")
            checkpoint = train.Checkpoint.from_directory(folder)
            train.report({"loss": loss.item()}, checkpoint=checkpoint)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    TorchTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(storage_path=str(folder.parent), name=folder.name),
    ).fit()
    Path(folder, "done").touch()
