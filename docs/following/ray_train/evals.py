"""Evaluate the model in a checkpoint."""

import torch


def examples(seed, count):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network():
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def evaluate(checkpoint):
    model = network()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/model.pt"))
    x, y = examples(seed=2, count=10_000)
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}
