"""``follow`` validates each checkpoint that another program writes into a folder, once."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from ray import tune

import tunekit
from tests.support.fakes import FakeClock, FakeExecutor
from tests.support.kills import DoomedFolder, Killed
from tests.support.readers import tunekit_, validate_here
from tunekit.core.events import ValidationEnded
from tunekit.following import follow, loop, record
from tunekit.following.folder import REST_S
from tunekit.journal.journal import Journal, events_in
from tunekit.journal.lock import LOCK
from tunekit.journal.storage import LocalFolder

CALLS: Counter[str] = Counter()


class World(FakeClock):
    """Time, and what happens at which: a writer's doings, in seconds after the start."""

    def __init__(self, root: Path):
        super().__init__()
        self.root, self._script = root, []
        #: How long an evaluation takes, and how many run at once.
        self.takes_s, self.slots = 0.0, 1_000_000

    def at(self, seconds: float, action: Callable[..., Any], *given: Any, **named: Any) -> None:
        self._script.append((seconds, len(self._script), lambda: action(*given, **named)))
        self._script.sort(key=lambda one: one[:2])

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self._script and self._script[0][0] <= self.monotonic():
            self._script.pop(0)[2]()
        if self.monotonic() > 10_000:
            raise TimeoutError("it does not end")

    # What a writer does

    def write(self, name: str, content: str = "w", file: str = "w.bin") -> None:
        """Write a file of a checkpoint; what is written has the time of this world."""
        path = self.root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        for one in (path, path.parent):
            os.utime(one, (self.time(), self.time()))

    def save(self, step: int, *, run: str = "", limit: int | None = None, last: int = 0) -> None:
        """Save as transformers.Trainer does, and rotate to ``limit`` checkpoints."""
        name = f"{run}/checkpoint-{step}" if run else f"checkpoint-{step}"
        self.write(name, str(step), "model.safetensors")
        log = [{"step": step, "loss": 1 / step}]
        state = {"global_step": step, "max_steps": last, "log_history": log}
        self.write(name, json.dumps(state), "trainer_state.json")
        steps = sorted(int(one.name[11:]) for one in (self.root / run).glob("checkpoint-*"))
        for old in steps[:-limit] if limit else ():
            shutil.rmtree(self.root / run / f"checkpoint-{old}")

    def done(self) -> None:
        (self.root / "done").write_text("")


