"""What a user may get wrong about an experiment's folder: each is said, and nothing is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from ray import tune

import tunekit
from tunekit._ray.tuner import settings_of
from tunekit.core.events import SnapshotTaken
from tunekit.journal import Journal
from tunekit.snapshots import RestorePoint
from tunekit.storage import LocalFolder


def train(config: dict[str, Any]) -> None:
    """Never run here."""


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    return {"accuracy": 0.5}


def experiment(folder: Path, trainable: Any = train, **options: Any) -> Path:
    """The folder of a sweep that was made, and has not begun."""
    given = {
        "param_space": {"lr": 0.1},
        "run_config": tune.RunConfig(name="sweep", storage_path=str(folder)),
        "validation_config": tunekit.ValidationConfig(fn=validate),
    }
    tunekit.Tuner(trainable, **{**given, **options})
    return folder / "sweep"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (None, "path=None is of type NoneType. Pass an experiment's folder."),
        (7, "path=7 is of type int"),
        ("/no/such/folder", "has no tuner.pkl"),
        ("gopher://digits", "cannot be reached"),
        (os.devnull, "has no tuner.pkl"),
    ],
)
def test_paths_that_are_none(path, says):
    with pytest.raises(tunekit.ConfigError, match=says):
        tunekit.Tuner.restore(path, train)
    if path is None or path == 7 or "gopher" in path:
        with pytest.raises(tunekit.ConfigError, match=r"Tuner\.can_restore"):
            tunekit.Tuner.can_restore(path)
    else:
        assert not tunekit.Tuner.can_restore(path)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"sun")
    before = contents(tmp_path)
    assert not tunekit.Tuner.can_restore(tmp_path)
    with pytest.raises(tunekit.ConfigError, match="it is no experiment's folder"):
        tunekit.Tuner.restore(str(tmp_path), train)
    assert contents(tmp_path) == before


def test_all_mistakes_are_told_at_once(tmp_path):
    with pytest.raises(tunekit.ConfigError) as caught:
        tunekit.Tuner.restore(
            "/no/such/folder",
            None,
            resume_errored=True,
            restart_errored=True,
            param_space=[1],
            worker_config=1,
        )
    assert len(caught.value.problems) == 5


class Started(Exception):
    """Tune would run the sweep now."""


def started_with(tuner: tunekit.Tuner, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a Tuner would run Tune with."""

    def run(**arguments: Any) -> None:
        raise Started(arguments)

    monkeypatch.setattr("ray.tune.impl.tuner_internal.run", run)
    with pytest.raises(Started) as caught:
        tune.Tuner.fit(tuner)
    return caught.value.args[0]


def test_a_sweep_that_never_began_is_begun(tmp_path, monkeypatch):
    space = {"lr": tune.grid_search([0.1, 0.2])}
    config = tune.TuneConfig(metric="accuracy", mode="max", num_samples=7)
    home = experiment(tmp_path, param_space=space, tune_config=config)
    before = contents(home)
    assert tunekit.Tuner.can_restore(home)
    tuner = tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before
    arguments = started_with(tuner, monkeypatch)
    assert arguments["config"] == space and arguments["num_samples"] == 7
    assert "resume_config" not in arguments


def test_a_driver_that_was_killed_before_its_first_step_has_begun_nothing(tmp_path, monkeypatch):
    home = experiment(tmp_path)
    Journal(LocalFolder(home))  # its first line
    assert tunekit.Tuner.can_restore(home)
    arguments = started_with(tunekit.Tuner.restore(str(home), train), monkeypatch)
    assert arguments["config"] == {"lr": 0.1} and "resume_config" not in arguments


@pytest.mark.parametrize("validated", [True, False])
def test_a_search_space_that_was_not_kept_is_asked_for(tmp_path, monkeypatch, validated):
    space = {"data": bytes(2 << 20) if validated else b""}
    options = {} if validated else {"validation_config": None}
    home = experiment(tmp_path, param_space=space, **options)
    before = contents(home)
    with pytest.raises(tunekit.RestoreError, match="Pass it again as param_space="):
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before
    tuner = tunekit.Tuner.restore(str(home), train, param_space=space)
    assert started_with(tuner, monkeypatch)["config"] == space


