"""The page of the architecture is what the code has, and the code has no circles."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# For types only; none should be added.
CIRCLES: list[list[str]] = []


@pytest.fixture(scope="module")
def architecture() -> Any:
    spec = spec_from_file_location("architecture", ROOT / "scripts/architecture.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["architecture"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_has(architecture):
    page = (ROOT / "docs/architecture.md").read_text()
    assert page == architecture.page(), f"docs/architecture.md is old. Run: {architecture.COMMAND}"


def test_no_module_imports_itself_by_way_of_others(architecture):
    known = architecture.modules()
    assert architecture.circles(known, types=False) == []
    assert architecture.circles(known) == CIRCLES


def test_rooms_import_those_below_them_only(architecture):
    known = architecture.modules()
    between = architecture.counted(
        known.values(), architecture.rooms_of(known).__getitem__, architecture.ROOMS
    )
    order = list(architecture.ROOMS)
    for start, end, _ in between:
        assert order.index(start) < order.index(end), f"{start} imports {end}"


def test_every_file_is_on_the_page_once(architecture):
    page = (ROOT / "docs/architecture.md").read_text()
    for path in (ROOT / "tunekit").rglob("*.py"):
        assert page.count(f"(../{path.relative_to(ROOT).as_posix()})") == 1, path


def test_files_that_are_put_into_a_group_are_there(architecture):
    named = [name for _, names in architecture.GROUPS.values() for name in names.split()]
    assert sorted(named) == sorted(set(named))
    for name in (*named, *architecture.ROOM_OF):
        assert (ROOT / f"tunekit/{name}.py").is_file(), name


@pytest.fixture
def package(architecture, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(architecture, "PACKAGE", tmp_path)
    (tmp_path / "core").mkdir()
    (tmp_path / "__init__.py").write_text('"""A package."""\nfrom tunekit.front import x\n')
    (tmp_path / "core/__init__.py").write_text('"""Rules."""\n')
    (tmp_path / "core/rule.py").write_text('"""A rule.\n\nMore."""\nimport tunekit.core\n')
    return tmp_path


def test_imports_for_types_count_as_such(architecture, package):
    (package / "front.py").write_text(
        '"""A front."""\n'
        "from typing import TYPE_CHECKING\n"
        "import ray\n"
        "from tunekit.core import rule\n"
        "if TYPE_CHECKING:\n"
        "    from tunekit.core.rule import Rule\n"
        "    from tunekit import front, other\n"
        "else:\n"
        "    from tunekit import core\n"
        "def late():\n"
        "    from tunekit.other import x\n"
    )
    (package / "other.py").write_text('"""Another."""\nimport tunekit.front\n')
    known = architecture.modules()
    assert known["front"].imports == {"core", "core.rule", "other"}
    assert known["front"].for_types == set()
    assert known["__init__"].imports == {"front"}
    assert known["core.rule"].purpose == "A rule."
    assert architecture.circles(known) == [["front", "other"]]


def test_a_circle_for_types_only_is_dashed(architecture, package):
    (package / "front.py").write_text('"""A front."""\nfrom tunekit.other import x\n')
    (package / "other.py").write_text(
        '"""Another."""\nif TYPE_CHECKING:\n    from tunekit.front import y\n'
    )
    known = architecture.modules()
    assert architecture.circles(known) == [["front", "other"]]
    assert architecture.circles(known, types=False) == []
    counts = architecture.counted(known.values(), str, ["front", "other"])
    assert "    other -.->|1| front" in architecture.picture({"front": "", "other": ""}, counts)
    assert "| **other** | *1* |  |" in architecture.table(["front", "other"], counts)
