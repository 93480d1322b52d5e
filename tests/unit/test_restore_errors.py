"""A folder that cannot be restored is an error that names what is wrong, and stays unchanged."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import tunekit
from tests.support.object_store import Store
from tests.support.restores import SEARCH, SNAPSHOT, STATE, begin, contents, train, tuner, validate
from tunekit._ray.tuner import settings_of
from tunekit.core.events import Reported, SessionClosed, SnapshotTaken, TrialAdded
from tunekit.driver.snapshots import SETTINGS, SavedState, _archive
from tunekit.journal.journal import Journal
from tunekit.journal.storage import PATIENCE_S, LocalFolder, RemoteFolder


def experiment(folder: Path, trainable: Any = train, **options: Any) -> Path:
    """The folder of a sweep that was made, and has not begun."""
    tuner(folder, trainable, param_space={"lr": 0.1}, **options)
    return folder / "sweep"


@pytest.mark.parametrize(
    "path", [None, 7, "/no/such/folder", "gopher://digits", os.devnull], ids=repr
)
def test_path_without_an_experiment_cannot_be_restored_and_is_named(path):
    with pytest.raises(tunekit.errors.ConfigError, match=f"path={path!r}"):
        tunekit.Tuner.restore(path, train)
    if path in ("/no/such/folder", os.devnull):
        assert not tunekit.Tuner.can_restore(path)
    else:  # it cannot be the path of anything
        with pytest.raises(tunekit.errors.ConfigError, match=f"path={path!r}"):
            tunekit.Tuner.can_restore(path)


def test_storage_filesystem_of_another_type_is_an_error_that_names_it():
    for read in (tunekit.Tuner.can_restore, partial(tunekit.Tuner.restore, trainable=train)):
        with pytest.raises(tunekit.errors.ConfigError, match="storage_filesystem='s3'"):
            read("sweep", storage_filesystem="s3")


def test_sweep_without_a_begun_trial_is_not_found_and_stays_unchanged(tmp_path):
    home = experiment(tmp_path)
    for begins in (lambda: None, lambda: Journal(LocalFolder(home)), lambda: journal_with(home)):
        begins()
        before = contents(home)
        assert not tunekit.Tuner.can_restore(home)
        with pytest.raises(tunekit.errors.SweepNotFoundError, match=str(home)):
            tunekit.Tuner.restore(str(home), train)
        assert contents(home) == before


def test_folder_without_a_journal_is_no_sweep_even_with_a_link_in_it(tmp_path):
    (tmp_path / "link").symlink_to(__file__)
    assert not tunekit.Tuner.can_restore(tmp_path)
    with pytest.raises(tunekit.errors.SweepNotFoundError, match=str(tmp_path)):
        tunekit.Tuner.restore(str(tmp_path), train)


def journal_with(home: Path) -> Path:
    Journal(LocalFolder(home)).append(SnapshotTaken(file="state/000000001-snapshot.zip"))
    return home / "journal/000001.jsonl"


def asks(home: Path) -> list[Callable[[], Any]]:
    return [
        lambda: tunekit.Tuner.can_restore(home),
        lambda: tunekit.Tuner.restore(str(home), train),
    ]


def test_damaged_journal_is_an_error_that_names_its_line_and_stays_unchanged(tmp_path):
    home = experiment(tmp_path)
    garbled(journal_with(home))
    before = contents(home)
    for ask in (*asks(home), lambda: tunekit.load(home)):
        with pytest.raises(tunekit.errors.JournalError, match=r"journal/000001\.jsonl, line 3\b"):
            ask()
    assert contents(home) == before


# What a sweep that has begun is restored from ----------------------------------------------------


def begun(folder: Path, trainable: Any = train, **options: Any) -> Path:
    """The folder of a sweep one of whose trials has reported and was validated."""
    home = begin(experiment(folder, trainable, **options))
    assert {SNAPSHOT, SEARCH, SETTINGS} <= contents(home).keys()
    return home


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, Path.unlink, emptied])
def test_restore_repairs_a_damaged_tuner_pkl_from_its_copy(tmp_path, damage):
    home = begun(tmp_path)
    made_with = (home / "tuner.pkl").read_bytes()
    damage(home / "tuner.pkl")
    assert tunekit.Tuner.can_restore(home)
    restored = tunekit.Tuner.restore(str(home), train)
    assert restored.validation is not None and restored.validation.config.fn is validate
    assert (home / "tuner.pkl").read_bytes() == made_with


def test_restore_uses_the_settings_of_the_tuner_that_ran_not_of_a_newer_one(tmp_path):
    home = begun(tmp_path)
    other = experiment(tmp_path / "other", checkpoint_policy=tunekit.EveryIterations(7))
    shutil.copy(other / "tuner.pkl", home)  # as one of Ray's own would leave it
    callbacks = settings_of(tunekit.Tuner.restore(str(home), train)).callbacks
    assert not any(isinstance(callback, tunekit.EveryIterations) for callback in callbacks)
    # But where it has run, and was killed before any of its trials began, the older one is gone.
    Journal(LocalFolder(home))
    assert not tunekit.Tuner.can_restore(home)


def garbled(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\n")


@pytest.mark.parametrize("damage", [None, garbled])
def test_new_tuner_is_refused_in_the_folder_of_an_unfinished_sweep(tmp_path, damage):
    home = begun(tmp_path)
    if damage is not None:
        damage(home / "journal/000001.jsonl")
    before = contents(home)
    named = str(home) if damage is None else "journal/000001.jsonl"
    with pytest.raises(tunekit.errors.ConfigError, match=named):
        experiment(tmp_path)
    assert contents(home) == before


def test_new_tuner_is_accepted_in_the_folder_of_a_finished_or_deleted_sweep(tmp_path):
    home = begun(tmp_path)
    for finished in (False, True):
        with nullcontext() if finished else pytest.raises(tunekit.errors.ConfigError):
            experiment(tmp_path)
        Journal(LocalFolder(home), begins=False).append(SessionClosed(finished=not finished))
    with pytest.raises(tunekit.errors.ConfigError):
        experiment(tmp_path)
    shutil.rmtree(home)
    experiment(tmp_path)


def swapped(home: Path) -> None:
    search = (home / SEARCH).read_bytes()
    (home / SEARCH).write_bytes((home / SNAPSHOT).read_bytes())
    (home / SNAPSHOT).write_bytes(search)


def rewritten(home: Path, **files: bytes) -> None:
    (home / SNAPSHOT).write_bytes(_archive(files, SNAPSHOT))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda home: [cut(home / SNAPSHOT), cut(home / SEARCH)], [SNAPSHOT, SEARCH]),
        (lambda home: (home / SNAPSHOT).unlink(), [SNAPSHOT]),
        (lambda home: emptied(home / SEARCH), [SEARCH]),
        (rewritten, [SNAPSHOT]),
        (swapped, [SNAPSHOT, SEARCH]),
        (lambda home: rewritten(home, **{**STATE, next(iter(STATE)): b'{"trial_da'}), [SNAPSHOT]),
        (lambda home: [cut(home / SETTINGS), cut(home / "tuner.pkl")], [SETTINGS]),
        (lambda home: [(home / SETTINGS).unlink(), cut(home / "tuner.pkl")], ["tuner.pkl"]),
        (lambda home: [(home / SETTINGS).unlink(), (home / "tuner.pkl").unlink()], ["tuner.pkl"]),
    ],
)
def test_restore_of_damaged_files_is_an_error_that_names_them_and_load_still_works(
    tmp_path, damage, named
):
    home = begun(tmp_path)
    damage(home)
    before = contents(home)
    for ask in asks(home):
        with pytest.raises(tunekit.errors.RestoreError) as caught:
            ask()
        said = str(caught.value)
        assert all(name in said for name in [*named, str(home)])
        assert contents(home) == before
    if named != ["tuner.pkl"]:
        assert f"tunekit.load('{home}')" in said
    assert len(tunekit.load(home).trials) == 1


def test_restore_of_reported_trials_without_a_saved_state_is_an_error(tmp_path):
    home = experiment(tmp_path)
    writer = Journal(LocalFolder(home))
    writer.append(TrialAdded(trial_id="a"))
    assert not tunekit.Tuner.can_restore(home)  # nothing has come of it
    writer.append(Reported(trial_id="a", report={"training_iteration": 1}))
    writer.sync()
    for ask in asks(home):
        with pytest.raises(tunekit.errors.RestoreError, match=str(home)):
            ask()


@pytest.mark.parametrize("door", ["storage", "lock"])
def test_restore_on_a_full_disk_is_an_error_and_works_once_there_is_room(
    tmp_path, monkeypatch, door
):
    home = begun(tmp_path)
    before = contents(home)

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    error = pytest.raises(tunekit.errors.RestoreError, match="No space left on device")
    with monkeypatch.context() as patch, error:
        patch.setattr(f"tunekit.journal.{door}.replace_file", full)
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before
    tunekit.Tuner.restore(str(home), train)


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_restore_killed_at_any_write_to_remote_storage_can_be_repeated(monkeypatch, kind):
    events = [Reported(n=2, trial_id="a", report={"training_iteration": 1})]
    state = SavedState("s", 1, STATE, b"settings")
    for left in itertools.count():
        store = Store(kind)
        folder = RemoteFolder(store.filesystem, "s", sleep=lambda seconds: True)
        folder.put("tuner.pkl", b"half of the sett")
        folder.settle(PATIENCE_S)
        store.left = left
        with monkeypatch.context() as patch, suppress(tunekit.errors.RestoreError):
            patch.setattr("tunekit.driver.snapshots.PATIENCE_S", 0.01)
            state.put_back(folder, events, "2026-01-01_00-00-01")
        folder.abandon()
        folder.close()
        killed, store.left = store.left <= 0, None
        folder = RemoteFolder(store.filesystem, "s")
        state.put_back(folder, events, "2026-01-01_00-00-02")
        assert store.files["s/tuner.pkl"] == b"settings"
        states = [name for name in store.files if name.startswith("s/experiment_state")]
        assert states == ["s/experiment_state-2026-01-01_00-00-02.json"]
        if not killed:
            break
    assert left > 3


# Before that -------------------------------------------------------------------------------------


def test_restore_refuses_another_trainable_or_search_space_before_any_change(tmp_path):
    home = begun(tmp_path)

    def recorded() -> dict[str, bytes]:
        of_tune = ("experiment", "callback", "searcher")
        return {k: v for k, v in contents(home).items() if not k.startswith(of_tune)}

    before = recorded()
    with pytest.raises(tunekit.errors.ConfigError, match="trainable"):
        tunekit.Tuner.restore(str(home), lambda config: None)
    with pytest.raises(tunekit.errors.ConfigError, match="param_space"):
        tunekit.Tuner.restore(str(home), train, param_space={"momentum": 0.9})
    assert recorded() == before


@pytest.mark.parametrize("damage", [cut, emptied])
def test_restore_finds_no_sweep_in_a_damaged_tuner_pkl_unless_tune_saved_a_state(tmp_path, damage):
    home = experiment(tmp_path)
    damage(home / "tuner.pkl")
    before = contents(home)
    assert not tunekit.Tuner.can_restore(home)
    with pytest.raises(tunekit.errors.SweepNotFoundError, match=str(home)):
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before
    (home / "experiment_state-2026-01-01_00-00-00.json").write_bytes(b"{}")  # one without a journal
    for ask in asks(home):
        with pytest.raises(tunekit.errors.RestoreError, match=r"tuner\.pkl"):
            ask()


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("path", ["w/sweep", "../here/w/sweep", "~/w/sweep"])
def test_restore_and_load_accept_relative_paths_and_home_folders(tmp_path, monkeypatch, kind, path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    home = begun(tmp_path / "here/w")
    restored = tunekit.Tuner.restore(kind(path), train)
    assert settings_of(restored).run_config.storage_path == str(home.parent)
    assert tunekit.Tuner.can_restore(kind(path))
    assert tunekit.load(kind(path)).path == str(home)
    assert len(tunekit.load(kind(path)).lineage.to_dataframe()) == 0
    assert not tunekit.Tuner.can_restore(kind("w"))


def test_restore_keeps_the_given_storage_filesystem(tmp_path):
    begun(tmp_path)
    below = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    assert tunekit.Tuner.can_restore("sweep", below)
    restored = tunekit.Tuner.restore("sweep", train, storage_filesystem=below)
    assert settings_of(restored).run_config.storage_filesystem is below


# A path that is no sweep's: what is there, and which sweeps are near ----------------------------


@pytest.fixture
def home(tmp_path):
    """Two sweeps, one of them with a trial, next to a plain Tune experiment."""
    for sweep in ("digits", "deeper/letters"):
        Journal(LocalFolder(tmp_path / "results" / sweep)).close()
    (tmp_path / "results/digits/trial_a/checkpoint_000001").mkdir(parents=True)
    (tmp_path / "results/plain/trial_b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for file in ("digits/tuner.pkl", "plain/tuner.pkl", "plain/trial_b/result.json"):
        (tmp_path / "results" / file).touch()
    return tmp_path


#: What the error for a path names: the sweeps nearby, or else how to read or find one.
NAMED = {
    "results/digit": ["'{}/results/digits'"],
    "nowhere/at/all": ["'{}/nowhere/at'", "results.experiment_path"],
    "results": ["'{}/results/digits'", "'{}/results/deeper/letters'"],
    "results/digits/trial_a/checkpoint_000001": ["'{}/results/digits'"],
    "results/digits/tuner.pkl": ["'{}/results/digits'"],
    "results/plain": ["ray.tune.Tuner.restore"],
    "results/plain/trial_b": ["ray.tune.Tuner.restore"],
    "empty": ["'{}/empty'", "results.experiment_path"],
}


@pytest.mark.parametrize("path", NAMED)
def test_path_that_is_not_a_sweep_is_an_error_that_names_the_sweeps_nearby(home, path):
    restore = partial(tunekit.Tuner.restore, trainable=train)
    for read in (tunekit.load, *[restore] * ("plain" not in path)):
        with pytest.raises(tunekit.errors.ConfigError) as caught:
            read(str(home / path))
        assert all(named.format(home) in str(caught.value) for named in NAMED[path])


def test_restore_without_tuner_pkl_is_an_error_that_names_the_journal_folder(home):
    (home / "results/digits/tuner.pkl").unlink()
    with pytest.raises(tunekit.errors.ConfigError, match="'journal'"):
        tunekit.Tuner.restore(str(home / "results/digits"), lambda config: None)
