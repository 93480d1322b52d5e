"""A wrong setting of validations is refused at once, with its name, value and rule."""

from __future__ import annotations

import functools
import pickle
import threading

import numpy as np
import pandas as pd
import pytest
from ray import train

import tunekit
from tunekit import ValidationConfig
from tunekit.core.signatures import missing_arguments, signature_of
from tunekit.errors import ConfigError


def validate(checkpoint, *, batch_size=256):
    return {"accuracy": 0.5}


def problems_of(call) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value.problems


#: Settings, and what the problem must name.
WRONG = [
    ({"when": 0}, ["when=0", "1"]),
    ({"when": True}, ["when=True"]),
    ({"when": "2"}, ["when='2'", "'auto'", "'decisions'", "'requested'"]),
    ({"where": "here"}, ["where='here'", "'auto'", "'trial'", "'elsewhere'"]),
    ({"where": "trial", "evaluators": 2}, ["where='trial'", "evaluators=2"]),
    ({"where": "trial", "on_pending": "continue"}, ["where='trial'", "on_pending='continue'"]),
    (
        {"where": "trial", "ray_remote_kwargs": {"runtime_env": {}}},
        ["where='trial'", "ray_remote_kwargs['runtime_env']"],
    ),
    ({"max_in_flight": 0}, ["max_in_flight=0", "1", "None"]),
    ({"max_retries": -1}, ["max_retries=-1", "0"]),
    ({"on_pending": "hold"}, ["on_pending='hold'", "'auto'", "'wait'", "'continue'"]),
    ({"on_failure": None}, ["on_failure=None", "'record'", "'raise'", "'ignore'"]),
    ({"constraints": ["a <= 1"]}, ["constraints[0]='a <= 1'", "Constraint"]),
    ({"fn": None}, ["fn=None"]),
    ({"task_config": {"timeout_s": 3}}, ["task_config={'timeout_s': 3}", "ValidationTaskConfig"]),
    (
        {"task_config": train.ValidationTaskConfig(fn_kwargs=[1])},
        ["task_config.fn_kwargs=[1]"],
    ),
    (
        {"task_config": train.ValidationTaskConfig(timeout_s=float("inf"))},
        ["timeout_s=inf", "0"],
    ),
    ({"ray_remote_kwargs": [1]}, ["ray_remote_kwargs=[1]"]),
    ({"ray_remote_kwargs": {"num_cpu": 1}}, ["ray_remote_kwargs={'num_cpu': 1}"]),
    ({"ray_remote_kwargs": {"num_cpus": -1}}, ["ray_remote_kwargs={'num_cpus': -1}"]),
    ({"ray_remote_kwargs": {"num_returns": 2}}, ["ray_remote_kwargs", "num_returns=2"]),
]


@pytest.mark.parametrize(("settings", "named"), WRONG, ids=[" ".join(named) for _, named in WRONG])
def test_wrong_setting_is_refused_with_its_name_value_and_allowed_values(settings, named):
    [problem] = problems_of(lambda: ValidationConfig(**{"fn": validate, **settings}))
    assert [part for part in named if part not in problem] == []


def test_config_error_lists_every_wrong_setting_once():
    together = {
        key: value
        for settings, _ in WRONG
        for key, value in settings.items()
        if key not in ("fn", "task_config")
    }
    found = problems_of(lambda: ValidationConfig(fn=validate, **together))
    assert len(found) == len(together)
    assert [name for name in together if not any(name in one for one in found)] == []


def test_config_error_is_a_value_error_that_survives_pickling():
    error = ConfigError("Tuner", ["one.", "two."])
    copied = pickle.loads(pickle.dumps(error))
    assert isinstance(copied, ValueError) and str(copied) == str(error)
    assert (copied.where, copied.problems) == ("Tuner", ("one.", "two."))


def test_max_calls_is_accepted_for_tasks_and_evaluators_unless_negative():
    often = {"ray_remote_kwargs": {"max_calls": 100}}
    for evaluators in (1, None):
        assert ValidationConfig(validate, evaluators=evaluators, **often).evaluators == evaluators
    never = {"ray_remote_kwargs": {"max_calls": -1}}
    [problem] = problems_of(lambda: ValidationConfig(validate, evaluators=1, **never))
    assert "ray_remote_kwargs['max_calls']=-1" in problem


# What the function brings along ------------------------------------------------------------------


LOCK = threading.Lock()


