"""The winner of a sweep is confirmed on a real Ray."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner

import tunekit
from tests.integration.confirmed import SIZE, seeded, tuner, validate
from tests.integration.runs import counting
from tunekit.cli.commands import tunekit as command
from tunekit.core.events import ValidationEstimated
from tunekit.journal.journal import later_sessions
from tunekit.journal.storage import LocalFolder

pytestmark = pytest.mark.ray


def estimated(home: Path) -> dict[str, int]:
    """How many examples the confirmation has evaluated of each candidate, as it is recorded."""
    return {
        event.id: event.estimates["accuracy"].n
        for session in later_sessions(LocalFolder(home))
        for event in session.events
        if isinstance(event, ValidationEstimated)
    }


def calls(log: Path) -> list[tuple[str, int]]:
    """The calls of the function: the checkpoint, and from which example on."""
    pairs = (line.split() for line in log.read_text().splitlines())
    return [(name, int(begins)) for name, begins in pairs]


def test_the_winner_is_confirmed_when_a_sweep_has_ended(ray_cluster, tmp_path):
    confirm = tunekit.Confirm(top=2, fn=seeded, max_rounds=12)
    results = tuner(tmp_path, confirm, [0.5, 1.5, 0.7]).fit()
    assert results.confirmation and len(results) == 3
    found = results.confirmation
    assert found.certain and found.sure >= 0.95 and len(found.candidates) == 2
    best = results.get_best_result()
    assert best.config["scale"] == 1.5 and best.metrics["trial_id"] == found.winner.trial_id
    sweep = tunekit.load(results.experiment_path)
    assert sweep.best().confirmation == found
    assert sweep.best().metrics["confirmed"]["accuracy_n"] == found.winner.n >= 3
    # The sweep itself did not evaluate its best in full, as that was to be confirmed.
    assert sweep.validations["metrics/accuracy_n"].max() < SIZE
    # Other metrics and averages are Tune's to rank.
    assert results.get_best_result("loss", "max").metrics["loss"] == pytest.approx(1 / 3)


def test_a_killed_confirmation_goes_on_when_the_sweep_is_restored(ray_cluster, tmp_path):
    root, home, log = Path(tunekit.__file__).parents[1], tmp_path / "sweep", tmp_path / "log"
    program = [sys.executable, "-m", "tests.integration.confirmed", str(tmp_path)]
    driver = subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ends = time.monotonic() + 240
    while not (home / "validations").exists() or len(estimated(home)) < 2:
        assert driver.poll() is None and time.monotonic() < ends, driver.communicate()
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    known, before = estimated(home), len(calls(log))
    sweep = tunekit.load(home)
    assert sweep.summary()["state"] == "finished" and sweep.confirmation is None
    results = tunekit.Tuner.restore(str(home), counting).fit()
    assert results.confirmation
    assert results.get_best_result().config["scale"] == 2.0
    assert results.confirmation.certain
    # What had been yielded was not evaluated again.
    again = dict(calls(log)[before:])
    assert again and all(begins == known.get(name, 0) for name, begins in again.items())
    assert any(begins > 0 for begins in again.values())
    # Once more: nothing is left to do.
    after = len(calls(log))
    results = tunekit.Tuner.restore(str(home), counting).fit()
    assert results.confirmation and len(calls(log)) == after
    # On the command line, with the sweep's own function, which Tune has written down.
    said = CliRunner().invoke(command, ["confirm", str(home), "--top", "2", "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)["confirmation"]
    assert found["winner"]["trial_id"] == results.confirmation.winner.trial_id
    assert len(found["candidates"]) == 2 and len(calls(log)) > after


def test_candidates_are_evaluated_one_after_the_other_in_the_only_evaluator(ray_cluster, tmp_path):
    kwargs = ray.train.ValidationTaskConfig(fn_kwargs={"log": str(tmp_path / "calls")})
    one = tunekit.ValidationConfig(validate, kwargs, evaluators=1)
    results = tuner(tmp_path, tunekit.Confirm(top=3, fn=one), [2.0, 1.8, 1.5]).fit()
    assert results.confirmation and results.confirmation.certain
    assert results.get_best_result().config["scale"] == 2.0
    rows = tunekit.load(results.experiment_path).later_validations
    assert rows["metrics/pid"].nunique() == 1
    assert [begins for _, begins in calls(tmp_path / "calls")] == [0, 0, 0]
    assert sorted(rows["metrics/accuracy_n"])[:2] < [SIZE, SIZE], "the other two were eliminated"


def broken(checkpoint):
    raise ValueError("no data")


def test_the_results_are_there_whatever_becomes_of_the_confirmation(
    ray_cluster, tmp_path, caplog, monkeypatch
):
    confirm = tunekit.Confirm(top=2, fn=broken)
    with caplog.at_level(logging.WARNING, logger="tunekit"):
        results = tuner(tmp_path, confirm, [0.5, 1.5]).fit()
    home = results.experiment_path
    assert results.confirmation is None and len(results) == 2
    assert results.get_best_result().config["scale"] == 1.5
    assert "raised ValueError: no data" in caplog.text
    assert f"tunekit resume {home}" in caplog.text
    assert tunekit.load(home).best().confirmation is None

    def interrupts(*asked, **options):
        raise KeyboardInterrupt

    caplog.clear()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="tunekit"):
        patch.setattr("tunekit.tuner.confirmed", interrupts)
        results = tunekit.Tuner.restore(home, counting).fit()
    assert results.confirmation is None and "was interrupted" in caplog.text
    # With another function, it is done.
    assert tunekit.load(home).confirm(seeded).best().confirmation.certain
