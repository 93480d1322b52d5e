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


def test_each_folder_is_an_example(examples):
    names = {example.name for example in examples.EXAMPLES}
    assert names == {path.name for path in examples.FOLDER.iterdir() if path.is_dir()}


def test_programs_do_the_same_thing(examples):
    """What they end with, and what they search, is the same text."""
    for example in examples.EXAMPLES:
        inline, with_tunekit = (path.read_text() for path in example.programs)
        both = set(inline.splitlines()) & set(with_tunekit.splitlines())
        assert len(both) > len(example.diff()) / 2, example.name
        assert "tunekit" not in inline and "tunekit.Tuner(" in with_tunekit
        assert inline.splitlines()[-1] == with_tunekit.splitlines()[-1]


def test_lines_that_change_are_shown_and_counted(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "FOLDER", tmp_path)
    (tmp_path / "two").mkdir()
    (tmp_path / "two/inline.py").write_text("z = 0\na = 1\n\nb = 2\nc = 3\nx = 1\ny = 1\n")
    changed = "z = 0\na = 1\n\n\nb = 4\nc = 3\nx = 1\ny = 1\nd = 5\n"
    (tmp_path / "two/with_tunekit.py").write_text(changed)
    example = examples.Example("two")
    assert example.diff() == ["", "-b = 2", "+", "+b = 4", " c = 3", "...", " y = 1", "+d = 5"]
    assert example.text().startswith("2 lines added, 1 removed (")


def test_a_page_has_one_place_for_a_program(examples):
    begin, end = "<!-- begin: one -->", "<!-- end: one -->"
    new = examples.written(f"before\n{begin}\nold\n{end}\nafter", "one", "new")
    assert new == f"before\n{begin}\n\nnew\n\n{end}\nafter"
    with pytest.raises(ValueError, match="has 0 places for one"):
        examples.written("nothing", "one", "new")


def test_the_table_that_a_program_ends_with_is_found(examples):
    printed = (
        "Trial status\n config/lr  accuracy\n      0.1  0.2\n config/lr  accuracy\n 1 2\n 3 4\n"
    )
    assert examples.ranking(printed) == " config/lr  accuracy\n 1 2\n 3 4"
    assert examples.ranking("nothing of the kind") == ""


def test_what_is_not_installed_is_named(examples, monkeypatch):
    monkeypatch.setattr(examples, "find_spec", lambda name: None if name == "torch" else object())
    assert examples.Example("pytorch").lacks() == ["torch"]
