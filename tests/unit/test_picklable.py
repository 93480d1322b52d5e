"""What keeps a function from being sent to another process is named."""

from __future__ import annotations

import functools
import logging
import threading

import numpy as np
import pandas as pd
import pytest
from ray import train

import tunekit
from tunekit.picklable import culprit_in, pickled_size

LOCK = threading.Lock()


def by_global(checkpoint):
    with LOCK:
        return {"accuracy": 0.5}


by_global.__module__ = "__main__"  # pickled by value, as what a program defines itself


def by_closure(inner):
    def validate(checkpoint, **given):
        return inner and {"accuracy": 0.5}

    return validate


class Holder:
    def __init__(self, lock):
        self.settings = {"lock": lock, "deep": [1, lock]}

    def __call__(self, checkpoint):
        return {"accuracy": 0.5}

    def method(self, checkpoint):
        return {"accuracy": 0.5}


CASES = {
    "closure": (by_closure(LOCK), "variable 'inner' of fn is a lock"),
    "nested": (
        by_closure(by_closure(LOCK)),
        "variable 'inner' of variable 'inner' of fn is a lock",
    ),
    "global": (by_global, "variable 'LOCK' of fn is a lock"),
    "partial": (functools.partial(by_closure(1), lock=LOCK), "argument 'lock' of fn is a lock"),
    "attribute": (Holder(LOCK), "fn.settings['lock'] is a lock"),
    "method": (Holder(LOCK).method, "the object of fn.settings['lock'] is a lock"),
    "itself": (LOCK.acquire, "fn is a builtin_function_or_method"),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_culprit_is_named(kind):
    fn, says = CASES[kind]
    assert isinstance(pickled_size(fn), Exception)
    assert culprit_in(fn, "fn") == says


def test_what_can_be_sent_is_not_accused():
    for fn in (by_closure(1), Holder(3), functools.partial(by_closure(1), lock=2), Holder):
        assert isinstance(pickled_size(fn), int)


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
    for fn in (by_closure(large), functools.partial(by_closure(1), data=large), uses_table):
        assert isinstance(pickled_size(fn), int)
    tunekit.ValidationConfig(
        fn=by_closure(large), task_config=train.ValidationTaskConfig(fn_kwargs={"data": large})
    )


def test_what_is_very_large_gets_a_hint(caplog):
    large = np.zeros(2_000_000)
    with caplog.at_level(logging.WARNING):
        tunekit.ValidationConfig(
            fn=by_closure(functools.partial(by_closure(1), data=large)),
            task_config=train.ValidationTaskConfig(fn_kwargs={"few": large[:1000], "data": large}),
        )
    of_fn, of_kwargs = [record.getMessage() for record in caplog.records]
    assert "fn takes 16 MB" in of_fn
    assert "task_config.fn_kwargs['data'] takes 16 MB" in of_kwargs
    assert "Load the objects inside the function" in of_fn


def test_it_is_found_before_anything_starts():
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.ValidationConfig(
            fn=by_closure(LOCK),
            task_config=train.ValidationTaskConfig(fn_kwargs={"lock": LOCK}),
        )
    text = str(caught.value)
    assert "variable 'inner' of fn is a lock" in text
    assert "task_config.fn_kwargs['lock']" in text
    assert "Create it inside the function" in text


def test_what_it_holds_is_not_kept_a_second_time():
    large = bytes(200_000_000)
    assert isinstance(pickled_size(by_closure(large)), int)
