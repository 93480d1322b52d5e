"""Names that mean something to somebody: of experiments, and of files in an archive."""

from __future__ import annotations

import io
import re
import tracemalloc
import zipfile
from typing import Any

import pytest

import tunekit
from tests.support.invariants import check_journal
from tests.support.kills import run_killed
from tests.support.restores import begin, prepare_restore, train, tuner
from tests.support.sweeps import sweep
from tunekit._ray.controller import _files_in
from tunekit.core.events import SnapshotTaken
from tunekit.journal.journal import Journal, events_in
from tunekit.journal.snapshots import _archive
from tunekit.journal.storage import LocalFolder


@pytest.mark.parametrize("name", ["c[2]*", "c[2]", "what?", "*"])
def test_a_name_that_ray_would_not_find_again_is_refused(tmp_path, name):
    with pytest.raises(tunekit.errors.ConfigError, match=r"treats that as a pattern.*Choose a"):
        tuner(tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []
    tuner(tmp_path, name="plain")
    (tmp_path / "plain").rename(tmp_path / name)
    with pytest.raises(tunekit.errors.ConfigError, match="existing folder can be renamed"):
        tunekit.Tuner.restore(str(tmp_path / name), train)


ODD = ["a b", "100%", "%2e%2e", "#1", "lr=0.1&x;y", "größe \N{SNOWMAN}", "~", "$HOME", "{a}", "c]2"]


@pytest.mark.parametrize("name", ODD)
def test_a_name_that_is_odd_is_fine(tmp_path, name):
    tuner(tmp_path, name=name)
    begin(tmp_path / name)
    assert tunekit.Tuner.can_restore(str(tmp_path / name))
    tunekit.Tuner.restore(str(tmp_path / name), train)


def test_sweeps_in_odd_places_are_killed_and_restored(tmp_path):
    folder = tmp_path / " ".join(ODD)

    def made(folder, **options):
        return sweep(folder, trials=2, run=False, **options)

    ran, kills = run_killed(folder, made, iter([40, 50]))
    assert kills == 2
    check_journal(events_in(ran.home))
    assert tunekit.load(ran.home).summary()["state"] == "finished"


def refused(tmp_path, match: str, compression: int = zipfile.ZIP_STORED, **files: Any) -> None:
    """Restore a sweep whose archive has these files; nothing may be changed."""
    folder, file = LocalFolder(tmp_path / "a/b/sweep"), io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert len(file.getvalue()) < 10**6
    journal = Journal(folder)
    folder.put("state/000000001-snapshot.zip", file.getvalue())
    journal.append(SnapshotTaken(file="state/000000001-snapshot.zip"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(tunekit.errors.RestoreError, match=rf"1-snapshot\.zip has {match}"):
        prepare_restore(folder.root)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/etc/x",
        "..\\..\\x",
        "state/x",
        "experiment_state-/../../../x",
        "tuner.pkl",
        ".bashrc",
    ],
)
def test_a_file_that_does_not_belong_into_an_archive_is_refused(tmp_path, name):
    files = {"experiment_state-2026.json": '{"trial_data": []}', name: "evil"}
    refused(tmp_path, re.escape(f"a file {name!r}"), **files)


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path):
    large = {"experiment_state-2026.json": bytes(10**8)}
    tracemalloc.start()
    try:
        refused(tmp_path, r"\d+ bytes and would", zipfile.ZIP_DEFLATED, **large)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10**7


def test_a_draft_of_tunes_that_a_killed_driver_has_left_is_no_part_of_a_sweep(tmp_path):
    draft = ".abf040c7-tmp-basic-variant-state-2026-11-21_21-58-41.json"
    home = tmp_path / "sweep"
    folder = LocalFolder(home)
    journal = Journal(folder)
    name = "state/000000001-snapshot.zip"
    saved = {"experiment_state-2026.json": b'{"trial_data": []}', "callback-states-2026.pkl": b""}
    folder.put(name, _archive({**saved, draft: b"half of"}, name))
    journal.append(SnapshotTaken(file=name))
    prepare_restore(folder.root)
    names = folder.names("")
    assert any(name.startswith("experiment_state-") for name in names)
    assert not any("tmp" in name for name in names)
    for name in (draft, "searcher-state-2026-11-21_21-58-41.pkl"):
        (tmp_path / name).write_bytes(b"")
    assert list(_files_in(tmp_path, "2026-11-21_21-58-41")) == [
        "searcher-state-2026-11-21_21-58-41.pkl"
    ]
