"""How a session of a sweep is recorded as ended: finished, or not."""

from __future__ import annotations

import pytest
from ray import tune
from ray.tune import TuneError

import tunekit
from tests.journals import read
from tests.schedulers import CASES
from tests.sweeps import sweep


class Raises(tune.Callback):
    """Fails at the fifth report, or at the start or the end of a step with nothing to validate."""

    def __init__(self, when):
        self.when, self.reports = when, 0
        self.idle = lambda: False

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.reports += 1
        if self.when == "report" and self.reports == 5:
            raise TuneError("of a user's callback")

    def on_step_begin(self, iteration, trials, **info):
        if self.when == "step begins" and self.reports > 5 and self.idle():
            raise TuneError("of a user's callback")

    def on_step_end(self, iteration, trials, **info):
        if self.when == "step ends" and self.reports > 5 and self.idle():
            raise TuneError("of a user's callback")


def closed(ran):
    [end] = [event for event in read(ran.home) if event["event"] == "closed"]
    return end


def ended_as_tune_does(ran, steps=None):
    """``tune.run``: it cleans up in any case, and that ends every trial."""
    controller = ran.sweep.controller
    try:
        if steps is None:
            ran.sweep.run()
            return
        for _ in range(steps):
            ran.sweep.step()
        controller.checkpoint(force=True, wait=True)
    except Exception:
        controller.cleanup()
        raise
    controller.cleanup()


def few(tmp_path, **options):
    """Three trials, whose validations have ended whenever anything else happens."""
    return sweep(
        tmp_path,
        CASES["fifo"].make(tmp_path),
        trials=3,
        validation_s=lambda attempt: 0.001,
        run=False,
        **options,
    )


@pytest.mark.parametrize("when", ["report", "step begins", "step ends"])
@pytest.mark.parametrize("before", [False, True])
def test_a_sweep_that_died_is_not_finished(tmp_path, when, before):
    raises = Raises(when)
    ran = few(tmp_path, **{"more_callbacks" if before else "later_callbacks": (raises,)})
    raises.idle = lambda: ran.validation.validator.pool.idle
    with pytest.raises(TuneError, match="of a user"):
        ended_as_tune_does(ran)
    assert all(trial.is_finished() for trial in ran.trials)
    assert closed(ran)["finished"] is False
    assert tunekit.load(ran.home).summary()["state"] == "interrupted"


def test_a_sweep_that_was_interrupted_is_not_finished(tmp_path):
    ran = few(tmp_path)
    ended_as_tune_does(ran, steps=20)
    assert all(trial.is_finished() for trial in ran.trials) and ran.validation.validator.pool.idle
    assert closed(ran)["finished"] is False


def test_a_sweep_that_ended_is_finished(tmp_path):
    ran = few(tmp_path)
    ended_as_tune_does(ran)
    assert closed(ran)["finished"] is True
