"""Odd arguments, command lines and journals raise errors of tunekit, never a raw traceback.

``scripts/fuzz.py`` tries more of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scripts import fuzz
from tests.support.seeds import SCHEDULES, seeds
from tunekit.errors import ConfigError


@pytest.mark.parametrize("what", fuzz.WHAT)
@pytest.mark.parametrize("seed", seeds(1, "fuzz"))
def test_odd_input_never_ends_in_a_raw_traceback(what, seed, tmp_path):
    place = fuzz.make_place(tmp_path)
    with fuzz.harmless(tmp_path):
        found = fuzz.fuzz(fuzz.WHAT[what](place), 100 * SCHEDULES, random.Random(seed))
    assert not found, "\n".join(
        f"{raw.call.name}({raw.shown}): {raw.text}" for raw in found.values()
    )


def test_fuzzer_reduces_the_input_of_a_raw_traceback_to_its_cause():
    def read(path: str, metric: Any = None, mode: Any = None) -> None:
        if mode == "odd":
            raise ZeroDivisionError
        if metric == "odd":
            raise ConfigError("read", ["metric='odd' is odd."])

    odd = fuzz.one_of("odd", "even")
    call = fuzz.Call("read", read, {"path": odd, "metric": odd, "mode": odd}, ["path"])
    [raw] = fuzz.fuzz([call], 50, random.Random(0)).values()
    assert raw.given == {"path": raw.given["path"], "mode": "odd"} and raw.count > 5
    assert raw.text.endswith("ZeroDivisionError: ")
