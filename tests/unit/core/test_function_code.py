"""Whether a function only saves when something asks it to, by the names in its code."""

from __future__ import annotations

import functools
import sys
import types

import pytest
from ray import tune

import tunekit
from tunekit.core.function_code import saves_only_when_asked


def waits(config):
    tunekit.checkpoint_with(lambda folder: None)
    tune.report({"loss": 1.0})


def reports_checkpoints(config):
    tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_directory("."))


def asks():
    tunekit.report({"loss": 1.0}, validation=True)


def by_a_helper(config):
    tunekit.checkpoint_with(lambda folder: None)
    asks()


class Loop:
    def __init__(self):
        tunekit.checkpoint_with(self.save)

    def save(self, folder): ...

    def run(self):
        asks()


def by_a_class(config):
    Loop().run()


def nested(config):
    tunekit.checkpoint_with(lambda folder: None)

    def train():
        return [tunekit.report({"should_checkpoint": True}) for _ in range(1)]

    train()


def with_data(config, data):
    waits(config)


def with_data_and_a_helper(config, data):
    by_a_helper(config)


def closing_over(helper):
    def function(config):
        tunekit.checkpoint_with(lambda folder: None)
        helper()

    return function


def one(config):
    tunekit.checkpoint_with(lambda folder: None)
    other(config)


def other(config):
    one(config)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (waits, True),
        (one, True),
        (functools.partial(with_data, data=1), True),
        (closing_over(len), True),
        (reports_checkpoints, False),
        (by_a_helper, False),
        (by_a_class, False),
        (nested, False),
        (functools.partial(with_data_and_a_helper, data=1), False),
        (closing_over(asks), False),
        (Loop().run, False),
        (print, False),
        (None, False),
    ],
)
def test_what_a_functions_code_shows(function, expected):
    assert saves_only_when_asked(function) is expected


def test_parts_of_the_data_may_have_any_names():
    def rows(part):
        return {"train": [1], "validation": [2]}[part], "checkpoint"

    def train(config):
        tunekit.checkpoint_with(lambda folder: None)
        for _ in rows("validation"):
            tune.report({"loss": 1.0})

    assert saves_only_when_asked(train)


def test_helpers_in_other_modules_are_looked_at(monkeypatch):
    helpers = types.ModuleType("helpers_of_a_user")
    exec("import tunekit\ndef ask():\n    tunekit.report({}, validation=True)", vars(helpers))
    monkeypatch.setitem(sys.modules, "helpers_of_a_user", helpers)
    module = types.ModuleType("training_of_a_user")
    source = (
        "import helpers_of_a_user, tunekit\n"
        "def train(config):\n"
        "    tunekit.checkpoint_with(print)\n"
        "    helpers_of_a_user.ask()\n"
    )
    exec(source, vars(module))
    assert not saves_only_when_asked(module.train)