def journal_with(home: Path, *lines: bytes) -> Path:
    """A journal that is fine, and then those lines."""
    Journal(LocalFolder(home)).append(SnapshotTaken(file="state/000000001-snapshot.zip"))
    path = home / "journal/000001.jsonl"
    path.write_bytes(path.read_bytes() + b"".join(lines))
    return path


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text.replace(b'"version": 4', b'"version": 5'), "Install the newer tunekit"),
        (lambda text: text.replace(b'"journal": "tunekit"', b'"log": 1'), "no journal of tunekit"),
        (lambda text: text[10:], "line 1, cannot be read"),
        (lambda text: text + b"\x00\x00\n", "line 3, cannot be read"),
        (lambda text: text.replace(b'{"n": 1', b'["n", 1', 1), "line 2, cannot be read"),
    ],
)
def test_a_journal_that_is_damaged_or_newer(tmp_path, damage, says):
    home = experiment(tmp_path)
    path = journal_with(home)
    path.write_bytes(damage(path.read_bytes()))
    before = contents(home)
    for ask in (
        lambda: tunekit.Tuner.restore(str(home), train),
        lambda: tunekit.Tuner.can_restore(home),
        lambda: tunekit.Lineage.load(home),
    ):
        with pytest.raises(tunekit.JournalError, match=says):
            ask()
    assert contents(home) == before


@pytest.mark.parametrize("archive", [None, b"", b"PK\x03\x04 half of one"])
def test_an_archive_that_is_gone_or_half(tmp_path, archive):
    home = experiment(tmp_path)
    journal_with(home)
    if archive is not None:
        (home / "state").mkdir()
        (home / "state/000000001-snapshot.zip").write_bytes(archive)
    before = contents(home)
    with pytest.raises(tunekit.RestoreError):
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before


def test_another_trainable_or_search_space_is_refused_before_anything_is_changed(tmp_path):
    home = experiment(tmp_path)
    before = contents(home)

    def other(config: dict[str, Any]) -> None: ...

    with pytest.raises(ValueError, match="trainable"):
        tunekit.Tuner.restore(str(home), other)
    with pytest.raises(ValueError, match="param_space"):
        tunekit.Tuner.restore(str(home), train, param_space={"momentum": 0.9})
    assert contents(home) == before


def unimportable() -> Any:
    """A trainable of the same name, which can be imported from nowhere."""

    def train(config: dict[str, Any]) -> None: ...

    return train


@pytest.mark.parametrize(
    ("began_with", "written", "goes_on_with", "recorded"),
    [
        (unimportable(), None, train, "tests.unit.test_restore:train"),
        (train, "/code/net.py:train", train, "tests.unit.test_restore:train"),
        (unimportable(), "/code/net.py:train", unimportable(), "/code/net.py:train"),
        (train, None, unimportable(), "tests.unit.test_restore:train"),
        (unimportable(), None, unimportable(), None),
    ],
)
def test_where_the_trainable_is_stays_written_down(
    tmp_path, monkeypatch, began_with, written, goes_on_with, recorded
):
    monkeypatch.setattr("tunekit.tuner.prepare_restore", lambda folder, events: RestorePoint())
    home = experiment(tmp_path, began_with)
    Journal(LocalFolder(home), about={"trainable": "older.py:train"})
    Journal(LocalFolder(home), begins=False, about={"trainable": written})
    assert len(list((home / "journal").iterdir())) == 2
    tuner = tunekit.Tuner.restore(str(home), goes_on_with)
    assert tuner.validation.trainable == recorded


def test_a_tuner_file_that_is_half_is_an_error(tmp_path):
    home = experiment(tmp_path)
    (home / "tuner.pkl").write_bytes((home / "tuner.pkl").read_bytes()[:50])
    before = contents(home)
    with pytest.raises(tunekit.RestoreError, match=r"tuner\.pkl"):
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("path", ["w/sweep", "../here/w/sweep", "~/w/sweep"])
def test_local_paths_may_be_relative(tmp_path, monkeypatch, kind, path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    home = experiment(tmp_path / "here/w")
    restored = tunekit.Tuner.restore(kind(path), train)
    assert settings_of(restored).run_config.storage_path == str(home.parent)
    journal_with(home)
    assert tunekit.Tuner.can_restore(kind(path))
    assert tunekit.load(kind(path)).path == str(home)
    assert len(tunekit.Lineage.load(kind(path)).to_dataframe()) == 0
    assert not tunekit.Tuner.can_restore(kind("w"))


def test_a_filesystem_of_ones_own(tmp_path):
    home = experiment(tmp_path)
    below = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    assert tunekit.Tuner.can_restore("sweep", below)
    restored = tunekit.Tuner.restore("sweep", train, storage_filesystem=below)
    assert settings_of(restored).run_config.storage_filesystem is below
    assert home.is_dir()
