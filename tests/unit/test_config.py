"""The settings of validations, and the functions that they are given."""

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
from tunekit.core.signatures import call_problem, deferred_kind, missing_arguments, signature_of
from tunekit.errors import ConfigError


def validate(checkpoint, *, batch_size=256):
    return {"accuracy": 0.5}


def no_arguments():
    return {"accuracy": 0.5}


async def waits(checkpoint):
    return {"accuracy": 0.5}


def yields(checkpoint):
    yield {"accuracy": 0.5}


WRONG = [
    ({"when": 0}, "when=0 must be a whole number of at least 1"),
    ({"when": 1.5}, "when=1.5"),
    ({"when": True}, "when=True"),
    ({"when": "2"}, "when='2'"),
    ({"where": "here"}, "where='here' is not one of 'auto', 'trial', 'elsewhere'"),
    ({"where": "trial", "evaluators": 2}, "but you pass evaluators=2"),
    ({"where": "trial", "on_pending": "continue"}, "but you pass on_pending='continue'"),
    (
        {"where": "trial", "ray_remote_kwargs": {"runtime_env": {}}},
        "but you pass ray_remote_kwargs['runtime_env']",
    ),
    ({"max_in_flight": 0}, "max_in_flight=0 must be a whole number of at least 1 or None"),
    ({"max_in_flight": -3}, "max_in_flight=-3"),
    ({"max_retries": -1}, "max_retries=-1 must be a whole number of at least 0"),
    ({"max_retries": None}, "max_retries=None"),
    ({"on_pending": "hold"}, "on_pending='hold' is not one of 'auto', 'wait', 'continue'"),
    ({"on_failure": None}, "on_failure=None is not one of 'record', 'raise', 'ignore'"),
    ({"fn": None}, "fn=None is not callable"),
    ({"fn": no_arguments}, "cannot be called as fn(checkpoint)"),
    ({"fn": waits}, "is a coroutine function"),
    ({"task_config": {"timeout_s": 3}}, "task_config={'timeout_s': 3} is of type dict"),
    (
        {"task_config": train.ValidationTaskConfig(fn_kwargs={"batchsize": 1})},
        "unexpected keyword argument 'batchsize'",
    ),
    (
        {"task_config": train.ValidationTaskConfig(fn_kwargs=[1])},
        "task_config.fn_kwargs=[1] is of type list",
    ),
    (
        {"task_config": train.ValidationTaskConfig(timeout_s=float("inf"))},
        "timeout_s=inf must be a number of seconds above 0",
    ),
    ({"ray_remote_kwargs": [1]}, "ray_remote_kwargs=[1] is of type list"),
    ({"ray_remote_kwargs": {"num_cpu": 1}}, "Invalid option keyword num_cpu"),
    ({"ray_remote_kwargs": {"num_cpus": -1}}, "cannot be negative"),
    ({"ray_remote_kwargs": {"num_returns": 2}}, "Leave num_returns out"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[m for _, m in WRONG])
def test_each_wrong_value_is_named_with_its_rule(settings, message):
    with pytest.raises(ConfigError) as caught:
        ValidationConfig(**{"fn": validate, **settings})
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def rays_example(checkpoint, train_run_name: str, epoch: int):
    return {"accuracy": 0.5}


def test_arguments_that_come_with_each_report_are_not_missed_at_the_start():
    ValidationConfig(fn=rays_example)
    task = train.ValidationTaskConfig(fn_kwargs={"train_run_name": "a"})
    ValidationConfig(fn=rays_example, task_config=task)
    misnamed = train.ValidationTaskConfig(fn_kwargs={"epochs": 3})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'epochs'"):
        ValidationConfig(fn=rays_example, task_config=misnamed)


def test_all_mistakes_are_in_one_message():
    together = {
        key: value
        for settings, _ in WRONG
        for key, value in settings.items()
        if key not in ("fn", "task_config")
    }
    with pytest.raises(ConfigError) as caught:
        ValidationConfig(fn=validate, **together)
    assert len(caught.value.problems) == len(together)
    assert isinstance(caught.value, ValueError)


def test_an_error_survives_pickling():
    error = ConfigError("Tuner", ["one.", "two."])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_evaluator_may_run_so_many_validations_as_a_task_of_ray_may():
    often = {"ray_remote_kwargs": {"max_calls": 100}}
    assert ValidationConfig(validate, evaluators=1, **often).evaluators == 1
    assert ValidationConfig(validate, **often).evaluators is None
    with pytest.raises(ConfigError, match=r"ray_remote_kwargs\['max_calls'\]=-1"):
        ValidationConfig(validate, evaluators=1, ray_remote_kwargs={"max_calls": -1})


def test_a_loop_of_workers_that_yields_is_refused():
    def loop(config):
        yield {"accuracy": 0.5}

    with pytest.raises(ConfigError, match=r"loop=.* is a generator function.*Pass `def loop"):
        tunekit.distributed.TrainerValidation(loop, train.ScalingConfig(num_workers=1))


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

LARGE = {
    "array": lambda: np.zeros(1 << 16),
    "two dimensions": lambda: np.zeros((2, 1 << 15), order="F"),
    "frame": lambda: pd.DataFrame({"x": np.zeros(1 << 16), "y": ["a"] * (1 << 16)}),
    "bytes": lambda: bytes(1 << 20),
    "bytearray": lambda: bytearray(1 << 20),
}


@pytest.mark.parametrize("kind", LARGE)
def test_what_is_large_can_be_sent(kind):
    large = LARGE[kind]()
    kwargs = train.ValidationTaskConfig(fn_kwargs={"data": large})
    tunekit.ValidationConfig(fn=by_closure(large), task_config=kwargs)
    for fn in (functools.partial(by_closure(1), data=large), uses_table):
        tunekit.ValidationConfig(fn=fn)


def test_it_is_found_before_anything_starts():
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.ValidationConfig(
            fn=by_closure(LOCK),
            task_config=train.ValidationTaskConfig(fn_kwargs={"lock": LOCK}),
        )
    text = str(caught.value)
    assert "fn=" in text and "task_config.fn_kwargs['lock']" in text
    assert text.count("ray.util.inspect_serializability") == 2


# Which arguments a validation function can get, and which it still lacks ------------------------


def documented(checkpoint, train_run_name: str, epoch: int):
    return {"accuracy": 0.5}


def narrow(checkpoint, *, batch_size=256):
    return {"accuracy": 0.5}


def wide(checkpoint, **kwargs):
    return {"accuracy": 0.5}


def positional(checkpoint, config, /):
    return {"accuracy": 0.5}


class Evaluator:
    def __call__(self, checkpoint, epoch):
        return {"accuracy": 0.5}


@pytest.mark.parametrize("fn", [documented, narrow, wide, Evaluator, functools.partial(Evaluator)])
def test_arguments_that_may_come_later_are_not_missed_now(fn):
    assert call_problem(signature_of(fn), {}) is None


@pytest.mark.parametrize(
    ("fn", "kwargs", "says"),
    [
        (no_arguments, {}, "too many positional arguments"),
        (lambda *, checkpoint: {}, {}, "too many positional arguments"),
        (narrow, {"batchsize": 1}, "'batchsize'"),
        (documented, {"checkpoint": 1}, "'checkpoint'"),
        (positional, {}, "'config' is positional-only"),
        (positional, {"config": 3}, "'config'"),
    ],
)
def test_what_can_never_be_right(fn, kwargs, says):
    assert says in call_problem(signature_of(fn), kwargs)


@pytest.mark.parametrize(
    ("fn", "kwargs", "lacks"),
    [
        (documented, {}, ["train_run_name", "epoch"]),
        (documented, {"epoch": 3}, ["train_run_name"]),
        (documented, {"epoch": 3, "train_run_name": "a"}, []),
        (narrow, {}, []),
        (wide, {}, []),
        (Evaluator, {}, ["epoch"]),
        (lambda first, second=2, *rest, third, **more: {}, {}, ["third"]),
    ],
)
def test_required_arguments_that_are_still_missing(fn, kwargs, lacks):
    assert missing_arguments(signature_of(fn), kwargs) == lacks


async def both(checkpoint):
    yield {"accuracy": 0.5}


class Waiting:
    async def __call__(self, checkpoint):
        return {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (waits, "a coroutine function"),
        (functools.partial(waits), "a coroutine function"),
        (Waiting, "a coroutine function"),
        (Waiting(), "a coroutine function"),
        (yields, "a generator function"),
        (functools.partial(yields), "a generator function"),
        (both, "an asynchronous generator function"),
        (narrow, None),
        (Evaluator, None),
        (len, None),
    ],
)
def test_what_returns_something_else_than_its_result(fn, kind):
    assert deferred_kind(fn) == kind