def by_closure(inner):
    def validate(checkpoint, **given):
        return inner and {"accuracy": 0.5}

    return validate


def uses_table(checkpoint):
    return {"accuracy": float(TABLE[0])}


uses_table.__module__ = "__main__"
TABLE = np.zeros(1 << 16)


def test_validation_function_and_its_arguments_may_hold_large_data():
    frame = pd.DataFrame({"x": np.zeros(1 << 16), "y": ["a"] * (1 << 16)})
    large = {
        "array": np.zeros((2, 1 << 15), order="F"),
        "frame": frame,
        "bytes": bytearray(1 << 20),
    }
    ValidationConfig(by_closure(large), task_config=train.ValidationTaskConfig(fn_kwargs=large))
    for fn in (functools.partial(by_closure(1), data=large), uses_table):
        ValidationConfig(fn=fn)


def test_unpicklable_function_and_argument_are_both_refused_and_named():
    kwargs = train.ValidationTaskConfig(fn_kwargs={"lock": LOCK})
    found = problems_of(lambda: ValidationConfig(fn=by_closure(LOCK), task_config=kwargs))
    assert len(found) == 2
    for problem, name in zip(found, ("fn=", "task_config.fn_kwargs['lock']="), strict=True):
        assert problem.startswith(name) and "ray.util.inspect_serializability" in problem


# Which arguments a validation function can get, and which it still lacks ------------------------


def documented(checkpoint, train_run_name: str, epoch: int):
    return {"accuracy": 0.5}


class Evaluator:
    def __call__(self, checkpoint, epoch):
        return {"accuracy": 0.5}


def with_arguments(fn, kwargs):
    task = train.ValidationTaskConfig(fn_kwargs=kwargs)
    return ValidationConfig(fn, evaluators=1, task_config=task)


@pytest.mark.parametrize(
    ("fn", "kwargs", "lacks"),
    [
        (documented, {}, ["train_run_name", "epoch"]),
        (documented, {"epoch": 3}, ["train_run_name"]),
        (documented, {"epoch": 3, "train_run_name": "a"}, []),
        (validate, {}, []),
        (lambda checkpoint, **kwargs: {}, {}, []),
        (Evaluator, {}, ["epoch"]),
        (functools.partial(Evaluator), {}, ["epoch"]),
        (lambda first, second=2, *rest, third, **more: {}, {}, ["third"]),
        (len, {}, []),
    ],
)
def test_validation_function_may_lack_arguments_that_reports_can_pass_later(fn, kwargs, lacks):
    assert with_arguments(fn, kwargs).fn is fn
    assert missing_arguments(signature_of(fn), kwargs) == lacks


@pytest.mark.parametrize(
    ("fn", "kwargs", "named"),
    [
        (lambda: {"accuracy": 0.5}, {}, "fn(checkpoint)"),
        (lambda *, checkpoint: {}, {}, "fn(checkpoint)"),
        (validate, {"batchsize": 1}, "'batchsize'"),
        (documented, {"checkpoint": 1}, "'checkpoint'"),
        (lambda checkpoint, config, /: {}, {}, "'config'"),
        (lambda checkpoint, config, /: {}, {"config": 3}, "'config'"),
    ],
)
def test_validation_function_that_no_report_can_complete_is_refused(fn, kwargs, named):
    [problem] = problems_of(lambda: with_arguments(fn, kwargs))
    assert named in problem


async def waits(checkpoint):
    return {"accuracy": 0.5}


def yields(checkpoint):
    yield {"accuracy": 0.5}


async def both(checkpoint):
    yield {"accuracy": 0.5}


class Waiting:
    async def __call__(self, checkpoint):
        return {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (waits, "coroutine"),
        (functools.partial(waits), "coroutine"),
        (Waiting, "coroutine"),
        (Waiting(), "coroutine"),
        (yields, "generator"),
        (both, "asynchronous generator"),
    ],
)
def test_coroutine_or_generator_function_is_refused_for_validation(fn, kind):
    [problem] = problems_of(lambda: with_arguments(fn, {}))
    assert problem.startswith("fn=") and f" {kind}" in problem


def test_generator_function_is_refused_as_the_loop_of_validation_workers():
    workers = train.ScalingConfig(num_workers=1)
    [problem] = problems_of(lambda: tunekit.distributed.TrainerValidation(yields, workers))
    assert problem.startswith("loop=") and " generator" in problem
