"""Sweeps that are restored elsewhere, with other options, or from less than there was."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray.tune import ResumeConfig
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.kills import Killed, killed_after, run_killed
from tests.sweeps import Counting, Endless, Ran, index_of, sweep
from tunekit.journal import read
from tunekit.snapshots import mend
from tunekit.storage import LocalFolder
from tunekit.testing import check_lives

SKIP, RESUME, RESTART = (
    ResumeConfig.ResumeType.SKIP,
    ResumeConfig.ResumeType.RESUME,
    ResumeConfig.ResumeType.RESTART,
)


def fifo(folder: Path, **options: Any) -> Ran:
    given = {"trainable": Endless, "trials": 3, "stop": {"training_iteration": 6}}
    lag = {"validation_s": lambda attempt: 2.5}
    return sweep(folder, FIFOScheduler(), listening=False, run=False, **(given | lag | options))


def kill(folder: Path, at: int, **options: Any) -> None:
    with pytest.raises(Killed), killed_after(at):
        fifo(folder, **options).sweep.run(most=50_000)
    shutil.rmtree(f"{folder}-session", ignore_errors=True)


def restored(folder: Path, **options: Any) -> Ran:
    home = folder / "sweep"
    mended = mend(LocalFolder(home), read(home))
    ran = fifo(folder, mended=mended, **{"resume": ResumeConfig(), **options})
    ran.sweep.run(most=50_000)
    return ran


def complete(ran: Ran, length: int = 6) -> bool:
    return all(
        sorted(scores) == [(0, i) for i in range(1, length + 1)] for scores in ran.scores().values()
    )


@pytest.mark.parametrize("at", [40, 75, 110])
@pytest.mark.parametrize("on_pending", ["continue", "hold"])
def test_an_experiment_that_was_moved_goes_on_where_it_is(tmp_path, at, on_pending):
    kill(tmp_path / "old", at, on_pending=on_pending)
    shutil.move(tmp_path / "old", tmp_path / "elsewhere")
    paths: list[str] = []
    ran = restored(
        tmp_path / "elsewhere",
        on_pending=on_pending,
        validate=lambda attempt: paths.append(attempt.request.path) or {"accuracy": 0.5},
    )
    assert complete(ran) and not (tmp_path / "old").exists()
    assert paths and all(path.startswith(f"{tmp_path}/elsewhere/") for path in paths)
    assert all(Path(path).is_dir() for path in paths)
    check_lives(read(tmp_path / "elsewhere/sweep"))


def test_what_is_restored_can_be_moved_and_restored_again(tmp_path):
    kill(tmp_path / "1", 60)
    for number in (1, 2):
        shutil.move(tmp_path / str(number), tmp_path / str(number + 1))
        home = tmp_path / str(number + 1) / "sweep"
        options = {"mended": mend(LocalFolder(home), read(home)), "resume": ResumeConfig()}
        if number == 1:
            kill(tmp_path / "2", 30, **options)
    ran = restored(tmp_path / "3")
    assert complete(ran)
    check_lives(read(tmp_path / "3/sweep"))


def test_a_checkpoint_that_is_gone_is_an_outcome_with_a_reason(tmp_path):
    kill(tmp_path, 60)
    events = read(tmp_path / "sweep")
    ended = {event["id"] for event in events if event["event"] == "ended"}
    [*_, pending] = [e for e in events if e["event"] == "requested" and e["id"] not in ended]
    gone = tmp_path / "sweep" / pending["checkpoint"]
    shutil.rmtree(gone)
    ran = restored(tmp_path)
    [event] = [
        e for e in read(tmp_path / "sweep") if e["event"] == "ended" and e["id"] == pending["id"]
    ]
    assert event["status"] == "failed"
    assert "not in the storage any more" in event["reason"] and str(gone) in event["reason"]
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    # The trial went on from the checkpoint before it, and ran the iteration again.
    assert complete(ran)


def test_all_checkpoints_gone_begins_the_trial_anew(tmp_path):
    kill(tmp_path, 60)
    for checkpoint in (tmp_path / "sweep").glob("*/checkpoint_*"):
        shutil.rmtree(checkpoint)
    ran = restored(tmp_path)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert complete(ran)


class Failing(Counting):
    """The first one fails at its third iteration, once."""

    def step(self) -> dict[str, Any]:
        marker = Path(self.config["folder"], f"failed-{self.trial_id}")
        if self.trial_id.endswith("0") and self.steps == 2 and not marker.exists():
            marker.touch()
            raise RuntimeError("out of luck")
        return {**super().step(), "done": False}


@pytest.mark.parametrize("option", [SKIP, RESUME, RESTART])
def test_what_becomes_of_a_trial_that_failed(tmp_path, option):
    failing = {"trainable": Failing, "param_space": {"folder": str(tmp_path)}}
    kill(tmp_path, 95, **failing)
    events = read(tmp_path / "sweep")
    assert [event["trial_id"][-1] for event in events if event["event"] == "errored"] == ["0"]
    ran = restored(tmp_path, resume=ResumeConfig(errored=option), **failing)
    statuses = Counter(trial.status for trial in ran.trials)
    if option == SKIP:
        assert statuses == {"TERMINATED": 2, "ERROR": 1}
    else:
        assert statuses == {"TERMINATED": 3}
        # What was pending when it failed was given up.
        scored = [{i for _, i in scores} for scores in ran.scores().values()]
        assert all({3, 4, 5, 6} <= iterations for iterations in scored)
    check_lives(
        event
        for event in read(tmp_path / "sweep")
        if event.get("trial_id") in {trial.trial_id for trial in ran.trials} or "id" in event
    )


def test_unfinished_trials_may_end_where_they_are(tmp_path):
    kill(tmp_path, 60)
    ran = restored(tmp_path, resume=ResumeConfig(unfinished=SKIP))
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    lives = check_lives(read(tmp_path / "sweep"))
    # What was pending is validated, and delivered with the end.
    saved = {
        f"{e['trial_id']}:0:{e['iteration']}"
        for e in read(tmp_path / "sweep")
        if e["event"] == "saved"
    }
    assert lives.scores.keys() == saved and any(length < 6 for length in ran.lengths().values())


def test_a_state_that_is_ahead_of_the_journal(tmp_path):
    """As after an object store has lost the end of the journal, and Tune's files came through."""

    def made(folder: Path, **options: Any) -> Ran:
        return fifo(folder, saved_every_s=0.0, **options)

    kill(tmp_path, 90, saved_every_s=0.0)
    home = tmp_path / "sweep"
    mend(LocalFolder(home), read(home))
    [file] = (home / "journal").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-20]))
    ran = fifo(tmp_path, resume=ResumeConfig())
    ran.sweep.run(most=50_000)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert complete(ran)
    numbers = [event["n"] for event in read(home)]
    assert numbers == sorted(set(numbers))
    ran, _ = run_killed(tmp_path / "again", made, iter([80, 60]))
    assert complete(ran)


def test_before_the_first_state_there_is_nothing_to_restore(tmp_path):
    with pytest.raises(Killed), killed_after(1):
        fifo(tmp_path).sweep.run()
    home = tmp_path / "sweep"
    with pytest.raises(tunekit.RestoreError, match="no trial had begun"):
        mend(LocalFolder(home), read(home))


def test_an_archive_that_is_damaged_is_passed_over(tmp_path):
    kill(tmp_path, 60)
    home = tmp_path / "sweep"
    for archive in (home / "state").iterdir():
        archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(tunekit.RestoreError):
        mend(LocalFolder(home), read(home))


def test_trials_have_their_numbers_after_a_restore(tmp_path):
    kill(tmp_path, 60)
    ran = restored(tmp_path)
    assert sorted(index_of(trial) for trial in ran.trials) == [0, 1, 2]
