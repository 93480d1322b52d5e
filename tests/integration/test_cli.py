"""The command line goes on with a sweep on a real Ray."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ray import tune

import tunekit
from tests.integration.runs import fit, validate
from tunekit.cli.commands import tunekit as command

pytestmark = pytest.mark.ray


def train(config: dict[str, Any]) -> None:
    """Four steps; the third fails until there is the file ``repaired``."""
    state = {"steps": 0, "scale": config["scale"]}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, "state.json").read_text())
    tunekit.checkpoint_with(lambda d: (d / "state.json").write_text(json.dumps(state)))
    while state["steps"] < 4:
        if state["steps"] == 2 and not Path(config["repaired"]).exists():
            raise RuntimeError("is broken")
        state["steps"] += 1
        tune.report({"loss": 1 / state["steps"]})


PROGRAM = """
import tunekit
from ray import tune

def train(config):
    for step in range(2):
        tunekit.checkpoint_with(lambda d: (d / "state.json").write_text(
            '{"steps": 1, "scale": 1.0}'))
        tune.report({"loss": step})
"""


def test_a_trainable_that_was_named_once_need_not_be_named_again(
    ray_cluster, tmp_path, monkeypatch
):
    def train(config: dict[str, Any]) -> None:
        raise RuntimeError("is broken")

    fit(
        train,
        tmp_path,
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    (tmp_path / "repaired.py").write_text(PROGRAM)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    unnamed = CliRunner().invoke(command, ["resume", "sweep", "--errored"])
    assert unnamed.exit_code == 2 and "Pass --trainable" in unnamed.stderr
    named = ["--trainable", "repaired.py:train", "--errored"]
    resumed = CliRunner().invoke(command, ["resume", "sweep", *named, "--json"])
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["trials"] == {"terminated": 1}

    monkeypatch.chdir("/")
    path = str(tmp_path / "sweep")
    again = CliRunner().invoke(command, ["resume", path, "--json"])
    assert again.exit_code == 0, again.output
    written = [session["trainable"] for session in tunekit.load(path).sessions]
    assert written == [None, *[f"{tmp_path}/repaired.py:train"] * 2]


def test_trials_that_failed_are_resumed(ray_cluster, tmp_path):
    repaired = tmp_path / "repaired"
    fit(
        train,
        tmp_path,
        param_space={"scale": tune.grid_search([1.0, 2.0]), "repaired": str(repaired)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    path = str(tmp_path / "sweep")
    before = CliRunner().invoke(command, ["status", path, "--json"])
    known = json.loads(before.stdout)
    assert known["trials"] == {"error": 2}
    assert {row["reason"] for row in known["failures"]} == {"RuntimeError: is broken"}

    repaired.touch()
    resumed = CliRunner().invoke(command, ["resume", path, "--errored", "--json"])
    assert resumed.exit_code == 0, resumed.output
    known = json.loads(resumed.stdout)
    assert known["state"] == "finished" and known["trials"] == {"terminated": 2}
    assert known["best"]["score"] == 0.8 and known["best"]["config"]["scale"] == 2.0
    assert [row["iteration"] for row in known["ranking"]] == [4, 4]
    assert known["sessions"] == 2
    # what was done before is not done again
    assert set(tunekit.load(path).reports["iteration_runs"]) == {1}
