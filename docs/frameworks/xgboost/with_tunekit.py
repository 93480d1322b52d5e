"""Boosted trees with XGBoost, reported by Ray Tune's own callback."""

import numpy as np
import xgboost
from ray import tune
from ray.tune.integration.xgboost import TuneReportCheckpointCallback
from ray.tune.schedulers import ASHAScheduler

import tunekit

ROUNDS = 40


def rows(seed, count):
    x = np.random.default_rng(seed).normal(size=(count, 20))
    return xgboost.DMatrix(x, x[:, 0] * x[:, 1] + x[:, 2] > 0)


def train(config):
    training = rows(seed=1, count=2_000)
    report = TuneReportCheckpointCallback(
        {"loss": "training-logloss"},
        frequency=10,
        checkpoint_at_end=False,
    )
    model, checkpoint = None, tune.get_checkpoint()
    if checkpoint:
        model = TuneReportCheckpointCallback.get_model(checkpoint)
    xgboost.train(
        {**config, "objective": "binary:logistic", "eval_metric": "logloss"},
        training,
        num_boost_round=ROUNDS - (model.num_boosted_rounds() if model else 0),
        xgb_model=model,
        evals=[(training, "training")],
        callbacks=[report],
        verbose_eval=False,
    )


def validate(checkpoint):
    model, held_out = TuneReportCheckpointCallback.get_model(checkpoint), rows(seed=2, count=20_000)
    wrong = (model.predict(held_out) > 0.5) != held_out.get_label()
    return {"error": wrong.mean()}


tuner = tunekit.Tuner(
    train,
    param_space={"eta": tune.grid_search([0.03, 0.3, 1.0]), "max_depth": tune.grid_search([2, 6])},
    tune_config=tune.TuneConfig(
        metric="error",
        mode="min",
        scheduler=ASHAScheduler(max_t=ROUNDS, grace_period=10, reduction_factor=2),
    ),
    validation_config=tunekit.ValidationConfig(fn=validate),
)
table = tuner.fit().get_dataframe().sort_values("error")
shown = ["config/eta", "config/max_depth", "training_iteration", "error"]
print(table[shown].to_string(index=False))
