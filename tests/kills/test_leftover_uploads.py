"""What killed processes leave in trials' folders is removed by a restore, and nothing else."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler

from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, bury, killed_after
from tests.support.restores import restoring
from tests.support.sweeps import LENGTH, Ran, sweep
from tunekit.core.events import CheckpointSaved
from tunekit.journal.journal import events_in

WORKERS = "checkpoint_2026-01-31_12-00-00.000001-0a1b2c3d"


def run(folder: Path, **options: Any) -> Ran:
    late = {"validation_s": lambda attempt: 2.5}
    return sweep(folder, trials=2, listening=False, **late, **options)


def killed(folder: Path, at: int = 60) -> list[Path]:
    """Kill a sweep; return the folders of its trials, of which none has ended."""
    with pytest.raises(Killed), killed_after(at):
        run(folder)
    return sorted(path.parent for path in (folder / "sweep").glob("*/checkpoint_000000"))


def restored(folder: Path) -> Ran:
    return run(folder, **restoring(folder / "sweep"))


def left(path: Path) -> Path:
    """An upload that was cut off."""
    path.mkdir()
    (path / "half").write_bytes(b"of a model")
    return path


def known(folder: Path) -> set[Path]:
    """The checkpoints that the journal names."""
    home = folder / "sweep"
    return {home / e["checkpoint"] for e in read(home) if isinstance(e.get("checkpoint"), str)}


def test_uploads_that_nobody_knows_of_are_removed_and_their_names_not_used(tmp_path):
    trials = killed(tmp_path)
    before = known(tmp_path)
    assert before and all(path.is_dir() for path in before)
    cut_off = [left(trial / name) for trial in trials for name in ("checkpoint_000040", WORKERS)]
    ran = restored(tmp_path)
    assert not any(path.exists() for path in cut_off)
    assert all(path.is_dir() for path in known(tmp_path)), "what is known stays"
    assert len(known(tmp_path)) == 2 * LENGTH and before <= known(tmp_path)
    names = {path.name for path in known(tmp_path) - before}
    assert names and min(names) == "checkpoint_000041", "a process may still be writing there"
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}
    check_journal(events_in(tmp_path / "sweep"))


def test_what_is_no_upload_of_this_sweep_stays(tmp_path):
    one, _ = killed(tmp_path)
    others = [left(one / name) for name in ("checkpoint-500", "checkpoint_best", "artifacts")]
    older = left(one / "checkpoint_000030")
    for path in (older / "half", older):
        os.utime(path, (1.0, 1.0))
    elsewhere = left(tmp_path / "sweep" / "checkpoint_000001")
    restored(tmp_path)
    assert all(path.is_dir() for path in (*others, older, elsewhere))


def test_a_restore_that_is_killed_while_it_removes_is_gone_on_with(tmp_path, monkeypatch):
    trials = killed(tmp_path)
    cut_off = [left(trial / "checkpoint_000040") for trial in trials]

    def dies(filesystem: Any, path: str) -> None:
        (Path(path) / "half").unlink()  # it was half way
        raise Killed

    monkeypatch.setattr("tunekit._ray.checkpoints.delete_checkpoint", dies)
    with pytest.raises(Killed):
        restored(tmp_path)
    bury(tmp_path / "sweep")
    monkeypatch.undo()
    ran = restored(tmp_path)
    assert not any(path.exists() for path in cut_off)
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}


def test_no_decision_ends_a_save_in_progress(tmp_path):
    """Its folder would be left behind, and no journal would name it."""
    begun = []

    def takes_s(trial: Trial, method: str) -> float:
        begun.extend([trial.trial_id] if method == "save" else [])
        return {"train": 1.0, "save": 2.0}.get(method, 0.0)

    ran = sweep(
        tmp_path,
        ASHAScheduler(grace_period=1, max_t=LENGTH, reduction_factor=2),
        trials=6,
        validation_s=lambda attempt: 3.5,
        training_s=takes_s,
    )
    events = events_in(tmp_path / "sweep")
    assert ran.lengths() and min(ran.lengths().values()) < LENGTH, "some are stopped early"
    assert Counter(begun) == Counter(e.trial_id for e in events if isinstance(e, CheckpointSaved))


def test_a_storage_that_does_not_let_go_ends_no_sweep(tmp_path, monkeypatch, caplog):
    [one, _] = killed(tmp_path)
    cut_off = left(one / "checkpoint_000040")

    def refuse(filesystem: Any, path: str) -> None:
        raise PermissionError("is read-only")

    monkeypatch.setattr("tunekit._ray.checkpoints.delete_checkpoint", refuse)
    ran = restored(tmp_path)
    assert cut_off.is_dir() and "could not be removed: is read-only" in caplog.text
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}
