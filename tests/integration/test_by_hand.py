"""A sweep of a real Ray is asked by hand, killed and restored meanwhile."""

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
from tests.asking import answers
from tests.invariants import check_journal
from tunekit.cli.commands import tunekit as command
from tunekit.core.events import Reported
from tunekit.journal.journal import events_in

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


def test_what_was_asked_outlives_a_kill(tmp_path):
    home, root = tmp_path / "sweep", Path(tunekit.__file__).parents[1]

    def start(*program: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=root,
            env={
                **os.environ,
                "PYTHONPATH": str(root),
                "RAY_ADDRESS": "local",
                "TUNEKIT_CHECK": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def reports(trial_id: str) -> list[int]:
        known = [one for one in events_in(home) if isinstance(one, Reported)]
        return [one.report["training_iteration"] for one in known if one.trial_id == trial_id]

    driver = start("tests.integration.asked", str(tmp_path))
    try:
        until(lambda: home.is_dir() and (home / "journal").is_dir(), driver)
        until(lambda: len(tunekit.load(home).timeline.trials) == 3, driver)
        first, second, third = tunekit.load(home).timeline.trials
        until(lambda: min(len(reports(one)) for one in (first, second, third)) >= 2, driver)
        where = str(home)
        assert "pauses" in said("pause", where, "--trial", first)
        assert "is stopped" in said("stop", where, "--trial", second)
        added = said("add", where, "--config", '{"scale": 2.0}').split()[1]
        until(lambda: len(reports(added)) >= 1, driver)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    paused_at, stopped_at = reports(first), reports(second)
    trainable = "tests.integration.runs:counting"
    driver = start("tunekit", "resume", where, "--trainable", trainable, "--take-over")
    try:
        until(lambda: len(tunekit.load(home).sessions) == 2, driver)
        until(lambda: max(reports(third), default=0) == 12, driver)
        assert reports(first) == paused_at and reports(second) == stopped_at
        assert "continues" in said("continue", where, "--trial", first)
        driver.wait(120)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert driver.returncode == 0
    assert [(one.action, one.refused) for one in answers(home)] == [
        (action, "") for action in ("pause", "stop", "add", "continue")
    ]
    check_journal(events_in(home))
    known = json.loads(said("status", where, "--json"))
    assert known["state"] == "finished" and known["trials"] == {"terminated": 4}
    reached = {row["trial_id"]: row["iteration"] for row in known["ranking"]}
    assert reached.pop(second) == stopped_at[-1] < 12 and set(reached.values()) == {12}
    assert {row["trial_id"]: row["by_hand"] for row in known["ranking"]}[second] == "stopped"
