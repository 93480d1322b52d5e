"""What is said before a sweep starts of functions that will have to go on from a checkpoint."""

from __future__ import annotations

import functools
import logging
import sys
import types

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)

import tunekit
from tunekit._ray.tuner import settings_of
from tunekit.core.resuming import saves_without_resuming
from tunekit.driver.scheduler import base_of
from tunekit.resuming import warn_of_beginning_anew


def forgets(config):
    tunekit.checkpoint_with(lambda folder: None)
    for _ in range(3):
        tune.report({"loss": 1.0})


def reports_checkpoints(config):
    tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory("."))


def resumes(config):
    checkpoint = tune.get_checkpoint()
    tunekit.checkpoint_with(lambda folder: checkpoint)


def loaded():
    return tune.get_checkpoint()


def by_a_helper(config):
    tunekit.checkpoint_with(lambda folder: None)
    loaded()


class Loop:
    def __init__(self):
        tunekit.checkpoint_with(self.save)

    def save(self, folder): ...

    def run(self):
        self.state = loaded()


def by_a_class(config):
    Loop().run()


def saves_nothing(config):
    tune.report({"loss": 1.0})


def by_attribute(config):
    tunekit.checkpoint_with(lambda folder: None)
    getattr(tune, "get_checkpoint")()  # noqa: B009


def nested(config):
    tunekit.checkpoint_with(lambda folder: None)

    def start():
        return [tune.get_checkpoint() for _ in range(1)]

    start()


def with_data(config, data):
    forgets(config)


def with_data_that_resumes(config, data):
    by_a_helper(config)


def closing_over(helper):
    def function(config):
        tunekit.checkpoint_with(lambda folder: None)
        helper()

    return function


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (forgets, True),
        (reports_checkpoints, True),
        (resumes, False),
        (by_a_helper, False),
        (by_a_class, False),
        (saves_nothing, False),
        (by_attribute, False),
        (nested, False),
        (functools.partial(with_data, data=1), True),
        (functools.partial(with_data_that_resumes, data=1), False),
        (closing_over(loaded), False),
        (closing_over(len), True),
        (Loop.run, False),
        (Loop().run, False),
        (print, False),
        (None, False),
    ],
)
def test_what_a_functions_code_shows(function, expected):
    assert saves_without_resuming(function) is expected


def test_helpers_in_other_modules_are_looked_at(monkeypatch):
    helpers = types.ModuleType("helpers_of_a_user")
    exec("from ray import tune\ndef load():\n    return tune.get_checkpoint()", vars(helpers))
    monkeypatch.setitem(sys.modules, "helpers_of_a_user", helpers)
    module = types.ModuleType("training_of_a_user")
    source = (
        "import helpers_of_a_user, tunekit\n"
        "def train(config):\n"
        "    tunekit.checkpoint_with(print)\n"
        "    helpers_of_a_user.load()\n"
    )
    exec(source, vars(module))
    assert not saves_without_resuming(module.train)


def test_functions_that_call_each_other_end_the_search():
    def one(config):
        tunekit.checkpoint_with(lambda folder: None)
        two(config)

    def two(config):
        one(config)

    assert saves_without_resuming(one)


@pytest.fixture
def said(tmp_path, caplog):
    """What is said before a sweep starts."""

    def look(function, *, on_pending="continue", scheduler=None, max_failures=0, validates=True):
        given = {}
        if validates:
            given["validation_config"] = tunekit.ValidationConfig(
                fn=lambda checkpoint: {}, on_pending=on_pending
            )
        tuner = tunekit.Tuner(
            function,
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(tmp_path),
                failure_config=tune.FailureConfig(max_failures=max_failures),
            ),
            checkpoint_policy=tunekit.EveryIterations(1),
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
            **given,
        )
        settings = settings_of(tuner)
        validation = None if tuner.validation is None else tuner.validation.config
        with caplog.at_level(logging.WARNING, logger="tunekit.resuming"):
            caplog.clear()
            warn_of_beginning_anew(settings, base_of(settings.tune_config.scheduler), validation)
        return caplog.text

    monkey = pytest.MonkeyPatch()
    monkey.setattr(logging.getLogger("tunekit"), "propagate", True)
    yield look
    monkey.undo()


def pbt():
    return PopulationBasedTraining(
        time_attr="training_iteration", hyperparam_mutations={"lr": [0.1, 0.2]}
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_pending": "wait"}, "on_pending='wait' pauses trials where"),
        ({"scheduler": pbt()}, "PopulationBasedTraining pauses or overwrites trials"),
        ({"scheduler": pbt(), "validates": False}, "PopulationBasedTraining pauses or overwrites"),
        ({"scheduler": HyperBandScheduler()}, "HyperBandScheduler pauses or overwrites trials"),
        ({"scheduler": ResourceChangingScheduler(ASHAScheduler())}, "starts trials anew"),
        ({"max_failures": -1}, "FailureConfig(max_failures=-1) restarts trials"),
    ],
)
def test_where_trials_will_be_resumed_a_function_that_forgets_is_named(said, options, reason):
    text = said(forgets, **options)
    assert "forgets saves checkpoints and does not seem to call tune.get_checkpoint()" in text
    assert reason in text
    assert "with checkpoint.as_directory() as folder:" in text
    assert said(resumes, **options) == ""


def test_without_validation_only_functions_that_save_with_tunekit_must_resume(said):
    assert said(reports_checkpoints, scheduler=pbt()) != ""
    assert said(reports_checkpoints, scheduler=pbt(), validates=False) == ""


@pytest.mark.parametrize("scheduler", [None, ASHAScheduler()])
def test_where_nothing_is_to_be_resumed_nothing_is_said(said, scheduler):
    assert said(forgets, scheduler=scheduler) == ""


def test_classes_and_parameters(said):
    class Net(tune.Trainable):
        def step(self):
            return {"loss": 1.0}

        def save_checkpoint(self, folder): ...

    assert said(Net, on_pending="wait") == ""
    assert "with_data" in said(tune.with_parameters(with_data, data=1), on_pending="wait")
    assert said(tune.with_parameters(with_data_that_resumes, data=1), on_pending="wait") == ""
    tune.register_trainable("forgets_by_name", forgets)
    assert "forgets" in said("forgets_by_name", on_pending="wait")
