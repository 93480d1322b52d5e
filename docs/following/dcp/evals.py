"""Evaluate a model in one process that was saved in shards by two processes."""

import torch
import torch.distributed.checkpoint as dcp


def examples(seed, count):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network():
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


def evaluate(checkpoint):
    model = network()
    state = {"model": model.state_dict()}
    with checkpoint.as_directory() as folder:
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    model.load_state_dict(state["model"])
    x, y = examples(seed=2, count=10_000)
    with torch.no_grad():
        return {"accuracy": (model(x).argmax(1) == y).float().mean().item()}
