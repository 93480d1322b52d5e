"""What a validation function brings along is checked before anything starts."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pandas as pd
import pytest
from ray import train

import tunekit

LOCK = threading.Lock()


def by_closure(inner):
    def validate(checkpoint, **given):
        return inner and {"accuracy": 0.5}

    return validate


class Holder:
    def __init__(self, lock):
        self.settings = {"lock": lock, "deep": [1, lock]}

    def __call__(self, checkpoint):
        return {"accuracy": 0.5}


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
