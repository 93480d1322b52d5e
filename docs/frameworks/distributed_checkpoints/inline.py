"""A model sharded over the workers of a TorchTrainer, each of which saves its shards."""

import tempfile

import ray
import torch
import torch.distributed.checkpoint as dcp
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import ASHAScheduler
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

WORKERS = 2


def examples(seed, count):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network(config):
    inner, outer = torch.nn.Linear(20, config["width"]), torch.nn.Linear(config["width"], 2)
    return torch.nn.Sequential(inner, torch.nn.ReLU(), outer)


def accuracy_of(model):
    rank = train.get_context().get_world_rank()
    x, y = (part[rank::WORKERS] for part in examples(seed=2, count=20_000))
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    torch.distributed.all_reduce(right)
    return right.item() / 20_000


def train_loop(config):
    rank, epoch = train.get_context().get_world_rank(), torch.tensor(0)
    model = fully_shard(network(config))
    optimizer = torch.optim.Adam(model.parameters(), config["lr"])
    if checkpoint := train.get_checkpoint():
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "epoch": epoch}
        with checkpoint.as_directory() as folder:
            dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    x, y = (part[rank::WORKERS] for part in examples(seed=1, count=2_000))
    while epoch < 9:
        for rows in torch.randperm(len(x)).split(25):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        metrics = {"loss": loss.item(), "accuracy": accuracy_of(model)}
        weights, moments = get_state_dict(model, optimizer)
        with tempfile.TemporaryDirectory() as folder:  # a folder for each worker; Ray merges them
            state = {"model": weights, "optimizer": moments, "epoch": epoch}
            dcp.save(state, checkpoint_id=folder)
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


def train_sharded(config):
    TorchTrainer(
        train_loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(callbacks=[TuneReportCallback()]),
    ).fit()


ray.init(num_cpus=4)  # for both trials: the workers of a stopped trial keep their CPUs
tuner = tune.Tuner(
    train_sharded,
    param_space={"lr": tune.grid_search([0.0003, 0.003]), "width": 64},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3),
        max_concurrent_trials=1,
    ),
)
table = tuner.fit().get_dataframe().sort_values("accuracy", ascending=False)
shown = ["config/lr", "training_iteration", "accuracy"]
print(table[shown].to_string(index=False))