def accuracy(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    with checkpoint.as_directory() as folder:
        step = int(Path(folder, "model.safetensors").read_text())
    CALLS[checkpoint.path] += 1
    return {"accuracy": step % 7 / 10}


def content(checkpoint: tune.Checkpoint) -> dict[str, Any]:
    """What is in a file, or in a folder's only file."""
    path = Path(checkpoint.path)
    CALLS[checkpoint.path] += 1
    own = path if path.is_file() else next(path.iterdir())
    return {"value": own.read_text()}


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    root = tmp_path / "outputs"
    root.mkdir()
    world = World(root)

    def made(clock: Any, validate: Any) -> FakeExecutor:
        return FakeExecutor(world, validate, lambda attempt: world.takes_s, slots=world.slots)

    CALLS.clear()
    validate_here(monkeypatch, made)
    monkeypatch.setattr(loop, "_WAIT_S", 0.2)  # of the world's time
    for module in (loop, record, follow):
        monkeypatch.setattr(module, "time", world)
    return world


def rows(world: World) -> list[tuple[Any, ...]]:
    table = tunekit.load(world.root).validations
    found = table[["trial_id", "iteration", "run", "status"]].itertuples(index=False, name=None)
    return sorted(found)


# What is evaluated -------------------------------------------------------------------------------


def test_checkpoints_are_scored_at_their_steps_as_they_appear(world):
    for number, step in enumerate((10, 20, 30)):
        world.at(5.0 * number, world.save, step)
    world.at(20.0, world.done)
    world.sleep(0)
    tunekit.follow(world.root, accuracy, until="done", metric="accuracy", mode="max")
    sweep = tunekit.load(world.root)
    assert rows(world) == [("outputs", step, 1, "validated") for step in (10, 20, 30)]
    assert list(sweep.reports["accuracy"]) == [0.3, 0.6, 0.2]
    assert list(sweep.reports["loss"]) == [0.1, 0.05, 1 / 30]
    assert sweep.best().iteration == 20 and sweep.best().checkpoint is not None
    assert sweep.summary()["state"] == "finished" and sweep.trials["status"][0] == "terminated"
    assert max(sweep.validations["lag_s"]) < 1.0


@pytest.mark.parametrize("until", [20, "done"])
def test_follow_ends_at_the_step_or_the_file_that_until_names(world, until):
    def finish() -> None:
        world.save(20)
        world.done()

    world.save(10)
    world.at(20.0, finish)
    world.at(25.0, world.save, 30)
    tunekit.follow(world.root, accuracy, until=until)
    assert [row[1] for row in rows(world)] == [10, 20] and world.monotonic() < 30.0


def test_each_run_in_the_folder_is_a_trial(world):
    for run in ("a", "b"):
        for step in (10, 20):
            world.save(step, run=run, last=20)
    tunekit.follow(world.root, accuracy, metric="accuracy", mode="max")
    assert {row[0] for row in rows(world)} == {"a", "b"} and len(rows(world)) == 4
    assert set(tunekit.load(world.root).trials["folder"]) == {"a", "b"}


def test_newest_checkpoint_is_validated_first_and_none_is_skipped(world):
    world.takes_s, world.slots = 10.0, 1
    for step in (1, 2, 3, 4):
        world.at(3.0 * step, world.save, step)
    world.at(20.0, world.done)
    tunekit.follow(world.root, accuracy, until="done")
    assert [Path(path).name for path in CALLS] == [f"checkpoint-{n}" for n in (1, 4, 3, 2)]


# When it is complete -----------------------------------------------------------------------------


def test_incomplete_checkpoint_is_validated_only_once_it_is_complete(world, caplog):
    world.save(10)
    world.write("checkpoint-20", "20", "model.safetensors")  # killed before the state
    world.write("checkpoint-30", "30", "model.safetensors")
    world.write("checkpoint-30", '{"global_st', "trainer_state.json")
    world.at(3 * REST_S, world.done)
    tunekit.follow(world.root, accuracy, until="done")
    assert rows(world) == [("outputs", 10, 1, "validated")]
    for step in (20, 30):
        assert re.search(rf"checkpoint-{step} .*trainer_state.json", caplog.text)
    world.save(20)  # by a training that was resumed
    world.save(30)
    for _ in range(2):
        tunekit.follow(world.root, accuracy, until="done")
    assert rows(world) == [("outputs", step, 1, "validated") for step in (10, 20, 30)]
    assert set(CALLS.values()) == {1}


def test_checkpoint_of_a_known_format_is_validated_once_its_last_file_is_there(world):
    for second in range(0, 90, 10):
        world.at(second, world.write, "step-5", "x", f"__{second}_0.distcp")
    world.at(100, world.write, "step-5", "m", ".metadata")
    world.at(101, world.done)
    tunekit.follow(world.root, lambda checkpoint: {"at": world.monotonic()}, until="done")
    sweep = tunekit.load(world.root)
    assert 100 <= sweep.validations["metrics/at"][0] < 101


def test_checkpoint_of_an_unknown_format_is_validated_once_it_no_longer_changes(world):
    for second in (0, 20, 40):
        world.at(second, world.write, "step_5", "x", f"{second}.bin")
    world.at(41, world.done)
    world.sleep(0)
    tunekit.follow(world.root, lambda checkpoint: {"at": world.monotonic()}, until="done")
    at = tunekit.load(world.root).validations["metrics/at"][0]
    assert 40 + REST_S <= at < 42 + REST_S


@pytest.mark.parametrize("keep", [False, True])
def test_checkpoint_of_a_single_file_is_passed_as_a_folder_with_that_file(world, tmp_path, keep):
    for step in (10, 20):
        with zipfile.ZipFile(world.root / f"epoch={step // 10}-step={step}.ckpt", "w") as archive:
            archive.writestr("weights", str(step))

    def evaluate(checkpoint):
        with checkpoint.as_directory() as folder:
            (name,) = os.listdir(folder)
            with zipfile.ZipFile(Path(folder, name)) as archive:
                return {"value": float(archive.read("weights")), "file": name}

    follow_all(world, evaluate, keep=keep)
    sweep = tunekit.load(world.root)
    found = sweep.validations.set_index("iteration")
    assert dict(found["metrics/value"]) == {10: 10.0, 20: 20.0}
    assert set(found["metrics/file"]) == {"epoch=1-step=10.ckpt", "epoch=2-step=20.ckpt"}
    best = sweep.best("value", "max").checkpoint
    assert os.listdir(best.to_directory(tmp_path / "copy")) == ["epoch=2-step=20.ckpt"]


def test_only_checkpoints_registered_by_ray_train_are_validated_with_their_metrics(world):
    for name in ("checkpoint_2026-01-01_00-00-00.1", "checkpoint_2026-01-01_00-00-09.1"):
        world.write(name)
    first = {"checkpoint_dir_name": "checkpoint_2026-01-01_00-00-00.1", "metrics": {"loss": 0.5}}
    state = {"checkpoint_results": [first], "checkpoint_report_indices": [0]}
    (world.root / "checkpoint_manager_snapshot.json").write_text(json.dumps(state))
    assert follow_all(world) == [1] and tunekit.load(world.root).reports["loss"][0] == 0.5


# Deleted, replaced, renamed ----------------------------------------------------------------------


def falls_behind(world: World, folder: Any, **how: Any) -> dict[str, set[int]]:
    """Save every 3 seconds, keep two, and evaluate for 10 seconds; return the outcomes."""
    world.takes_s, world.slots = 10.0, 1
    for step in range(1, 9):
        world.at(3.0 * step, world.save, step, limit=2, last=8)
    tunekit.follow(folder, accuracy, **how)
    found: dict[str, set[int]] = {"validated": set(), "skipped": set()}
    for _, step, _, status in rows(world):
        found[status].add(step)
    return found


def test_checkpoint_deleted_while_queued_is_skipped_with_a_reason(world):
    found = falls_behind(world, world.root)
    assert found["validated"] | found["skipped"] == set(range(1, 9)) and found["skipped"]
    assert {8, 7} <= found["validated"]
    table = tunekit.load(world.root).validations
    assert all(table.reason[table.status != "validated"])


@pytest.mark.parametrize("below", [False, True], ids=["local", "subtree"])
def test_checkpoint_deleted_while_queued_is_validated_with_keep(world, below):
    where: dict[str, Any] = {"folder": world.root}
    if below:
        local = pyarrow.fs.LocalFileSystem()
        inner = pyarrow.fs.SubTreeFileSystem(str(world.root.parent), local)
        where = {"folder": "outputs", "storage_filesystem": inner}
    found = falls_behind(world, keep=True, **where)
    assert found == {"validated": set(range(1, 9)), "skipped": set()}
    assert not list((world.root / "kept").rglob("*.safetensors"))
    left = sorted(one.name for one in world.root.glob("checkpoint-*"))
    assert left == ["checkpoint-7", "checkpoint-8"]


def test_checkpoint_written_again_is_validated_again(world):
    world.save(5)
    world.at(10, shutil.rmtree, world.root / "checkpoint-5")
    world.at(10, world.save, 5)
    world.at(20, world.write, "checkpoint-5", "noise", "notes.txt")  # which is no new checkpoint
    world.at(30, world.done)
    tunekit.follow(world.root, accuracy, until="done")
    assert rows(world) == [("outputs", 5, 1, "validated"), ("outputs", 5, 2, "validated")]
    tunekit.follow(world.root, accuracy, until="done")
    assert len(rows(world)) == 2


def replaced(world: World, name: str, value: str, *, old: bool = False) -> None:
    """Write a file again, by a new one; ``old``: with an earlier time, as a copy preserves it."""
    path = world.root / name
    new = path.with_name("new")
    new.write_text(value)
    if old:
        os.utime(new, (1e9, 1e9))
    os.replace(new, path)


@pytest.mark.parametrize("old", [False, True], ids=["newer", "copied"])
@pytest.mark.parametrize(
    ("name", "last"),
    [("checkpoint-5", "trainer_state.json"), ("step_5", "weights"), ("step_5.pt", "")],
    ids=["known", "unknown", "file"],
)
def test_checkpoint_of_which_a_file_is_replaced_is_validated_again(world, name, last, old):
    """Neither the folder nor its other files change."""
    value = '{"global_step": 5}'
    world.write(name, "", "model.safetensors") if last else None
    (world.root / name / last if last else world.root / name).write_text(value)
    world.at(40, replaced, world, f"{name}/{last}" if last else name, f"{value} ", old=old)
    world.at(100, world.done)
    tunekit.follow(world.root, lambda checkpoint: {"accuracy": 0.5}, until="done")
    assert [row[2] for row in rows(world)] == [1, 2]
    (world.root / "done").unlink()
    world.at(1, replaced, world, f"{name}/{last}" if last else name, f"{value}  ", old=old)
    world.at(50, world.done)
    tunekit.follow(world.root, lambda checkpoint: {"accuracy": 0.5}, until="done")
    assert [row[2] for row in rows(world)] == [1, 2, 3], "also after a restart"


def test_renamed_checkpoint_is_not_validated_again(world):
    world.write("checkpoint_5", "5", "model.safetensors")
    world.at(40, os.rename, world.root / "checkpoint_5", world.root / "step_5")
    world.at(50, world.done)
    tunekit.follow(world.root, accuracy, until="done")
    assert rows(world) == [("outputs", 5, 1, "validated")]


# Interrupted and continued -----------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_killed_follower_scores_each_checkpoint_once_and_loses_none(world, seed, keep):
    """It is killed twenty times in the middle of a line, or before one."""
    world.takes_s, world.slots = 4.0, 2
    for step in range(1, 31):
        world.at(2.0 * step, world.save, step, limit=2 if keep else None, last=30)
    draw, kills, ended = random.Random(seed), 0, Counter[tuple[int, str]]()
    while True:
        writes = draw.randrange(12) if kills < 20 else 10**9
        doomed = partial(DoomedFolder, writes=count(writes, -1), torn=draw.random() < 0.5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record, "folder_at", lambda _, path, made=doomed: made(Path(path)))
            try:
                tunekit.follow(world.root, accuracy, keep=keep)
                break
            except Killed:
                kills += 1
                (world.root / LOCK).unlink(missing_ok=True)  # it names this process, which lives
    assert kills == 20
    ends = [one for one in events_in(world.root) if isinstance(one, ValidationEnded)]
    ended.update((one.key.iteration, one.status) for one in ends)
    assert set(ended.values()) == {1} and {step for step, _ in ended} == set(range(1, 31))
    if not keep:
        assert rows(world) == [("outputs", step, 1, "validated") for step in range(1, 31)]


def test_scores_of_another_function_go_into_another_journal_or_are_refused(world):
    world.save(5, last=5)
    tunekit.follow(world.root, accuracy)
    with pytest.raises(tunekit.errors.ConfigError, match="--journal"):
        tunekit.follow(world.root, content)
    other = world.root.parent / "other"
    tunekit.follow(world.root, lambda checkpoint: {"f1": 0.5}, journal=other)
    assert tunekit.load(other).validations["metrics/f1"][0] == 0.5


# The command line, and other readers -------------------------------------------------------------


def test_validate_command_prints_a_json_line_for_each_checkpoint_of_a_folder(world, tmp_path):
    (tmp_path / "evals.py").write_text(
        "def score(checkpoint):\n    return {'accuracy': 0.5, 'by': {'kind': 1}}\n"
    )
    for step in (1, 2):
        world.save(step, last=2)
    where = f"{tmp_path}/evals.py:score"
    options = ["validate", str(world.root), "--fn", where, "--follow", "--json"]
    ran = tunekit_(*options)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["step"] for line in lines] == [2, 1] and ran.exit_code == 0
    assert lines[0]["metrics"] == {"accuracy": 0.5, "by/kind": 1}
    goal = ["--metric", "accuracy", "--mode", "max"]
    for read in (["status"], ["best", *goal], ["report"]):
        shown = tunekit_(read[0], world.root, *read[1:])
        assert shown.exit_code == 0, shown.output


