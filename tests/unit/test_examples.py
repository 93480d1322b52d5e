"""The page about migrating shows the lines in which the programs that run differ."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def examples() -> Any:
    spec = spec_from_file_location("examples", ROOT / "scripts/examples.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["examples"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_programs(examples):
    page = examples.PAGE.read_text()
    assert examples.rewritten(page) == page, f"The page is old. Run: {examples.COMMAND}"
