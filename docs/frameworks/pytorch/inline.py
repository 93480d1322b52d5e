"""A plain PyTorch network, trained by a function."""

import tempfile

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def examples(seed, count):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network(config):
    inner, outer = torch.nn.Linear(20, config["width"]), torch.nn.Linear(config["width"], 2)
    return torch.nn.Sequential(inner, torch.nn.ReLU(), outer)


def accuracy_of(model):
    x, y = examples(seed=2, count=20_000)
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def train(config):
    model, epoch = network(config), 0
    optimizer = torch.optim.Adam(model.parameters(), config["lr"])
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]
    x, y = examples(seed=1, count=2_000)
    while epoch < 9:
        for rows in torch.randperm(len(x)).split(50):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        metrics = {"loss": loss.item(), "accuracy": accuracy_of(model)}
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, f"{folder}/state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


tuner = tune.Tuner(
    train,
    param_space={"lr": tune.grid_search([0.0003, 0.003, 0.03]), "width": tune.grid_search([8, 64])},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
)
table = tuner.fit().get_dataframe().sort_values("accuracy", ascending=False)
print(table[["config/lr", "config/width", "training_iteration", "accuracy"]].to_string(index=False))
