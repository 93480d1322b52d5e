"""The names that a user is shown, and the one that was meant."""

from __future__ import annotations

from ray.tune.result import AUTO_RESULT_KEYS, DEBUG_METRICS, DEFAULT_RESULT_KEYS

from tunekit.core.metric_names import chosen, listed, meant

FILLED_IN = {*AUTO_RESULT_KEYS, *DEBUG_METRICS, "done", "generation", "config/lr", "trial_id"}


def test_none_of_what_tune_fills_in_was_chosen_by_the_user():
    others = set(DEFAULT_RESULT_KEYS) - {"mean_accuracy", "mean_loss"}
    assert chosen([*FILLED_IN, *others, "loss", "eval/loss"]) == ["eval/loss", "loss"]
    assert "mean_accuracy" in chosen(["mean_accuracy"]), "which a user reports"


def test_the_nearest_comes_first():
    names = ["alpha", "loss", "val_accuracy", "accuracy"]
    assert meant("acuracy", names) == "accuracy"
    assert listed(names, ["acuracy"]).split(", ")[:2] == ["'accuracy'", "'val_accuracy'"]
    assert meant("zzz", names) is None and meant("x", []) is None
