"""SIGTERM, as Ctrl-C, ends a sweep so that it goes on with the command that is printed."""

from __future__ import annotations

import logging
import os
import re
import signal

import pytest
from click.testing import CliRunner
from ray import train, tune

import tunekit
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.real_sweeps import counting, fit, validate
from tunekit.cli.commands import tunekit as command
from tunekit.core.events import parse_event


class Interrupts(tune.Callback):
    """Sends this process a signal after two validations; a restored sweep is left alone."""

    left = 2

    def __getstate__(self):
        return {"left": -1}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.left -= "accuracy" in result
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def contents(folder):
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_interrupted_sweep_goes_on_with_the_command_that_it_prints(
    ray_cluster, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "ray.tune")
    before, home = signal.getsignal(signal.SIGTERM), tmp_path / "sweep"
    fit(
        counting,
        tmp_path,
        param_space={"length": 5, "sleep_s": 0.4},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=2),
        callbacks=[Interrupts()],
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"sleep_s": 0.4}),
            max_in_flight=1,
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    assert signal.getsignal(signal.SIGTERM) is before
    line = f"    tunekit resume {home}\n"
    assert line in caplog.text
    assert "Resume experiment with" not in caplog.text, "Ray's own advice"
    assert tunekit.load(home).summary()["state"] == "interrupted"

    found = contents(home)
    with pytest.raises(tunekit.errors.RestoreError, match=re.escape(line)):
        tune.Tuner.restore(str(home), tunekit.checkpointable(counting)).fit()
    assert contents(home) == found, "Ray has changed nothing"

    resumed = CliRunner().invoke(command, ["resume", str(home)])
    assert resumed.exit_code == 0, resumed.output
    events = read(home)
    assert [e["finished"] for e in events if e["event"] == "session_closed"] == [False, True]
    # each of five checkpoints of two trials, those that were pending included, once
    assert len(check_journal(map(parse_event, events)).scores) == 10
