"""Sweeps that older versions of tunekit have left are read as they were read then."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tunekit
from tests.frozen.sweeps import NAMES, told

FROZEN = Path(__file__).parents[1] / "frozen" / "v2"


@pytest.fixture(params=NAMES)
def frozen(request, tmp_path) -> tuple[tunekit.Sweep, dict[str, Any]]:
    """A sweep of version 2, and what was told of it when it was frozen."""
    with zipfile.ZipFile(FROZEN / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    expected = json.loads((FROZEN / f"{request.param}.json").read_text())
    return tunekit.load(tmp_path / request.param), expected


def differences(now: Any, then: Any, where: str = "") -> list[str]:
    """Where what is told now lacks or contradicts what was told then; additions are welcome."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            found
            for key, value in then.items()
            for found in (
                differences(now[key], value, f"{where}/{key}")
                if key in now
                else [f"{where}/{key} is gone"]
            )
        ]
    if isinstance(then, list) and isinstance(now, list) and len(now) == len(then):
        pairs = enumerate(zip(now, then, strict=True))
        return [found for i, pair in pairs for found in differences(*pair, f"{where}/{i}")]
    return [] if now == then else [f"{where}: {now!r} instead of {then!r}"]


def relative(known: Any) -> Any:
    """Without the folder that paths are below, which is another one each time."""
    if isinstance(known, dict):
        return {key: relative(value) for key, value in known.items()}
    if isinstance(known, list):
        return [relative(value) for value in known]
    if isinstance(known, str) and known.startswith("/"):
        parts = Path(known).parts
        return "/".join(parts[next((i for i, p in enumerate(parts) if p in NAMES), 0) :])
    return known


def test_tables_say_what_they_said(frozen):
    sweep, expected = frozen
    assert expected["validations"] and expected["reports"]
    assert not differences(relative(told(sweep)), relative(expected))


def test_report_can_be_made(frozen, tmp_path):
    from tunekit.page import write_page

    sweep, expected = frozen
    page = Path(write_page(sweep, tmp_path / "report.html")).read_text()
    assert expected["best"]["trial"] in page or expected["best"]["trial"].split("_")[-1] in page


def test_differences_are_seen():
    then = {"a": [1, {"b": 2}]}
    assert not differences({"a": [1, {"b": 2, "new": 3}], "c": 4}, then)
    assert differences({"a": [1, {"b": 3}]}, then) == ["/a/1/b: 3 instead of 2"]
    assert differences({"a": [1, {}]}, then) == ["/a/1/b is gone"]
    assert differences({"a": [1]}, then)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Tune pickles bytecode: Python 3.11's")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_pickled_in_a_sweep_can_be_opened(name, tmp_path):
    """The settings, the trials and the states: a restore needs them all."""
    with zipfile.ZipFile(FROZEN / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    opened = 0
    for path in tmp_path.rglob("*.pkl"):
        pickle.loads(path.read_bytes())
        opened += 1
    for path in tmp_path.rglob("state/*.zip"):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    pickle.loads(archive.read(member))
                    opened += 1
    assert opened >= 2
