"""What the demonstration says, of sweeps that run without Ray."""

from __future__ import annotations

import itertools
import json
import pickle
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.sweeps import sweep
from tunekit.cli import commands
from tunekit.demo import sweep as demo_sweep
from tunekit.demo.sweep import Progress, next_commands, ranking, winner


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
    heads, first, *others = (line.split() for line in ranking(ended))
    assert heads == ["rank", "trial", "accuracy", "at", "epoch", "of", "lr"]
    assert first[:4] == ["1", best.trial_id.rsplit("_", 1)[-1], f"{best.score:.2%}", "5"]
    assert len(others) == 3
    told = winner(best, 0.987)
    assert f"trial {best.trial_id} at epoch 5" in told and f"{best.score:.2%}" in told
    assert "98.70% of the test images" in told and "test" not in winner(best, None)
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


def test_progress_is_told_from_the_first_second(tmp_path, capsys, monkeypatch):
    now = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(demo_sweep, "time", Clock)
    progress = Progress()
    ran = run(tmp_path, more_callbacks=(progress,), run=False)
    progress.validation = ran.validation
    while not ran.sweep.controller.is_finished():
        ran.sweep.step()
        now[0] += 1.0
    lines = [line for line in capsys.readouterr().out.splitlines() if "Validations:" in line]
    assert lines[0].startswith("1 s: 0 trials ended")
    seconds = [int(line.partition(" s:")[0]) for line in lines]
    assert len(seconds) > 2 and {b - a for a, b in itertools.pairwise(seconds)} == {10}
    assert "4 trials ended" in lines[-1]


def test_progress_travels_without_the_sweep():
    progress = Progress()
    progress.validation = object()  # type: ignore[assignment]
    assert pickle.loads(pickle.dumps(progress)).validation is None
