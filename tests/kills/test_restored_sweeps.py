"""A killed sweep restores completely when moved, with other options, or from incomplete files."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ray import train, tune
from ray.tune import ResumeConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import BasicVariantGenerator

import tunekit
from tests.support.fakes import FakeClock
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.modes import Mode
from tests.support.restores import prepare_restore
from tests.support.schedulers import planned
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import LENGTH, Counting, Endless
from tunekit.core.events import CheckpointSaved, TrialAdded
from tunekit.core.validation import Attempt
from tunekit.driver import run
from tunekit.errors import ConfigError
from tunekit.journal.journal import events_in

pytestmark = pytest.mark.sampled(2)

SKIP, RESUME = ResumeConfig.ResumeType.SKIP, ResumeConfig.ResumeType.RESUME


def fifo(folder: Path, mode: Mode = Mode.CONTINUE, trials: int = 3) -> Plan:
    plan = Plan(folder, mode=mode, trials=trials).training(Endless).validating(seconds=2.5)
    return plan.tuning(stop={"training_iteration": 6})


def kill(plan: Plan, at: int) -> None:
    """Kill a sweep after a number of writes; nothing is left of its driver's own copies."""
    with pytest.raises(Killed), killed_after(at):
        plan.run()
    shutil.rmtree(f"{plan.folder}-session")


def complete(ran: Ran, length: int = 6) -> bool:
    return all(
        sorted(scores) == [(0, i) for i in range(1, length + 1)] for scores in ran.scores().values()
    )


@pytest.mark.parametrize(
    ("at", "mode", "at_once"),
    [*itertools.product([30, 55, 80], [Mode.CONTINUE, Mode.WAIT], [3]), (40, Mode.CONTINUE, 1)],
)
def test_sweep_moved_twice_continues_from_its_checkpoints_in_the_new_folder(
    tmp_path, at, mode, at_once
):
    """Also with trials that are only made after the moves."""
    paths: list[str] = []

    def validate(attempt: Attempt) -> dict[str, float]:
        paths.append(attempt.request.path)
        return {"accuracy": 0.5}

    def made(name: str) -> Plan:
        search = BasicVariantGenerator(random_state=0, max_concurrent=at_once)
        return fifo(tmp_path / name, mode).validating(validate).tuning(search_alg=search)

    kill(made("1"), at)
    shutil.move(tmp_path / "1", tmp_path / "2")
    kill(made("2").restored(), 8)
    shutil.move(tmp_path / "2", tmp_path / "3")
    paths.clear()
    ran = made("3").restored().run()
    assert complete(ran) and len(ran.trials) == 3
    assert not (tmp_path / "1").exists() and not (tmp_path / "2").exists()
    assert all(list(Path(t.storage.trial_fs_path).glob("checkpoint_*")) for t in ran.trials)
    assert paths and all(path.startswith(f"{tmp_path}/3/") for path in paths)
    assert all(Path(path).is_dir() for path in paths)
    check_journal(events_in(tmp_path / "3/sweep"))


def test_pending_validation_of_a_deleted_checkpoint_fails_after_a_restore(tmp_path):
    kill(fifo(tmp_path), 60)
    events = read(tmp_path / "sweep")
    ended = {event["id"] for event in events if event["event"] == "validation_ended"}
    [*_, pending] = [e for e in events if e["event"] == "checkpoint_saved" and e["id"] not in ended]
    gone = tmp_path / "sweep" / pending["checkpoint"]
    shutil.rmtree(gone)
    ran = fifo(tmp_path).restored().run()
    [event] = [e for e in read(tmp_path / "sweep", "validation_ended") if e["id"] == pending["id"]]
    assert event["status"] == "failed" and str(gone) in event["reason"]
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    # The trial went on from the checkpoint before it, and ran the iteration again.
    assert complete(ran)


def test_trial_without_any_checkpoint_left_starts_over_after_a_restore(tmp_path):
    kill(fifo(tmp_path).tuning(saved_every_s=0.0), 120)  # so Tune's state has its checkpoints, too
    for checkpoint in (tmp_path / "sweep").glob("*/checkpoint_*"):
        shutil.rmtree(checkpoint)
    ran = fifo(tmp_path).restored().run()
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert complete(ran)


class Failing(Counting):
    """The first one fails at its third iteration, once."""

    def step(self) -> dict[str, Any]:
        marker = Path(self.config["folder"], "failed")
        if self.trial_id.endswith("0") and self.steps == 2 and not marker.exists():
            marker.touch()
            raise RuntimeError("out of luck")
        return {**super().step(), "done": False}


