"""One driver at a time runs a sweep, and the lock of a dead driver does not block the next."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from pyarrow.fs import LocalFileSystem

import tunekit
from tests.support.fakes import FakeClock
from tests.support.kills import Killed, killed_after
from tests.support.object_store import Store
from tests.support.restores import contents, train, tuner
from tests.support.seeds import SCHEDULES
from tests.support.sweeps import Plan
from tunekit.core.events import Reported, SnapshotTaken
from tunekit.driver.ledger import Ledger
from tunekit.journal.journal import Journal
from tunekit.journal.lock import BEAT_S, LOCK, SILENT_S, TAKE_OVER, Driver, DriverLock, driver_of
from tunekit.journal.storage import LocalFolder

LOCAL = LocalFileSystem()


class Elsewhere:
    """A driver on another machine, by the lock that it has written."""

    def __init__(self, folder, clock, filesystem=LOCAL):
        self.file = DriverLock(filesystem, str(folder))
        self.clock = clock
        self.holder = Driver("elsewhere", "gpu7", 4711, heard=clock.time())
        assert self.file.swap(None, self.holder.encoded())

    def beats(self):
        self.file.swap(self.file.read(), replace(self.holder, heard=self.clock.time()).encoded())


def lock(folder, clock=None, filesystem=LOCAL, on_lost=pytest.fail):
    return DriverLock(filesystem, str(folder), clock or FakeClock(), on_lost)


@pytest.fixture(params=["local", "remote"])
def filesystem(request):
    return LOCAL if request.param == "local" else Store().filesystem


@pytest.fixture
def home(filesystem, tmp_path):
    return tmp_path if filesystem is LOCAL else "bucket/sweep"


# Who may -----------------------------------------------------------------------------------------


def test_second_driver_is_refused_naming_process_and_machine_of_the_first(home, filesystem):
    first, second = lock(home, filesystem=filesystem), lock(home, filesystem=filesystem)
    claims = threading.Thread(target=first.claim)
    claims.start()
    claims.join(10)
    with pytest.raises(tunekit.errors.AlreadyRunningError) as caught:
        second.claim()
    text = str(caught.value)
    assert all(fact in text for fact in (str(os.getpid()), platform.node(), TAKE_OVER))
    first.release()
    second.claim()
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        first.claim()
    second.release()


def test_driver_interrupted_while_taking_over_releases_the_lock(tmp_path, monkeypatch):
    lock(tmp_path).claim()
    monkeypatch.setenv(TAKE_OVER, "1")
    storage = SimpleNamespace(storage_filesystem=LOCAL, experiment_fs_path=str(tmp_path))
    clock = FakeClock()
    monkeypatch.setattr(clock, "sleep", Mock(side_effect=KeyboardInterrupt))
    ledger = Ledger(clock)
    with pytest.raises(KeyboardInterrupt):
        ledger.claim(storage)
    monkeypatch.delenv(TAKE_OVER)
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        lock(tmp_path).claim()
    ledger.let_go()
    lock(tmp_path).claim()


def test_driver_on_another_machine_holds_the_lock_until_its_heartbeat_is_stale(home, filesystem):
    clock = FakeClock()
    other = Elsewhere(home, clock, filesystem)
    clock.sleep(SILENT_S - 1)
    other.beats()
    clock.sleep(SILENT_S - 1)
    with pytest.raises(tunekit.errors.AlreadyRunningError, match=r"4711.*gpu7"):
        lock(home, clock, filesystem).claim()
    clock.sleep(1)
    lock(home, clock, filesystem).claim()


def test_driver_that_was_taken_over_gets_an_error_and_leaves_the_lock(
    home, filesystem, monkeypatch, caplog
):
    clock, told = FakeClock(), []
    first = lock(home, clock, filesystem, told.append)
    first.claim()
    monkeypatch.setenv(TAKE_OVER, "1")
    began = clock.monotonic()
    second = lock(home, clock, filesystem)
    second.claim()
    assert clock.monotonic() - began > BEAT_S, "the first has had time to notice"
    assert f"process {os.getpid()} " in caplog.text
    first.beat()
    first.beat()
    [error] = told
    assert isinstance(error, tunekit.errors.AlreadyRunningError)
    first.release()
    assert driver_of(filesystem, str(home), clock.time()) is not None
    second.release()
    assert driver_of(filesystem, str(home), clock.time()) is None


HOLDER = Driver("t", "gpu7", 7, heard=1.0)
MALFORMED = [b"", b"[]", b"null", b'{"token": "t"}', b"\xff\xfe", b"[" * 50_000]
MALFORMED += [replace(HOLDER, **odd).encoded() for odd in ({"pid": 2**80}, {"heard": 1e300})]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: data[-60:].decode(errors="replace"))
def test_malformed_lock_names_no_driver_and_is_replaced(data, home, filesystem):
    clock = FakeClock()
    DriverLock(filesystem, str(home)).swap(None, data)
    assert driver_of(filesystem, str(home), 0.0) is None
    lock(home, clock, filesystem).claim()
    assert driver_of(filesystem, str(home), clock.time()).alive


def test_deleted_lock_is_written_again_at_the_next_heartbeat(home, filesystem):
    clock = FakeClock()
    held = lock(home, clock, filesystem)
    held.claim()
    file = DriverLock(filesystem, str(home))
    file.swap(file.read(), None)
    clock.sleep(BEAT_S)
    held.beat()
    assert driver_of(filesystem, str(home), clock.time()).alive


def test_failing_storage_at_a_heartbeat_does_not_lose_the_lock():
    store, clock = Store(), FakeClock()
    held = lock("sweep", clock, store.filesystem)
    held.claim()
    store.errors["open"] = lambda path: OSError("503 Slow Down")
    clock.sleep(BEAT_S)
    held.beat()
    del store.errors["open"]
    clock.sleep(BEAT_S)
    held.beat()
    assert driver_of(store.filesystem, "sweep", clock.time()).heard == clock.time()


# At the same moment ------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True])
def test_one_of_several_drivers_that_start_together_gets_the_lock(tmp_path, stale):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.Queue()

    def claim_at_once(folder):
        barrier.wait()
        try:
            DriverLock(LOCAL, folder).claim()
            results.put(True)
        except tunekit.errors.AlreadyRunningError:
            results.put(False)
        barrier.wait()  # nobody ends before all have tried

    for attempt in range(2 * SCHEDULES):
        folder = str(tmp_path / str(attempt))
        if stale:
            Elsewhere(folder, FakeClock(epoch=0.0))
        drivers = [context.Process(target=claim_at_once, args=(folder,)) for _ in range(6)]
        for driver in drivers:
            driver.start()
        got = [results.get(timeout=30) for _ in drivers]
        for driver in drivers:
            driver.join(30)
        assert sorted(got) == [False] * 5 + [True]


def test_driver_whose_lock_is_overwritten_in_an_object_store_is_refused():
    store = Store()
    rival = lock("sweep", filesystem=store.filesystem)

    class Slow(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if rival._mine is None:  # it has looked before this one wrote, and writes after it
                store.files.clear()
                rival.claim()

    with pytest.raises(tunekit.errors.AlreadyRunningError):
        lock("sweep", Slow(), store.filesystem).claim()


# Dead drivers ------------------------------------------------------------------------------------

CLAIM = (
    "import sys, time; from pyarrow.fs import LocalFileSystem; from tunekit.journal.lock import "
    "DriverLock; DriverLock(LocalFileSystem(), sys.argv[1]).claim(); print('held', flush=True); "
    "time.sleep(60)"
)


def test_lock_of_a_killed_driver_is_taken_at_once(tmp_path):
    driver = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout.readline() == "held\n"
        clock = FakeClock(epoch=time.time())
        with pytest.raises(tunekit.errors.AlreadyRunningError, match=rf"\b{driver.pid}\b"):
            lock(tmp_path, clock).claim()
        assert driver_of(LOCAL, str(tmp_path), clock.time()).alive
        driver.kill()
        driver.wait()
        assert not driver_of(LOCAL, str(tmp_path), clock.time()).alive
        lock(tmp_path, clock).claim()
        assert clock.monotonic() == 0.0
    finally:
        driver.kill()
        driver.wait()


# Where a process ID means the same ---------------------------------------------------------------

BOOT, PIDS = "sys/kernel/random/boot_id", "self/ns/pid"
OTHER = 5_000_000  # more than any system has


@pytest.fixture
def proc(tmp_path):
    """What a system shows of this process and another one."""
    for pid, ticks in ((os.getpid(), 100), (OTHER, 200)):
        file = tmp_path / f"proc/{pid}/stat"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"%d (a) R) S %s%d 0 0" % (pid, b"7 " * 18, ticks))
        (file.parent / "ns").mkdir()
        (file.parent / "ns/pid").symlink_to("pid:[4026531836]")
    root = tmp_path / "proc"
    (root / "self").symlink_to(str(os.getpid()))
    (root / BOOT).parent.mkdir(parents=True)
    (root / BOOT).write_text("boot\n")
    return root


def relinked(path, target):
    path.unlink()
    path.symlink_to(target)


#: What has changed since the other process wrote its lock, and what shows of that process.
CHANGES = {
    "nothing": (lambda proc: None, b"1 (a) S " + b"7 " * 18 + b"200", True),
    "process has ended": (lambda proc: None, None, False),
    "process ID is reused": (lambda proc: None, b"1 (a) S " + b"7 " * 30, False),
    "unreadable stat": (lambda proc: None, b"1 (", False),
    "another boot": (lambda proc: (proc / BOOT).write_text("next"), None, True),
    "no boot ID": (lambda proc: (proc / BOOT).unlink(), None, True),
    "another namespace": (lambda proc: relinked(proc / PIDS, "pid:[7]"), None, True),
    "proc of another namespace": (lambda proc: relinked(proc / "self", str(OTHER)), None, True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_driver_counts_as_ended_only_if_its_process_id_is_of_this_system(change, proc):
    apply, stat, alive = CHANGES[change]
    here = Driver.here(10.0, proc)
    assert here.started == 100 and here.is_alive(10.0, proc)
    driver = Driver.decoded(replace(here, pid=OTHER, started=200).encoded())
    assert driver.is_alive(10.0, proc)
    apply(proc)
    file = proc / f"{OTHER}/stat"
    file.unlink() if stat is None else file.write_bytes(stat)
    assert driver.is_alive(10.0, proc) is alive
    assert not driver.is_alive(10.0 + SILENT_S, proc)


@pytest.mark.parametrize("error", [PermissionError, None])
def test_driver_whose_process_the_system_hides_counts_as_alive(proc, error, monkeypatch):
    """Those of other users are hidden with hidepid."""
    driver = replace(Driver.here(10.0, proc), pid=OTHER)
    (proc / f"{OTHER}/stat").unlink()
    assert not driver.is_alive(10.0, proc)
    kill = Mock(side_effect=error)
    monkeypatch.setattr(os, "kill", kill)
    assert driver.is_alive(10.0, proc)
    assert not driver.is_alive(10.0 + SILENT_S, proc)
    kill.assert_called_with(OTHER, 0)


# In a sweep --------------------------------------------------------------------------------------


def test_sweep_holds_its_lock_until_it_has_ended(tmp_path):
    ran = Plan(tmp_path, trials=3).start()
    for _ in range(30):
        ran.sweep.step()
    driver = driver_of(LOCAL, str(ran.home), FakeClock().time())
    assert driver.alive and driver.pid == os.getpid()
    ran.sweep.run()
    assert not (ran.home / LOCK).exists()
    summary = tunekit.load(ran.home).summary()
    assert summary["state"] == "finished" and summary["driver"] is None


def records_in(home: Path) -> list[dict[str, bytes]]:
    return [contents(home / name) for name in ("journal", "state")]


@pytest.mark.parametrize("resumes", [False, True], ids=["new", "restored"])
def test_sweep_in_a_folder_with_a_live_driver_is_refused_and_writes_nothing(tmp_path, resumes):
    home, plan = tmp_path / "sweep", Plan(tmp_path, trials=3)
    if resumes:
        with pytest.raises(Killed), killed_after(60):
            plan.tuning(saved_every_s=0.0).run()
        plan = plan.restored()
        (home / LOCK).unlink()
    lock(home).claim()
    before = records_in(home)
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        plan.run()
    assert records_in(home) == before


def test_sweep_that_was_taken_over_stops_and_writes_nothing_more(tmp_path):
    ran = Plan(tmp_path, trials=3).tuning(saved_every_s=0.0).start()
    for _ in range(20):
        ran.sweep.step()
    home = ran.home
    other = DriverLock(LOCAL, str(home))
    mine = other.read()
    assert other.swap(mine, replace(Driver.decoded(mine), token="another", pid=1).encoded())
    ran.validation.ledger._lock.beat()  # as its thread does

    before = records_in(home)
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        ran.sweep.run()
    ran.sweep.controller.cleanup()
    assert records_in(home) == before
    assert Driver.decoded(other.read()).token == "another", "the lock is the other's"


# By Tuner, and on the command line ---------------------------------------------------------------


def test_tuner_leaves_the_folder_of_a_running_sweep_unchanged(tmp_path):
    tuner(tmp_path)
    tuner(tmp_path)  # no driver runs it
    home = tmp_path / "sweep"
    journal = Journal(LocalFolder(home))
    journal.append(SnapshotTaken(file="state/000000001-snapshot.zip"))
    lock(home, FakeClock(epoch=time.time())).claim()
    before = contents(home)
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        tuner(tmp_path, checkpoint_policy=tunekit.EveryIterations(2))
    with pytest.raises(tunekit.errors.AlreadyRunningError):
        tunekit.Tuner.restore(str(home), train)
    assert contents(home) == before
    assert tunekit.load(home).summary()["state"] == "running"


def test_failed_restore_releases_the_lock(tmp_path):
    tuner(tmp_path)
    home = tmp_path / "sweep"
    journal = Journal(LocalFolder(home))
    journal.append(SnapshotTaken(file="state/gone.zip"))
    journal.append(Reported(trial_id="a", report={"training_iteration": 1}))
    journal.close()
    for _ in range(2):
        with pytest.raises(tunekit.errors.RestoreError):
            tunekit.Tuner.restore(str(home), train)
    assert not (home / LOCK).exists()
