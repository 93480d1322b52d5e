"""The programs of docs/frameworks run.

Here, only the cheapest one does. `scripts/examples` runs all of them, from the wheel; so does this
file with TUNEKIT_EXAMPLES=1, for what is installed.
"""

from __future__ import annotations

import os
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/frameworks"
#: What it is about, and what a plain test environment may lack for it.
NEEDS = {
    "xgboost": ["xgboost"],
    "pytorch": ["torch"],
    "trainable_class": ["torch"],
    "transformers": ["transformers", "accelerate"],
    "lightning": ["lightning"],
    "lightgbm": ["lightgbm"],
    "rllib": ["gymnasium", "torch"],
    "distributed_checkpoints": ["torch"],
}
CHEAPEST = "xgboost"


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_ranks_its_trials_by_validated_score(
    name, ray_cluster, tmp_path, monkeypatch, capsys
):
    lacking = [package for package in NEEDS[name] if find_spec(package) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed")
    if name != CHEAPEST and not os.environ.get("TUNEKIT_EXAMPLES"):
        pytest.skip("takes its time: set TUNEKIT_EXAMPLES=1, or run scripts/examples")
    monkeypatch.setenv("HOME", str(tmp_path))
    ran = runpy.run_path(str(FOLDER / name / "with_tunekit.py"), run_name="__main__")
    results, table = ran["tuner"].get_results(), ran["table"]
    assert not results.errors
    metric = results._experiment_analysis.default_metric
    assert table[metric].notna().all()
    assert table[metric].iloc[0] == results.get_best_result().metrics[metric]
    assert ran["tuner"].validation.summary()["validated"] >= len(table)
    assert metric.rpartition("/")[2] in capsys.readouterr().out
