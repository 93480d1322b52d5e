"""What the demonstration says, of sweeps that run without Ray."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.sweeps import sweep
from tunekit.cli import commands
from tunekit.demo import digits, inline
from tunekit.demo import sweep as demo_sweep
from tunekit.demo.inline import Spent
from tunekit.demo.sweep import next_commands, winner


def falling(attempt: Any) -> dict[str, float]:
    """Trials get worse in the end: the newest score is not the best."""
    index = int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)
    near = abs(attempt.request.iteration - 5)
    return {"accuracy": 0.9 + index / 100 - near / 50}


def run(folder: Path, **options: Any) -> Any:
    base = ASHAScheduler(max_t=9, grace_period=3, reduction_factor=2)
    space = {"lr": tune.uniform(0, 1), "epochs": 9}
    options = {"validate": falling, "param_space": space, "trials": 4, **options}
    return sweep(folder, base, **options)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tunekit.Sweep:
    return tunekit.load(run(tmp_path_factory.mktemp("demo")).home)


def test_one_rule_names_one_winner_everywhere(ended):
    best = ended.best()
    assert best.iteration == 5  # a trial's newest score is another one's
    told = winner(best, 0.987)
    assert f"trial {best.trial_id} at epoch 5" in told and f"{best.score:.2%}" in told
    assert "98.70% on the test images" in told and "test" not in winner(best, None)
    result = CliRunner().invoke(commands.tunekit, ["best", ended.path, "--json"])
    known = json.loads(result.stdout)
    assert (known["trial_id"], known["iteration"]) == (best.trial_id, best.iteration)


def test_the_next_commands_work(ended, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = [shlex.split(line) for line in next_commands(ended.path)[1:]]
    assert [words[1] for words in told] == ["status", "best", "report"]
    for words in told[:2]:
        result = CliRunner().invoke(commands.tunekit, words[1:])
        assert result.exit_code == 0, result.output
    assert set(told[2]) == {"tunekit", "report", ended.path, "--open"}


def demonstrated(ended: tunekit.Sweep, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Run the demo as if its sweep had taken 41 s and become ``ended``."""

    class Tuner:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def fit(self) -> Any:
            now[0] += 41.0
            return SimpleNamespace(experiment_path=ended.path, filesystem=None)

    now, called = [0.0], []
    monkeypatch.setattr(demo_sweep, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(demo_sweep.digits, "start_ray", lambda: None)
    monkeypatch.setattr(demo_sweep.digits, "accuracy_of", lambda checkpoint: 0.9)
    monkeypatch.setattr(demo_sweep.digits, "SPACE", {"lr": None})
    monkeypatch.setattr(tunekit, "Tuner", Tuner)
    monkeypatch.setattr(demo_sweep.ray, "shutdown", lambda: called.append("shutdown"))

    def run_alone(trials: int, seed: int) -> Spent:
        assert called == ["shutdown"]  # the machine is its own
        assert (trials, seed) == (16, 3)
        return Spent(50.0, 30, 0.5)

    monkeypatch.setattr(demo_sweep, "run_alone", run_alone)
    demo_sweep.run(seed=3, **options)


def test_it_says_what_came_of_it(ended, monkeypatch, capsys):
    demonstrated(ended, monkeypatch)
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()]
    place = next(n for n, row in enumerate(rows) if row[:1] == ["trial_id"])
    best = ended.best()
    assert rows[place + 1][:3] == [best.trial_id, f"{best.score:.3g}", "5"]
    assert ["Next:"] in rows and "inline" not in said


def test_it_compares_itself_with_a_real_inline_run(ended, monkeypatch, capsys):
    """What it took, by the clock, and what it trained; nothing that would have been."""
    demonstrated(ended, monkeypatch, inline=True)
    said = capsys.readouterr().out
    epochs = ended.summary()["iterations"]
    rows = [line.split() for line in said.splitlines()]
    assert ["tunekit", "41.0", str(epochs), f"{ended.best().score:.2%}"] in rows
    assert ["inline", "50.0", "30", "50.00%"] in rows
    assert "tunekit took 0.82 times as long" in said
    assert said.index("took 0.82") < said.index("Next:")


@pytest.mark.parametrize("at", ["epochs", "rungs"])
def test_the_inline_run_is_the_same_sweep(monkeypatch, at):
    """The same training, bit for bit; ASHA finds its metric in each report."""
    config = {"lr": 0.01, "width": 4, "weight_decay": 0.0, "dropout": 0.1, "batch_size": 64}
    config |= {"epochs": 4}
    rows: dict[str, list[dict[str, float]]] = {"ours": [], "inline": []}
    monkeypatch.setattr(tunekit, "checkpoint_with", lambda save: None)
    monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
    for name, train in (("ours", digits.train_digits), ("inline", inline.train_inline)):
        monkeypatch.setattr(tune, "report", lambda row, n=name, **_: rows[n].append(row))
        train(config | {"at": at})
    assert [row["loss"] for row in rows["inline"]] == [row["loss"] for row in rows["ours"]]
    scores = [row["accuracy"] for row in rows["inline"]]
    assert len(scores) == 4 and all("accuracy" not in row for row in rows["ours"])
    assert len(set(scores)) == (2 if at == "rungs" else 4) and (scores[1] == scores[0]) == (
        at == "rungs"
    )
