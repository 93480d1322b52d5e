"""The names that a user has chosen."""

from __future__ import annotations

from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, DEFAULT_RESULT_KEYS

from tunekit.core.metrics import user_metrics

FILLED_IN = {*AUTO_RESULT_KEYS, *DEBUG_METRICS, "done", "generation", "config/lr", "trial_id"}


def test_none_of_what_tune_fills_in_was_chosen_by_the_user():
    others = set(DEFAULT_RESULT_KEYS) - {"mean_accuracy", "mean_loss"}
    assert user_metrics([*FILLED_IN, *others, "loss", "eval/loss"]) == ["eval/loss", "loss"]
    assert "mean_accuracy" in user_metrics(["mean_accuracy"]), "which a user reports"
