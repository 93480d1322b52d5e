"""A killed sweep can be validated later with another function, also on S3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from click.testing import CliRunner
from ray import train, tune

import tunekit
from tests.support.kills import Killed, bury, killed_after
from tests.support.modes import Mode
from tests.support.real_sweeps import joining
from tests.support.schedulers import pbt
from tests.support.sweeps import Plan
from tests.support.versioned import Versioned, version_at
from tunekit.cli.commands import tunekit as command


def killed(folder: Path) -> Path:
    """Run a population that is killed; return its folder."""
    base = pbt(synch=True, quantile_fraction=0.25)
    plan = Plan(folder, base, Mode.WAIT, trials=4).training(Versioned)
    plan = plan.tuning(param_space={"length": 8, "lr": tune.uniform(0.0, 1.0)})
    plan = plan.validating(lambda at: {"accuracy": float(version_at(at.request.path))})
    with suppress(Killed), killed_after(150):
        plan.run()
    bury(folder / "sweep")
    return folder / "sweep"


def halved(checkpoint: tune.Checkpoint, *, log: str) -> dict[str, Any]:
    """Half of the version, and the learning rate; each call is a line of a log."""
    with open(log, "a") as calls:
        calls.write(f"{checkpoint.path}\n")
    with checkpoint.as_directory() as folder:
        version = version_at(folder)
    return {"accuracy": version / 2, "lr": tunekit.get_validation_context().config["lr"]}


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def config(log: Path, **environment: str) -> tunekit.ValidationConfig:
    kwargs = train.ValidationTaskConfig(fn_kwargs={"log": str(log)}, timeout_s=60)
    needs = {"num_cpus": 1, **({"runtime_env": {"env_vars": environment}} if environment else {})}
    return tunekit.ValidationConfig(halved, kwargs, needs, max_in_flight=3)


def test_later_validation_scores_every_checkpoint_of_a_killed_population(ray_cluster, tmp_path):
    log = tmp_path / "log"
    after = tunekit.validate(tunekit.load(killed(tmp_path)), config(log))
    table = after.reports.dropna(subset="halved/accuracy")
    assert len(table) == len(lines(log)) == len(after.later_validations) > 3
    both = table.dropna(subset="accuracy")
    assert (both["halved/accuracy"] == both["accuracy"] / 2).all() and len(both) > 3
    for row in table.to_dict("records"):
        ran_with = after.timeline.config_of(row["trial_id"], row["tunekit/generation"])
        assert row["halved/lr"] == pytest.approx(ran_with["lr"])
    assert after.best().score == both["accuracy"].max()
    assert after.best("halved/accuracy", "max").score == table["halved/accuracy"].max()


def test_later_validation_on_s3_scores_each_checkpoint_once(ray_cluster, s3, tmp_path):
    local = killed(tmp_path)
    log, filesystem, path = tmp_path / "log", s3.filesystem(), f"{s3.make_bucket('later')}/one"
    pyarrow.fs.copy_files(str(local), path, pyarrow.fs.LocalFileSystem(), filesystem)
    after = tunekit.validate(tunekit.load(path, filesystem), config(log, **s3.environment()), 2)
    assert len(lines(log)) == 2 and after.best("halved/accuracy", "max").checkpoint
    assert len(after.reports.dropna(subset="halved/accuracy")) == 2
    # by its URI: both have scores
    again = tunekit.validate(tunekit.load(s3.uri(path)), config(log, **s3.environment()), 2)
    assert len(again.later_validations) == 2 and len(lines(log)) == 2
    # one that is not
    filesystem.delete_dir(again.best().path)
    other = tunekit.validate(
        tunekit.load(path, filesystem), config(log, **s3.environment()), 1, name="other"
    )
    assert len(lines(log)) == 3
    assert other.best("other/accuracy", "max").path != again.best().path


WAITS = """
import os, time
from pathlib import Path

import tunekit

HERE = Path(__file__).parent

def waits(checkpoint):
    with open(HERE / "log", "a") as log:
        log.write(f"{checkpoint.path}\\n")
    while len((HERE / "log").read_text().splitlines()) > 2 and not (HERE / "go").exists():
        time.sleep(0.05)
    return {"accuracy": 1.0}

alone = tunekit.ValidationConfig(waits, max_in_flight=1)
"""


def test_interrupted_validate_command_repeats_only_the_running_validation(
    ray_cluster, tmp_path, monkeypatch
):
    home, log = killed(tmp_path), tmp_path / "log"
    (tmp_path / "evals.py").write_text(WAITS)
    arguments = ["validate", str(home), "--fn", "evals.py:alone", "--checkpoints", "4", "--json"]
    program = [sys.executable, "-m", "tunekit", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(program, env=joining(ray_cluster), cwd=tmp_path, **pipes)
    ends = time.monotonic() + 120
    while len(lines(log)) < 3:
        assert first.poll() is None and time.monotonic() < ends, first.communicate()
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)  # as Ctrl-C
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1, said
    known = tunekit.load(home).later_validations
    assert sorted(known["status"]) == ["queued", "queued", "validated", "validated"]
    (tmp_path / "go").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    again = CliRunner().invoke(command, arguments)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["scored"] == 4
    counts = [lines(log).count(path) for path in set(lines(log))]
    assert sorted(counts) == [1, 1, 1, 2], "only the one that was running is run again"
