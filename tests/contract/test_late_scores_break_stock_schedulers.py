"""The demonstration of what late scores do to stock schedulers shows what it says."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "exactness.py"


def test_stock_clones_other_weights_and_fills_rungs_with_other_scores(capsys, monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    spec = importlib.util.spec_from_file_location("exactness", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stock, ours, (stock_rungs, our_rungs) = script.main(["--seeds", "1"])
    assert ours[0] == ours[1] > 5
    assert stock[1] < stock[0] / 2
    assert all(own == scores for scores, own in our_rungs.values())
    assert sum(own for _, own in stock_rungs.values()) < sum(n for n, _ in stock_rungs.values())
    assert "with other weights" in capsys.readouterr().out
