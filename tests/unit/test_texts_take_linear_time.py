"""Every regular expression in the package takes linear time, so no long text stops a driver."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator

import pytest

import tunekit
from tunekit.core.constraints import Constraint
from tunekit.core.failures import failure_kind
from tunekit.core.values import describe_error, format_value, safely
from tunekit.following.names import read_name

# Parts of texts that fit the beginning of an expression again and again.
PARTS = [
    "a",
    "1",
    " ",
    "/",
    "_1",
    "-run",
    "0x",
    "a/",
    ":1",
    "\x1b[",
    " (after 1",
    "<=",
    "-v1",
    "x.1",
    "epoch=7-",
    "k_1e-4.",
]
ENDS = ["", "\0", "g!", " \n"]
SHORT, TIMES = 500, 16
# A linear expression takes 16 times as long for 16 times as much; a quadratic one, 256 times.
MOST, TOO_SHORT_S = 64, 0.005
# These are applied to whole names.
WHOLE = ("_NAMES", "_OF_STATE", "_OF_TUNER", "_FILE", "_ARCHIVE")


def expressions() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield what is done with texts: each compiled expression, and functions that use several."""
    for module in pkgutil.walk_packages(tunekit.__path__, "tunekit."):
        own = vars(importlib.import_module(module.name))
        for name, value in own.items():
            found = value if isinstance(value, tuple) else (value,)
            for place, one in enumerate(found):
                if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                    call = one.fullmatch if name in WHOLE else one.search
                    yield f"{module.name}.{name}[{place}]", call
    yield "failure_kind", failure_kind
    yield "describe_error", lambda text: describe_error(ValueError(text)).reason
    yield "format_value", format_value
    yield "read_name", read_name
    yield "Constraint", lambda text: safely(Constraint, text)


def seconds(call: Callable[[str], object], text: str) -> float:
    """Return how long a call computes, at best: what else the machine does is not counted."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        call(text)
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize(("name", "call"), [pytest.param(*one, id=one[0]) for one in expressions()])
def test_time_for_a_text_grows_linearly_with_its_length(name, call):
    for part in PARTS:
        for end in ENDS:
            short, long = (part * (n // len(part)) + end for n in (SHORT, SHORT * TIMES))
            if (took := seconds(call, long)) > TOO_SHORT_S:
                assert took / seconds(call, short) < MOST, (part, end)
