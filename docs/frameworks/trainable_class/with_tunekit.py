"""A plain PyTorch network, trained by a class."""

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit


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


class Training(tune.Trainable):
    def setup(self, config):
        self.model = network(config)
        self.optimizer = torch.optim.Adam(self.model.parameters(), config["lr"])
        self.x, self.y = examples(seed=1, count=2_000)

    def step(self):
        for rows in torch.randperm(len(self.x)).split(50):
            loss = torch.nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"loss": loss.item()}

    def save_checkpoint(self, folder):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, f"{folder}/state.pt")

    def load_checkpoint(self, folder):
        state = torch.load(f"{folder}/state.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def validate(checkpoint):
    model = network(tunekit.get_validation_context().config)
    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(f"{folder}/state.pt")["model"])
    return {"accuracy": accuracy_of(model)}


tuner = tunekit.Tuner(
    Training,
    param_space={"lr": tune.grid_search([0.0003, 0.003, 0.03]), "width": tune.grid_search([8, 64])},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1)),
    validation_config=tunekit.ValidationConfig(fn=validate),
)
table = tuner.fit().get_dataframe().sort_values("accuracy", ascending=False)
print(table[["config/lr", "config/width", "training_iteration", "accuracy"]].to_string(index=False))