def test_folder_of_a_sweep_is_not_followed(world):
    Journal(LocalFolder(world.root)).close()
    with pytest.raises(tunekit.errors.ConfigError, match=str(world.root)):
        tunekit.follow(world.root, accuracy)
    assert not (world.root / LOCK).exists()


# Odd folders and arguments -----------------------------------------------------------------------


def follow_all(world: World, fn: Any = lambda checkpoint: {"f1": 0.5}, **how: Any) -> list[int]:
    """Follow until everything is evaluated; return the steps that have a score."""
    world.at(2 * REST_S, world.done)
    tunekit.follow(world.root, fn, until="done", **how)
    return [row[1] for row in rows(world) if row[3] == "validated"]


def test_checkpoint_names_without_a_step_are_logged_once_with_the_option_to_set(world, caplog):
    silent = ["config.json", "optimizer.pt", "train.log", "checkpoint"]
    for name in (*silent, "last.ckpt", "llama-7b.pt", "model_1795819968184527900.pt", "agent_7.pt"):
        (world.root / name).write_text("w")
    (world.root / "checkpoint-best").mkdir()
    (world.root / "checkpoint-best" / "model_1.pt").write_text("w")  # which is a part of it
    with caplog.at_level(logging.INFO, "tunekit"):
        assert follow_all(world) == [7]
    for name in ("last.ckpt", "llama-7b.pt", "model_1795819968184527900.pt", "checkpoint-best"):
        (logged,) = (one for one in caplog.messages if f"/{name} " in one)
        assert "pattern=" in logged
    assert not any(f"/{name} " in one for name in silent for one in caplog.messages)
    assert not any("model_1.pt" in one for one in caplog.messages)


