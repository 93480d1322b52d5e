"""A LightningModule, reported by Ray Tune's own callback."""

from contextlib import nullcontext

import lightning
import torch
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback
from ray.tune.schedulers import ASHAScheduler

import tunekit


def loader(seed, count):
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    rows = torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    return torch.utils.data.DataLoader(rows, batch_size=50)


class Network(lightning.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        inner, outer = torch.nn.Linear(20, width), torch.nn.Linear(width, 2)
        self.layers = torch.nn.Sequential(inner, torch.nn.ReLU(), outer)

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("accuracy", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def trainer(*callbacks):
    return lightning.Trainer(
        max_epochs=9,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(config):
    report = TuneReportCheckpointCallback("loss", on="train_epoch_end")
    checkpoint = tune.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        trainer(report).fit(
            Network(**config),
            loader(seed=1, count=2_000),
            ckpt_path=f"{folder}/checkpoint" if folder else None,
        )


def validate(checkpoint):
    with checkpoint.as_directory() as folder:
        model = Network.load_from_checkpoint(f"{folder}/checkpoint")
    [metrics] = trainer().validate(model, loader(seed=2, count=10_000), verbose=False)
    return metrics


tuner = tunekit.Tuner(
    train,
    param_space={"lr": tune.grid_search([0.0003, 0.003]), "width": tune.grid_search([8, 64])},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    ),
    validation_config=tunekit.ValidationConfig(fn=validate),
)
table = tuner.fit().get_dataframe().sort_values("accuracy", ascending=False)
print(table[["config/lr", "config/width", "training_iteration", "accuracy"]].to_string(index=False))
