"""Boosted trees with LightGBM, reported by Ray Tune's own callback."""

import lightgbm
import numpy as np
from ray import tune
from ray.tune.integration.lightgbm import TuneReportCheckpointCallback
from ray.tune.schedulers import ASHAScheduler

ROUNDS = 40


def rows(seed, count):
    x = np.random.default_rng(seed).normal(size=(count, 20))
    return x, x[:, 0] * x[:, 1] + x[:, 2] > 0


def train(config):
    training = lightgbm.Dataset(*rows(seed=1, count=2_000))
    held_out = lightgbm.Dataset(*rows(seed=2, count=20_000), reference=training)
    report = TuneReportCheckpointCallback(
        {"loss": "training-binary_logloss", "error": "held_out-binary_error"}, frequency=10
    )
    model, checkpoint = None, tune.get_checkpoint()
    if checkpoint:
        model = TuneReportCheckpointCallback.get_model(checkpoint)
    lightgbm.train(
        {**config, "objective": "binary", "metric": ["binary_logloss", "binary_error"]},
        training,
        num_boost_round=ROUNDS - (model.num_trees() if model else 0),
        init_model=model,
        valid_sets=[training, held_out],
        valid_names=["training", "held_out"],
        callbacks=[report],
    )


tuner = tune.Tuner(
    train,
    param_space={
        "learning_rate": tune.grid_search([0.03, 0.3, 1.0]),
        "num_leaves": tune.grid_search([4, 31]),
    },
    tune_config=tune.TuneConfig(
        metric="error",
        mode="min",
        scheduler=ASHAScheduler(max_t=ROUNDS, grace_period=10, reduction_factor=2),
    ),
)
table = tuner.fit().get_dataframe().sort_values("error")
shown = ["config/learning_rate", "config/num_leaves", "training_iteration", "error"]
print(table[shown].to_string(index=False))
