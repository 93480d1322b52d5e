"""A sweep that is followed is, at each moment, what ``tunekit.load`` reads."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.fs
import pytest

import tunekit
from tests.contract.test_reading_matches_files import TABLES, asha, killed_and_read, pbt
from tests.support.fakes import FakeClock
from tests.support.readers import session, validate_here
from tests.support.seeds import seeds
from tests.support.sweeps import sweep
from tunekit.core.events import Reported, TrialAdded
from tunekit.reading.sweep import Follower


def killed(folder: Path):
    ran, _ = killed_and_read(folder, seed=1)
    return ran


def grown(source: Path, target: Path, seed: int) -> Iterator[None]:
    """Let a journal grow by pieces that end anywhere, in a line or after a session's first one."""
    draw = random.Random(seed)
    (target / "journal").mkdir(parents=True)
    for file in sorted((source / "journal").glob("*.jsonl")):
        data = file.read_bytes()
        cuts = sorted([data.index(b"\n") + 1, *(draw.randrange(len(data)) for _ in range(4))])
        for begin, end in itertools.pairwise([0, *cuts, len(data)]):
            with open(target / "journal" / file.name, "ab") as copy:
                copy.write(data[begin:end])
            yield


def same(one: tunekit.Sweep, other: tunekit.Sweep) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name))
    assert one.summary() == other.summary()
    assert one.timeline.spans() == other.timeline.spans()
    assert [r.trial_id for r in one.ranking()] == [r.trial_id for r in other.ranking()]
    assert list(one.timeline.ancestry) == list(other.timeline.ancestry)
    assert one.sessions == other.sessions


@pytest.mark.parametrize("make", [asha, pbt, killed], ids=["asha", "pbt", "killed"])
@pytest.mark.parametrize("seed", seeds(1))
def test_it_is_what_load_reads_wherever_the_journal_is_cut(make, seed, tmp_path):
    source = make(tmp_path / "source").home
    follower = Follower(pyarrow.fs.LocalFileSystem(), str(tmp_path / "copy"), clock=FakeClock())
    steps = 0
    for _ in grown(source, tmp_path / "copy", seed):
        follower.poll()
        same(follower.sweep, tunekit.load(tmp_path / "copy"))
        steps += 1
    assert steps > 5 and not follower.poll()


@pytest.fixture
def follower(tmp_path) -> Follower:
    return Follower(pyarrow.fs.LocalFileSystem(), str(tmp_path), clock=FakeClock())


def test_another_sweep_in_the_same_folder_is_another_sweep(tmp_path, follower):
    for trial_id in ("old", "new"):
        session(tmp_path).append(TrialAdded(time=1e9, trial_id=trial_id))
        assert follower.poll() and list(follower.sweep.timeline.trials) == [trial_id]


def test_a_journal_that_is_replaced_is_read_again(tmp_path, follower):
    journal = session(tmp_path)
    for trial in ("a", "b"):
        journal.append(TrialAdded(time=1e9, trial_id=trial))
    follower.poll()
    [file] = (tmp_path / "journal").glob("*.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert follower.poll() and list(follower.sweep.timeline.trials) == ["a"]
    shutil.rmtree(tmp_path / "journal")
    assert follower.poll() and not follower.sweep.timeline.trials


def test_what_fails_to_be_read_is_read_when_it_can_be(tmp_path, follower):
    journal = session(tmp_path)
    follower.poll()
    [file] = (tmp_path / "journal").glob("*.jsonl")
    whole = file.read_bytes()
    journal.append(TrialAdded(time=1e9, trial_id="a"))
    good = file.read_bytes()
    file.write_bytes(whole + b"{damaged}\n" + good[len(whole) :])
    for _ in range(2):
        with pytest.raises(tunekit.errors.JournalError, match="line 2"):
            follower.poll()
    file.write_bytes(good)
    assert follower.poll() and list(follower.sweep.timeline.trials) == ["a"]


def test_a_restore_that_judges_by_another_metric_is_told_by_that_one(tmp_path, follower):
    report = {"training_iteration": 1, "loss": 3.0}
    session(tmp_path).append(Reported(time=1e9, trial_id="a", report=report))
    follower.poll()
    assert follower.sweep.metric == "accuracy"
    session(tmp_path, metric="loss", begins=False)
    assert follower.poll() and follower.sweep.metric == "loss"
    same(follower.sweep, tunekit.load(tmp_path))


def test_what_is_validated_later_is_shown(tmp_path, monkeypatch):
    validate_here(monkeypatch)
    home = sweep(tmp_path, trials=1).home
    clock = FakeClock()
    follower = Follower(pyarrow.fs.LocalFileSystem(), str(home), clock=clock)
    follower.poll()
    tunekit.load(home).validate(lambda checkpoint: {"accuracy": 0.5}, name="robust")
    clock.sleep(3600)
    assert follower.poll()
    assert "robust/accuracy" in follower.sweep.reports
    same(follower.sweep, tunekit.load(home))
    assert not follower.poll()
