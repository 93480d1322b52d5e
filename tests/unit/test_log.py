"""The library adds no log handler; a running Tuner shows its messages where there is none."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys

import pytest
from ray import tune

import tunekit
from tunekit.messages.log import showing_messages

PROGRAM = """
import logging
import tunekit
from tunekit.messages.log import showing_messages

own, log = logging.getLogger("tunekit"), logging.getLogger("tunekit.x")
log.info("unheard")
with showing_messages():
    log.info("first")
    with showing_messages():
        log.info("second")
    log.info("third")
    logging.basicConfig(format="APP %(message)s", level=logging.INFO)
    log.info("fourth")
log.info("fifth")
assert not own.handlers and own.propagate and own.level == logging.NOTSET
with showing_messages():
    log.info("sixth")
"""


def test_messages_are_shown_once_while_a_tuner_runs_by_tunekit_or_by_configured_handlers(tmp_path):
    path = os.path.dirname(os.path.dirname(tunekit.__file__))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        check=True,
    )
    shown, configured = done.stderr.splitlines()[:3], done.stderr.splitlines()[3:]
    assert [line.split()[-3:] for line in shown] == [
        ["tunekit", "INFO:", text] for text in ("first", "second", "third")
    ]
    assert configured == ["APP fourth", "APP fifth", "APP sixth"]


@pytest.fixture
def alone(monkeypatch):
    """Remove the root handlers when called: pytest adds its own after fixtures."""

    def call() -> logging.Logger:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        return logging.getLogger("tunekit")

    return call


def test_messages_are_shown_if_the_only_handler_is_a_null_handler(alone, monkeypatch, capsys):
    monkeypatch.setattr(alone(), "handlers", [logging.NullHandler()])
    with showing_messages():
        logging.getLogger("tunekit.x").warning("heard")
    assert "tunekit WARNING: heard" in capsys.readouterr().err


def test_control_characters_are_escaped_and_further_lines_of_a_message_indented(alone, capsys):
    alone()
    with showing_messages():
        log = logging.getLogger("tunekit.x")
        log.warning("The validation of %s failed.\ntrace", "a\x1b[2J\r\u202e\n2026 tunekit INFO: b")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(r"The validation of a\x1b[2J\r\u202e")
    assert others == ["  2026 tunekit INFO: b failed.", "  trace"]


def test_fit_and_restore_show_each_message_once(alone, monkeypatch, capsys, tmp_path):
    def say(*args, **options):
        logging.getLogger("tunekit.x").info("running")
        return tuner

    alone()
    tuner = tunekit.Tuner(
        lambda config: None, run_config=tune.RunConfig(storage_path=str(tmp_path))
    )
    monkeypatch.setattr("ray.tune.Tuner.fit", say)
    monkeypatch.setattr("ray.tune.Tuner.restore", say)
    tuner.fit()
    assert capsys.readouterr().err.count("tunekit INFO: running") == 1
    (tmp_path / "tuner.pkl").write_bytes(pickle.dumps({}))
    (tmp_path / "experiment_state-2026-01-01_00-00-00.json").touch()  # it has begun
    tunekit.Tuner.restore(str(tmp_path), lambda config: None)
    assert capsys.readouterr().err.count("tunekit INFO: running") == 1
    assert not logging.getLogger("tunekit").handlers
