"""A path that is no sweep's: what is there, and which sweeps are near."""

from __future__ import annotations

import pyarrow.fs
import pytest

import tunekit
from tunekit.journal.experiments import path_problem
from tunekit.journal.journal import Journal
from tunekit.journal.storage import LocalFolder

LOCAL = pyarrow.fs.LocalFileSystem()


@pytest.fixture
def home(tmp_path):
    """Two sweeps, one of them with a trial, beside a plain experiment of Tune's."""
    for name in ("digits", "deeper/letters"):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "tuner.pkl").touch()
        Journal(LocalFolder(folder)).close()
    checkpoint = tmp_path / "results/digits/trial_a/checkpoint_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").touch()
    (checkpoint.parent / "params.json").touch()
    plain = tmp_path / "results/plain"
    (plain / "trial_b").mkdir(parents=True)
    (plain / "tuner.pkl").touch()
    (plain / "trial_b/result.json").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


CASES = {
    "results/digit": ["does not exist", "pass '{}/results/digits'"],
    "nowhere/at/all": ["does not exist", "results.experiment_path"],
    "results": ["sweeps below", "{}/results/digits", "{}/results/deeper/letters"],
    "results/digits/trial_a": ["a part of a sweep", "Pass '{}/results/digits'"],
    "results/digits/trial_a/checkpoint_000001": ["a part of a sweep", "'{}/results/digits'"],
    "results/digits/tuner.pkl": ["a part of a sweep", "Pass '{}/results/digits'"],
    "results/plain": ["an experiment of Ray Tune,", "without validation"],
    "results/plain/trial_b": ["a trial of one", "without validation"],
    "results/deeper": ["has no folder", "pass '{}/results/deeper/letters'"],
    "empty": ["there is no sweep below", "results.experiment_path"],
}


@pytest.mark.parametrize("path", CASES)
def test_each_path_is_named_for_what_it_is(home, path):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.load(home / path)
    for says in CASES[path]:
        assert says.format(home) in str(caught.value)


@pytest.mark.parametrize("path", ["results/digit", "results", "results/digits/trial_a", "empty"])
def test_restoring_says_the_same(home, path):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.Tuner.restore(str(home / path), lambda config: None)
    assert CASES[path][-1].format(home) in str(caught.value)


def test_many_sweeps_are_not_all_named_and_uris_stay_uris(home):
    for n in range(15):
        folder = home / f"many/sweep{n:02}"
        folder.mkdir(parents=True)
        Journal(LocalFolder(folder)).close()
    storage = pyarrow.fs.SubTreeFileSystem(str(home), LOCAL)
    text = path_problem(storage, "many", "s3://many")
    assert "'s3://many/sweep14'" in text
    assert text.count("'s3://many/") == 10 and "5 more are not named" in text


def test_a_sweep_that_lacks_a_file_is_told_so(home):
    (home / "results/digits/tuner.pkl").unlink()
    with pytest.raises(tunekit.errors.ConfigError, match="with a missing file"):
        tunekit.Tuner.restore(str(home / "results/digits"), lambda config: None)