def test_many_names_without_a_step_are_logged_at_most_ten_times(world, caplog):
    for number in range(100):
        (world.root / f"feature{number}.pt").write_text("w")
    follow_all(world)
    assert 1 <= sum("feature" in one for one in caplog.messages) <= 10


def test_checkpoint_of_several_files_is_validated_once(world, caplog):
    """pix2pix writes the generator after the discriminator, or before it."""
    names = ["10_net_D.pth", "10_net_G.pth", "20_net_G.pth", "20_net_D.pth"]
    for second, name in enumerate(names):
        world.at(second, world.write, ".", name, name)
    with caplog.at_level(logging.INFO, "tunekit"):
        assert follow_all(world, content) == [10, 20]
    values = tunekit.load(world.root).validations["metrics/value"]
    assert sorted(values) == ["10_net_G.pth", "20_net_G.pth"]
    assert any("20_net_D.pth" in one for one in caplog.messages)


def test_pattern_selects_names_with_a_whole_step_and_logs_the_other_matches(world, caplog):
    for name in ("m_7", "m_x", f"m_{2**53 + 1}", "m_-1", "log_9"):
        world.write(name)
    assert follow_all(world, pattern="m_(.*)") == [7]
    assert sum("pattern=" in one for one in caplog.messages) == 3


