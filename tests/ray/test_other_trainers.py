"""Ray Train's other trainers, and loops of other libraries, come through the same door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ray import train, tune
from ray.train.torch import TorchTrainer

import tunekit
from tests.support import real_sweeps


def fit(trainer, folder, **options):
    results = real_sweeps.fit(trainer, folder, **options)
    assert not results.errors
    return results


def files(checkpoint):
    """Which files a checkpoint has."""
    with checkpoint.as_directory() as folder:
        return {"files": len([path for path in Path(folder).rglob("*") if path.is_file()])}


def test_datasets_are_sharded(ray_cluster, tmp_path):
    def loop(config):
        shard = train.get_dataset_shard("train")
        for epoch in range(2):
            rows = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=8))
            train.report({"rows": rows, "epoch": epoch})

    from ray import data

    results = fit(
        TorchTrainer(
            loop,
            scaling_config=train.ScalingConfig(num_workers=2),
            datasets={"train": data.range(64)},
        ),
        tmp_path,
        tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=1),
    )
    assert [r.metrics_dataframe["rows"].tolist() for r in results] == [[32, 32], [32, 32]]


def test_lightning(ray_cluster, tmp_path):
    pytest.importorskip("lightning")

    def loop(config):
        import lightning as pl
        import ray.train.lightning as rtl
        import torch

        class Line(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch, _):
                x, y = batch
                loss = torch.nn.functional.mse_loss(self.layer(x), y)
                self.log("loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), config["lr"])

        x = torch.linspace(0, 1, 64)[:, None]
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), 16)
        trainer = rtl.prepare_trainer(
            pl.Trainer(
                max_epochs=3,
                accelerator="cpu",
                strategy=rtl.RayDDPStrategy(),
                plugins=[rtl.RayLightningEnvironment()],
                callbacks=[rtl.RayTrainReportCallback()],
                enable_progress_bar=False,
                enable_checkpointing=False,
                logger=False,
            )
        )
        trainer.fit(Line(), loader)

    results = fit(
        TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        param_space={"train_loop_config": {"lr": tune.grid_search([0.01, 0.1])}},
        tune_config=tune.TuneConfig(metric="files", mode="max"),
        validation_config=tunekit.ValidationConfig(fn=files),
    )
    for result in results:
        assert result.metrics_dataframe["training_iteration"].tolist() == [1, 2, 3]
        assert result.metrics_dataframe["files"].tolist() == [1, 1, 1]


def test_transformers(ray_cluster, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def loop(config):
        import torch
        import transformers
        from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 32

            def __getitem__(self, index):
                ids = torch.tensor([1, 2, index % 7, 3])
                return {"input_ids": ids, "labels": ids}

        settings = transformers.GPT2Config(
            vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1
        )
        trainer = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(settings),
            args=transformers.TrainingArguments(
                output_dir="out",
                num_train_epochs=2,
                learning_rate=config["lr"],
                save_strategy="epoch",
                logging_strategy="epoch",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Data(),
        )
        trainer.add_callback(RayTrainReportCallback())
        prepare_trainer(trainer).train()

    results = fit(
        TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        param_space={"train_loop_config": {"lr": 1e-3}},
        validation_config=tunekit.ValidationConfig(fn=files),
    )
    [result] = results
    assert result.metrics_dataframe["training_iteration"].tolist() == [1, 2]
    assert (result.metrics_dataframe["files"] > 1).all()


def test_xgboost(ray_cluster, tmp_path):
    pytest.importorskip("xgboost")
    from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

    def loop(config):
        import xgboost

        rank = train.get_context().get_world_rank()
        x = np.random.default_rng(rank).normal(size=(64, 3))
        rows = xgboost.DMatrix(x, x[:, 0] > 0)
        xgboost.train(
            {"objective": "binary:logistic", "eta": config["eta"], "nthread": 1},
            rows,
            num_boost_round=4,
            evals=[(rows, "train")],
            callbacks=[RayTrainReportCallback(metrics={"loss": "train-logloss"}, frequency=1)],
            verbose_eval=False,
        )

    def validate(checkpoint):
        model = RayTrainReportCallback.get_model(checkpoint)
        return {"trees": len(model.get_dump())}

    results = fit(
        XGBoostTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        param_space={"train_loop_config": {"eta": tune.grid_search([0.1, 0.5])}},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        validation_config=tunekit.ValidationConfig(fn=validate),
    )
    for result in results:
        assert result.metrics_dataframe["trees"].tolist()[:4] == [1, 2, 3, 4]
