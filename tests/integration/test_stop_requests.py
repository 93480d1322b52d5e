"""A trial of a real Ray is stopped by hand, and the sweep is killed and restored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import tunekit
from tests.invariants import check_journal
from tunekit.cli.commands import tunekit as command
from tunekit.core.events import Asked, Reported
from tunekit.journal.journal import events_in
from tunekit.journal.lock import TAKE_OVER

pytestmark = pytest.mark.ray


def until(what: Callable[[], bool], driver: subprocess.Popen) -> None:
    ends = time.monotonic() + 120
    while not what():
        assert driver.poll() is None and time.monotonic() < ends, "it never came to that"
        time.sleep(0.1)


def said(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_stop_outlives_a_kill(tmp_path):
    home, root = tmp_path / "sweep", Path(tunekit.__file__).parents[1]

    def start(*program: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "RAY_ADDRESS": "local", TAKE_OVER: "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def reports(trial_id: str) -> list[int]:
        known = [one for one in events_in(home) if isinstance(one, Reported)]
        return [one.report["training_iteration"] for one in known if one.trial_id == trial_id]

    driver = start("tests.integration.stopped", str(tmp_path))
    try:
        until(lambda: home.is_dir() and (home / "journal").is_dir(), driver)
        until(lambda: len(tunekit.load(home).timeline.trials) == 3, driver)
        first, second, third = tunekit.load(home).timeline.trials
        until(lambda: min(len(reports(one)) for one in (first, second, third)) >= 2, driver)
        where = str(home)
        assert "is stopped" in said("stop", where, "--trial", second)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    stopped_at = reports(second)
    trainable = "tests.integration.runs:counting"
    driver = start("tunekit", "resume", where, "--trainable", trainable)
    try:
        driver.wait(120)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert driver.returncode == 0
    events = events_in(home)
    check_journal(events)
    assert [one.trial_id for one in events if isinstance(one, Asked)] == [second]
    known = json.loads(said("status", where, "--json"))
    assert known["state"] == "finished" and known["trials"] == {"terminated": 3}
    reached = {row["trial_id"]: row["iteration"] for row in known["ranking"]}
    # What had no score yet when the trial was stopped is dropped.
    assert reached[first] == reached[third] == 12 and reached[second] <= stopped_at[-1] < 12
    assert [row["trial_id"] for row in known["ranking"] if row["by_hand"]] == [second]