@pytest.mark.parametrize("snapshot", ["null", "[" * 100_000, '{"checkpoint_results": 7}'])
def test_malformed_snapshot_of_ray_train_counts_as_missing(world, snapshot):
    world.write("checkpoint_7")
    (world.root / "checkpoint_manager_snapshot.json").write_text(snapshot)
    assert follow_all(world) == [7]


@pytest.mark.skipif(sys.platform != "linux", reason="names are UTF-8")
def test_names_that_are_not_utf8_are_logged_and_skipped(world, caplog):
    world.save(10)
    for folder in (world.root, world.root / "checkpoint-10"):
        (folder / os.fsdecode(b"model_\xff_20.pt")).write_text("w")
    assert follow_all(world, accuracy, keep=True) == [10]
    assert sum("UTF-8" in one for one in caplog.messages) == 2


def test_damaged_archive_is_validated_once_it_no_longer_changes(world):
    """Its last records say that it is on several disks."""
    with zipfile.ZipFile(world.root / "model_5.pt", "w") as archive:
        archive.writestr("weights", "w")
    data = (world.root / "model_5.pt").read_bytes()
    locator, end = struct.pack("<4sLQL", b"PK\6\7", 1, 0, 2), data.rindex(b"PK\5\6")
    (world.root / "model_5.pt").write_bytes(data[:end] + locator + data[end:])
    assert follow_all(world) == [5]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_keep_is_refused_if_the_folder_for_copies_is_a_link_or_a_file(world, tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (world.root / "kept").symlink_to(outside) if kind == "link" else world.write(".", "", "kept")
    world.save(10, last=10)
    with pytest.raises(tunekit.errors.ConfigError, match="kept"):
        tunekit.follow(world.root, accuracy, keep=True)
    assert os.listdir(outside) == [] and not (world.root / "journal").exists()


def test_link_that_appears_in_place_of_the_folder_for_copies_is_not_followed(world, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    world.at(5, (world.root / "kept").symlink_to, outside)
    world.at(10, world.save, 10)
    world.at(20, (world.root / "kept").unlink)
    follow_all(world, accuracy, keep=True)
    assert os.listdir(outside) == [] and [row[1] for row in rows(world)] == [10]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("folder", None),
        ("folder", 7),
        ("folder", "nosuch://bucket"),
        ("fn", "accuracy"),
        *(("until", value) for value in ("", True, -1, 0.5)),
        ("pattern", 7),
        ("pattern", b"(1)"),
        ("keep", "yes"),
        ("journal", 7),
        ("storage_filesystem", "s3"),
        ("notify", "print"),
    ],
)
def test_invalid_arguments_of_follow_are_all_reported_and_nothing_is_written(
    world, monkeypatch, name, value
):
    monkeypatch.chdir(world.root)
    given = {"folder": world.root, "fn": accuracy, name: value}
    with pytest.raises(tunekit.errors.ConfigError, match=f"{name}=") as caught:
        tunekit.follow(**given)
    assert caught.value.where == "tunekit.follow" and len(caught.value.problems) == 1
    with pytest.raises(tunekit.errors.ConfigError, match=name) as caught:
        tunekit.follow(**given, mode="most", metric="f1")
    assert len(caught.value.problems) == 2 and os.listdir(world.root) == []