def test_sweep_whose_journal_lost_its_end_restores_and_completes(tmp_path):
    """As after an object store has lost the end of the journal, and Tune's files came through."""
    kill(fifo(tmp_path).tuning(saved_every_s=0.0), 90)
    home = tmp_path / "sweep"
    prepare_restore(home)
    [file] = (home / "journal").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-20]))
    shutil.rmtree(home / "state")  # which would not have come through either
    ran = fifo(tmp_path).tuning(resume=ResumeConfig()).run()
    assert all(trial.status == "TERMINATED" for trial in ran.trials)
    assert complete(ran)
    numbers = [event["n"] for event in read(home)]
    assert numbers == sorted(set(numbers))


def test_restore_refused_at_its_start_loses_nothing(tmp_path, monkeypatch):
    """No node for validations can read the results, say."""
    kill(fifo(tmp_path), 80)
    refused = pytest.raises(ConfigError, match="unread")
    with monkeypatch.context() as blind, refused, killed_after(1_000_000):  # it is never reached
        blind.setattr(run, "check_readable", lambda *given: given[-1].add("unread"))
        fifo(tmp_path).restored().run()
    assert complete(fifo(tmp_path).restored().run())


def test_sweep_completes_and_restores_while_the_wall_clock_jumps(tmp_path, monkeypatch):
    """Limits, order and files use a clock that is never set back."""
    draw = random.Random(0)
    monkeypatch.setattr(FakeClock, "time", lambda clock: draw.choice([0.0, 1e9, -1e9, 4e9]))
    limited = train.ValidationTaskConfig(timeout_s=30)
    kill(fifo(tmp_path).validating(task_config=limited), 60)
    ran = fifo(tmp_path).restored().run()
    assert complete(ran)
    check_journal(events_in(tmp_path / "sweep"))


# Checkpoints that are kept ----------------------------------------------------------------------


@pytest.mark.parametrize("at", range(22, 94, 7))
def test_best_checkpoint_is_kept_across_restores(tmp_path, at):
    def score(attempt: Any) -> dict[str, float]:
        return {"accuracy": 0.9 if attempt.request.iteration == 2 else 0.1}

    keeps = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    plan = fifo(tmp_path, trials=1).validating(score).tuning(checkpoint_config=keeps)
    often = 0.0 if at % 2 else float("inf")
    plan = plan.tuning(stop={"training_iteration": 9}, saved_every_s=often)
    with suppress(Killed), killed_after(at):
        plan.run()
    [trial] = plan.restored().run().trials
    saved = trial.run_metadata.checkpoint_manager.best_checkpoint_results
    kept = {one.metrics["training_iteration"]: one.metrics.get("accuracy") for one in saved}
    assert kept[2] == 0.9 and len(kept) == 2
    there = {path.name for path in Path(trial.storage.trial_fs_path).glob("checkpoint_*")}
    names = {Path(one.checkpoint.path).name for one in saved}
    # What was saved and not recorded when the driver died may lie there, too.
    assert names <= there and len(there - names) <= 1


def test_restored_sweep_validates_at_the_same_iterations(tmp_path):
    often = fifo(tmp_path, trials=1).training(saves=tunekit.EveryIterations(1)).validating(when=5)
    kill(often.tuning(stop={"training_iteration": 15}), 26)
    assert sorted(often.restored().run().validated()[0]) == [5, 10, 15]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["hyperband", "asha", "pbt", "median"])
@pytest.mark.parametrize("failures", [0, 1], ids=["for-good", "retried"])
@pytest.mark.parametrize("at", range(45, 190, 18))
def test_failed_trials_resumed_by_a_restore_terminate_under_each_scheduler(
    tmp_path, name, failures, at
):
    def made() -> Plan:
        return (
            planned(name, tmp_path, Mode.WAIT, trials=4)
            .training(Failing)
            .tuning(param_space={"folder": str(tmp_path), "lr": 0.1})
            .tuning(stop={"training_iteration": 9}, max_failures=failures)
        )

    with suppress(Killed), killed_after(at):
        made().run()
    for _ in range(2):  # it may fail only after the first
        ran = made().restored(errored=RESUME).run()
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


def test_journal_records_the_folder_of_trials_that_have_not_asked_for_resources(tmp_path):
    class OneByOne(FIFOScheduler):
        def choose_trial_to_run(self, tune_controller):
            tune_controller.update_max_pending_trials(1)
            return super().choose_trial_to_run(tune_controller)

    ran = Plan(tmp_path, OneByOne(), trials=4).training(slots=1).run()
    added = [event for event in events_in(ran.home) if isinstance(event, TrialAdded)]
    folders = {trial.trial_id: trial.storage.trial_dir_name for trial in ran.trials}
    assert {event.trial_id: event.folder for event in added} == folders


