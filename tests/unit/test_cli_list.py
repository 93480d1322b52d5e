"""``tunekit list``, and the sweep that commands take without a PATH."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.fs
import pytest
from pyarrow.fs import LocalFileSystem
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.support.kills import killed_sweep
from tests.support.readers import tunekit_
from tests.support.sweeps import sweep
from tunekit.journal.experiments import sweeps_below
from tunekit.journal.lock import LOCK, DriverLock


def aged(home: Path, hours: float) -> Path:
    """Let a sweep's journal have been written so long ago."""
    for file in (home / "journal").glob("*.jsonl"):
        os.utime(file, (2e9 - 3600 * hours,) * 2)
    return home


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Four sweeps: one has ended, one was killed, one runs, and one is damaged."""
    home = tmp_path_factory.mktemp("home") / "ray_results"
    aged(sweep(home / "old", trials=2).home, 30)
    aged(killed_sweep(home / "project/killed", 60, FIFOScheduler(), trials=2), 20)
    running = aged(killed_sweep(home / "project/running", 60, FIFOScheduler(), trials=2), 10)
    (running / LOCK).unlink()
    DriverLock(LocalFileSystem(), str(running)).claim()
    damaged = aged(sweep(home / "damaged", trials=1).home, 40)
    [journal] = (damaged / "journal").glob("*.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], "no JSON", *lines[1:]]) + "\n")
    aged(damaged, 40)
    (home / ".hidden").mkdir()
    (home / "old/sweep").rename(home / "old sweep")
    (home / "plain/trial").mkdir(parents=True)
    (home / "plain/tuner.pkl").touch()
    return home


def test_each_sweep_is_listed_with_its_state_the_newest_first(results):
    known = json.loads(tunekit_("list", results, "--json").stdout)
    rows = [(row["name"], row["state"]) for row in known["sweeps"]]
    assert rows == [
        ("project/running/sweep", "running"),
        ("project/killed/sweep", "killed"),
        ("old sweep", "finished"),
        ("damaged/sweep", "unreadable"),
    ]
    ended = known["sweeps"][2]
    assert ended["best"]["score"] == tunekit.load(results / "old sweep").best().score
    assert ended["trials"] == {"terminated": 2} and ended["metric"] == "accuracy"
    assert "line" in known["sweeps"][3]["reason"]


def test_what_is_left_out_is_counted(results):
    lines = tunekit_("list", results, "--top", 1).stdout.splitlines()
    assert len(lines) == 3 and lines[-1] == "and 3 older ones: --top"


def test_a_uri_and_a_sweep_itself_may_be_listed(results):
    known = json.loads(tunekit_("list", f"file://{results}", "--json").stdout)
    assert known["found"] == 4
    known = json.loads(tunekit_("list", results / "old sweep", "--json").stdout)
    assert [row["name"] for row in known["sweeps"]] == ["old sweep"]


def test_a_folder_without_sweeps_says_so(tmp_path):
    result = tunekit_("list", tmp_path)
    assert result.exit_code == 0 and "no sweep with validation" in result.stdout
    assert tunekit_("list", "nowhere://at/all").exit_code == 2


def test_sweeps_are_not_looked_for_in_sweeps(results):
    for folder in ("old sweep", "plain/trial"):  # nor in experiments without validation
        inner = results / folder / "inner/journal"
        inner.mkdir(parents=True)
        (inner / "000001.jsonl").touch()
    found = sweeps_below(pyarrow.fs.LocalFileSystem(), str(results))
    assert f"{results}/old sweep" in [one.path for one in found]
    assert len(found) == 4


@pytest.mark.parametrize("command", ["status", "best"])
def test_without_a_path_the_newest_below_ray_results_is_taken(results, monkeypatch, command):
    monkeypatch.setenv("HOME", str(results.parent))
    newest = results / "project/running/sweep"
    result = tunekit_(command, "--json")
    assert result.stderr == f"The newest sweep below ~/ray_results: {newest}\n"
    assert json.loads(result.stdout) and "trial_id" in result.stdout
    if command == "status":
        assert json.loads(result.stdout)["path"] == str(newest)
    assert json.loads(tunekit_("list", "--json").stdout)["found"] == 4


def test_without_a_path_and_without_a_sweep_it_is_wrong_usage(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = tunekit_("status")
    assert result.exit_code == 2 and "PATH is missing" in result.stderr
    assert tunekit_("status", "--help").exit_code == 0
