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


def program(code: str, tmp_path) -> subprocess.CompletedProcess[str]:
    """Run a program with the library imported, without Ray."""
    text = f"import logging\nimport tunekit\nlog = logging.getLogger('tunekit.x')\n{code}"
    path = os.pathsep.join([os.path.dirname(os.path.dirname(tunekit.__file__))])
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        check=True,
    )


def test_logging_configured_after_the_import_gets_every_message_once(tmp_path):
    done = program(
        """
assert not logging.getLogger("tunekit").handlers
assert logging.getLogger("tunekit").propagate
assert logging.getLogger("tunekit").level == logging.NOTSET
log.warning("before")
logging.basicConfig(format="APP %(message)s", force=True)
log.warning("after")
from tunekit.messages.log import showing_messages
with showing_messages():
    log.warning("while it runs")
""",
        tmp_path,
    )
    assert done.stderr.splitlines()[-3:] == ["before", "APP after", "APP while it runs"]


def test_messages_are_shown_while_a_tuner_runs_if_no_handler_is_configured(tmp_path):
    done = program(
        """
from tunekit.messages.log import showing_messages
log.info("unheard")
with showing_messages():
    log.info("first")
    with showing_messages():
        log.info("second")
    log.info("third")
    logging.basicConfig(format="APP %(message)s", level=logging.INFO)
    log.info("fourth")
log.info("fifth")
assert not logging.getLogger("tunekit").handlers
assert logging.getLogger("tunekit").level == logging.NOTSET
""",
        tmp_path,
    )
    lines = done.stderr.splitlines()
    shown = [line.rsplit(" ", 1)[-1] for line in lines]
    assert shown == ["first", "second", "third", "fourth", "fifth"]
    assert "tunekit INFO: first" in lines[0]
    assert lines[3:] == ["APP fourth", "APP fifth"], "each message once"


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
