"""Sweeps that this version or an older one wrote are read as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.golden import FOLDER, SWEEPS, tables_of
from tests.support.journals import lines_of, write_lines
from tunekit.errors import JournalError
from tunekit.journal import versions
from tunekit.journal.journal import Journal, JournalReader, events_in
from tunekit.journal.storage import LocalFolder
from tunekit.journal.versions import VERSION


@pytest.mark.parametrize("name", SWEEPS)
def test_stored_sweep_has_the_tables_that_were_stored_with_it(name):
    assert tables_of(FOLDER / name) == json.loads((FOLDER / name / "tables.json").read_text())


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A sweep of the former version, in which ``trial_id`` had another name."""
    folder = tmp_path / "older"
    shutil.copytree(FOLDER / "fifo", folder)
    file = folder / "journal/000001.jsonl"
    head, *lines = lines_of(file)
    for line in lines:
        if "trial_id" in line:
            line["trial"] = line.pop("trial_id")
    write_lines(file, [{**head, "version": VERSION - 1}, *lines])
    return folder


def renamed(line: dict[str, Any]) -> dict[str, Any]:
    return {("trial_id" if name == "trial" else name): value for name, value in line.items()}


def test_journal_of_a_version_without_an_upgrade_is_refused_by_its_number(older):
    with pytest.raises(JournalError, match=rf"\b{VERSION - 1}\b"):
        events_in(older)


def test_journal_of_an_older_version_is_read_through_its_upgrade(older, monkeypatch):
    monkeypatch.setitem(versions.UPGRADES, VERSION - 1, renamed)
    assert tables_of(older) == tables_of(FOLDER / "fifo")


def test_session_after_one_of_an_older_version_is_read_without_the_upgrade(older, monkeypatch):
    monkeypatch.setitem(versions.UPGRADES, VERSION - 1, renamed)
    folder, before = LocalFolder(older), events_in(FOLDER / "fifo")
    reader = JournalReader(folder)
    reader.read()
    Journal(folder, begins=False).append(replace(before[-1], n=0))
    monkeypatch.setitem(versions.UPGRADES, VERSION - 1, lambda line: {**line, "time": 0.0})
    [added] = reader.read().events
    assert added.time == before[-1].time


def test_journal_of_a_newer_version_is_refused_by_its_number(tmp_path):
    Journal(LocalFolder(tmp_path))
    file = tmp_path / "journal/000001.jsonl"
    [head] = lines_of(file)
    write_lines(file, [{**head, "version": VERSION + 1}])
    with pytest.raises(JournalError, match=rf"\b{VERSION + 1}\b"):
        events_in(tmp_path)
