"""The pages about frameworks show the programs that run, and the lines in which they differ."""

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


def test_the_pages_show_the_programs(examples):
    for page, text in examples.pages():
        assert page.read_text() == text, f"{page.name} is old. Run: {examples.COMMAND}"


def test_each_example_has_a_page_and_each_page_an_example(examples):
    folder = ROOT / "docs/frameworks"
    names = {example.name for example in examples.EXAMPLES}
    assert names == {path.name for path in folder.iterdir() if path.is_dir()}
    assert names == {path.stem for path in folder.glob("*.md")} - {"README"}


def test_programs_do_the_same_thing(examples):
    """What they end with, and what they search, is the same text."""
    for example in examples.EXAMPLES:
        change = example.change()
        assert change.kept > max(change.added, change.removed), example.name
        inline, with_tunekit = (path.read_text() for path in example.programs)
        assert "tunekit" not in inline and "tunekit.Tuner(" in with_tunekit
        assert inline.splitlines()[-1] == with_tunekit.splitlines()[-1]


def test_lines_are_counted(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "PAGES", tmp_path)
    (tmp_path / "two").mkdir()
    (tmp_path / "two/inline.py").write_text("a = 1\n\nb = 2\nc = 3\n")
    (tmp_path / "two/with_tunekit.py").write_text("a = 1\n\n\nb = 4\nc = 3\nd = 5\n")
    example = examples.Example("two")
    assert example.change() == examples.Change(added=2, removed=1, kept=2)
    assert example.diff() == " a = 1\n\n-b = 2\n+\n+b = 4\n c = 3\n+d = 5"


def test_a_page_has_one_place_for_a_program(examples):
    page = f"before\n{examples.BEGIN}\nold\n{examples.END}\nafter"
    new = examples.written(page, "new")
    assert new == f"before\n{examples.BEGIN}\n\nnew\n\n{examples.END}\nafter"
    with pytest.raises(ValueError, match="has 0 places"):
        examples.written("nothing", "new")


def test_the_table_that_a_program_ends_with_is_found(examples):
    printed = (
        "Trial status\n config/lr  accuracy\n      0.1  0.2\n config/lr  accuracy\n 1 2\n 3 4\n"
    )
    assert examples.ranking(printed) == " config/lr  accuracy\n 1 2\n 3 4"
    assert examples.ranking("nothing of the kind") == ""


def test_what_is_not_installed_is_named(examples, monkeypatch):
    monkeypatch.setattr(examples, "find_spec", lambda name: None if name == "torch" else object())
    assert examples.Example("pytorch").lacks() == ["torch"]