@pytest.mark.parametrize("at", [12, 30, 45, 50])
@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED])
def test_trials_not_resumed_terminate_with_all_that_they_reported(tmp_path, at, mode):
    plan = fifo(tmp_path, mode, trials=5).training(slots=2)
    kill(plan, at)
    reported = Counter(event["trial_id"] for event in read(tmp_path / "sweep", "reported"))
    ran = plan.restored(unfinished=SKIP).run()
    loaded = tunekit.load(ran.home)
    assert loaded.summary()["state"] == "finished"
    assert set(loaded.trials["status"]) == {"terminated"}
    assert not loaded.trials["stopped"].any(), "no scheduler has ended them"
    assert {trial.status for trial in ran.trials} == {"TERMINATED"}
    assert set(loaded.validations["status"]) <= {"validated"}
    rows = Counter(event["trial_id"] for event in read(ran.home, "processed"))
    assert all(rows[name] >= count for name, count in reported.items())
    check_journal(events_in(ran.home))


# What killed processes leave in the folders of trials -------------------------------------------


WORKERS = "epoch-7-run0a1b2c3d-7"


def killed_two(folder: Path) -> list[Path]:
    """Kill a sweep; return the folders of its two trials, of which none has ended."""
    kill(fifo(folder, trials=2), 40)
    return sorted(path.parent for path in (folder / "sweep").glob("*/checkpoint_000000"))


def left(path: Path) -> Path:
    """An upload that was cut off."""
    path.mkdir()
    (path / "half").write_bytes(b"of a model")
    return path


def known_in(folder: Path) -> set[Path]:
    """The checkpoints that the journal names."""
    home = folder / "sweep"
    return {home / e["checkpoint"] for e in read(home) if isinstance(e.get("checkpoint"), str)}


def test_restore_removes_unrecorded_uploads_and_nothing_else_and_reuses_no_name(tmp_path):
    trials = killed_two(tmp_path)
    before = known_in(tmp_path)
    assert before and all(path.is_dir() for path in before)
    cut_off = [left(trial / name) for trial in trials for name in ("checkpoint_000040", WORKERS)]
    others = ("checkpoint-500", "checkpoint_best", "artifacts", "checkpoint_000030")
    not_uploads = [left(trials[0] / name) for name in others]
    for path in (not_uploads[-1] / "half", not_uploads[-1]):
        os.utime(path, (1.0, 1.0))  # older than the sweep
    not_uploads.append(left(tmp_path / "sweep" / "checkpoint_000001"))
    ran = fifo(tmp_path, trials=2).restored().run()
    assert not any(path.exists() for path in cut_off)
    assert all(path.is_dir() for path in (*not_uploads, *known_in(tmp_path)))
    assert len(known_in(tmp_path)) == 2 * 6 and before <= known_in(tmp_path)
    names = {path.name for path in known_in(tmp_path) - before}
    assert names and min(names) == "checkpoint_000041", "a process may still be writing there"
    assert complete(ran)
    check_journal(events_in(tmp_path / "sweep"))


def test_decision_during_a_save_lets_the_save_finish(tmp_path):
    """Its folder would be left behind, and no journal would name it."""
    begun = []

    def takes_s(trial: Trial, method: str) -> float:
        begun.extend([trial.trial_id] if method == "save" else [])
        return {"train": 1.0, "save": 2.0}.get(method, 0.0)

    ran = (
        Plan(tmp_path, ASHAScheduler(grace_period=1, max_t=LENGTH, reduction_factor=2), trials=6)
        .training(seconds=takes_s)
        .validating(seconds=3.5)
        .run()
    )
    events = events_in(tmp_path / "sweep")
    assert ran.lengths() and min(ran.lengths().values()) < LENGTH, "some are stopped early"
    assert Counter(begun) == Counter(e.trial_id for e in events if isinstance(e, CheckpointSaved))


def test_upload_that_cannot_be_removed_is_logged_and_the_sweep_completes(
    tmp_path, monkeypatch, caplog
):
    one, _ = killed_two(tmp_path)
    cut_off = left(one / "checkpoint_000040")

    def refuse(filesystem: Any, path: str) -> None:
        raise PermissionError("is read-only")

    monkeypatch.setattr("tunekit._ray.checkpoints.delete_checkpoint", refuse)
    ran = fifo(tmp_path, trials=2).restored().run()
    assert cut_off.is_dir() and "is read-only" in caplog.text
    assert complete(ran)
