"""The command line goes on with a sweep on a real Ray."""

from __future__ import annotations

import json
import sys

from click.testing import CliRunner
from ray import tune

import tunekit
from tests.support.real_sweeps import counting, fit, validate
from tunekit.cli.commands import tunekit as command

REPAIRED = """
from tests.support.real_sweeps import counting

def train(config):
    counting(config)
"""


def test_trials_that_failed_are_resumed_with_a_trainable_that_is_named_once(
    ray_cluster, tmp_path, monkeypatch
):
    def train(config):  # which no other process can import
        counting(config)

    fit(
        train,
        tmp_path,
        param_space={
            "scale": tune.grid_search([1.0, 2.0]),
            "length": 4,
            "fail_at": 3,
            "log": str(tmp_path / "log"),
        },
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        validation_config=tunekit.ValidationConfig(fn=validate),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    path = str(tmp_path / "sweep")

    def run(code, *arguments):
        done = CliRunner().invoke(command, [*arguments, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code == 0 else done.stderr

    known = run(0, "status", path)
    assert known["trials"] == {"error": 2}
    assert {row["reason"] for row in known["failures"]} == {"RuntimeError: fails once"}

    (tmp_path / "repaired.py").write_text(REPAIRED)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert "Pass --trainable" in run(2, "resume", "sweep", "--errored")
    known = run(0, "resume", "sweep", "--trainable", "repaired.py:train", "--errored")
    assert known["state"] == "finished" and known["trials"] == {"terminated": 2}
    assert known["best"]["score"] == 0.8 and known["best"]["config"]["scale"] == 2.0
    assert [row["iteration"] for row in known["ranking"]] == [4, 4]
    assert known["sessions"] == 2
    # what was done before is not done again
    assert set(tunekit.load(path).reports["iteration_runs"]) == {1}

    monkeypatch.chdir("/")
    run(0, "resume", path)
    written = [session["trainable"] for session in tunekit.load(path).sessions]
    assert written == [None, *[f"{tmp_path}/repaired.py:train"] * 2]
