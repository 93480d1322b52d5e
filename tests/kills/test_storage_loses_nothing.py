"""Accepted lines and files can be read back, whatever fails and whenever the process is killed."""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs
import pytest

import tunekit
from tests.support.fakes import FakeClock
from tests.support.journals import read
from tests.support.object_store import Store
from tests.support.restores import Saved
from tunekit.core.events import TrialResumed
from tunekit.driver.ledger import Ledger
from tunekit.driver.snapshots import SnapshotWriter
from tunekit.journal import journal
from tunekit.journal.storage import (
    LocalFolder,
    RemoteFolder,
    folder_at,
    replace_file,
    write_file,
)


def whole(folder, series="journal"):
    return b"".join(folder.read(f"{series}/{name}") for name in folder.names(series))


# What fails ---------------------------------------------------------------------------------------


class FullDisk:
    """Lets ``os.write`` fail as a full disk does, after so many bytes."""

    def __init__(self, monkeypatch):
        self.left: float = float("inf")
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        fits = int(min(self.left, len(data)))
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= fits
        return self._write(descriptor, data[:fits])


def test_full_disk_loses_no_journal_line_and_leaves_no_partial_one(tmp_path, monkeypatch, caplog):
    disk, folder = FullDisk(monkeypatch), LocalFolder(tmp_path)
    folder.append("journal", b"one\n")
    disk.left = 2
    folder.append("journal", b"two\n")
    folder.append("journal", b"three\n")
    assert whole(folder) == b"one\n"
    assert len(caplog.records) == 1 and str(tmp_path) in caplog.text
    assert not folder.settle(0.0)
    disk.left = float("inf")
    folder.append("journal", b"four\n")
    assert whole(folder) == b"one\ntwo\nthree\nfour\n"
    assert len(caplog.records) == 2, "that it works again"
    assert folder.settle(0.0)


def test_partial_line_that_cannot_be_truncated_stays_the_last_of_its_file(tmp_path, monkeypatch):
    disk, folder = FullDisk(monkeypatch), LocalFolder(tmp_path)
    folder.append("journal", b"one\n")
    cut = monkeypatch.setattr
    cut(os, "ftruncate", lambda descriptor, size: (_ for _ in ()).throw(OSError("read-only")))
    disk.left = 2
    folder.append("journal", b"two\n")
    disk.left = float("inf")
    folder.append("journal", b"three\n")
    assert [folder.read(f"journal/{name}") for name in folder.names("journal")] == [
        b"one\ntw",
        b"two\nthree\n",
    ]


def folder_in(store, root="bucket/sweep"):
    return RemoteFolder(store.filesystem, root, sleep=lambda seconds: False)


def test_lines_wait_in_the_background_for_a_failing_storage_and_upload_in_batches(caplog):
    store, gate, errors = Store(), threading.Event(), iter([OSError("503 Slow Down")])
    store.errors["open"] = lambda path: next(errors, None) if gate.wait(10) else OSError("it hangs")
    folder = folder_in(store)
    expected = [b"%d\n" % number for number in range(100)]
    for line in expected:
        folder.append("journal", line)  # none waits for the storage
    folder.put("state/a.zip", b"state")
    folder.append("journal", b"last\n")
    assert not folder.settle(0.01), "it does not keep the driver"
    gate.set()
    assert folder.settle(10)
    assert whole(folder) == b"".join(expected) + b"last\n"
    assert folder.read("state/a.zip") == b"state"
    uploads = [one for one in store.operations if one.startswith("open")]
    assert len(uploads) <= 4  # the first line or more, the rest, the file, the last line
    assert "503 Slow Down" in caplog.text and "it hangs" not in caplog.text
    folder.close()


def test_large_journal_is_split_into_several_objects():
    folder = folder_in(Store())
    line = b"x" * 100_000 + b"\n"
    for _ in range(7):
        folder.append("journal", line)
        assert folder.settle(10)
    assert len(folder.names("journal")) == 3
    assert whole(folder) == line * 7
    folder.close()


# Kills --------------------------------------------------------------------------------------------


def life(store, left, lines=5):
    """One session: lines one by one, and a file between them, until it is killed.

    Return the number of the last accepted line, and the confirmed contents of the files.
    """
    folder, patience_s = folder_in(store), 10 if left is None else 0.05
    files = {name: folder.read(f"state/{name}") for name in folder.names("state")}
    store.left = left
    record = journal.Journal(folder, begins=not folder.names("journal"))
    confirmed = record.last - 1
    for number in range(lines + 1):
        if number:
            record.append(TrialResumed(trial_id="a"))
        if not folder.settle(patience_s):
            break
        confirmed = record.last
        if number == 2:
            files.pop("a.zip", None)  # either may be there
            data = b"state as of %d" % confirmed
            folder.put("state/a.zip", data)
            if not folder.settle(patience_s):
                break
            files["a.zip"] = data
    store.left = 0 if left is not None else None
    folder.close()
    store.left = None
    return confirmed, files


def test_kill_at_any_storage_operation_loses_no_confirmed_line_or_file():
    for left in itertools.count():
        store = Store()
        _, before = life(store, None)
        done = len(store.operations)
        confirmed, files = life(store, left)
        died = len(store.operations) == done + left
        found = folder_in(store)
        numbers = [one["n"] for one in read(found)]
        # That none is missing between them is what reading checks.
        assert (numbers or [1])[-1] >= confirmed or confirmed == 7, left
        for name in before:
            assert found.read(f"state/{name}").startswith(b"state as of "), left
        for name, data in files.items():
            assert found.read(f"state/{name}") == data, left
        # Who goes on numbers its lines after those that were read.
        confirmed, files = life(store, None)
        found = folder_in(store)
        events = read(found)
        assert events[-1]["n"] == confirmed and len(events) == len(numbers) + 5, left
        assert {name: found.read(f"state/{name}") for name in files} == files, left
        if not died:
            break
    assert left > 20


@pytest.mark.parametrize("fails", ["delete_file", "write", "open", "close"])
def test_occasional_storage_failures_lose_no_line(fails):
    store, draw = Store(), random.Random(0)
    store.errors[fails] = lambda path: OSError("now and then") if draw.random() < 0.4 else None
    for lines in range(1, 4):
        confirmed, _ = life(store, None, lines)
        assert read(folder_in(store))[-1]["n"] == confirmed
    assert confirmed == 9


SURVIVES = ["local", "s3", "gcs", "abfs", "fsspec+s3", "fsspec+('s3', 's3a')"]
SURVIVES += ["fsspec+('gs', 'gcs')", "fsspec+('abfs', 'az', 'abfss')"]


@pytest.mark.parametrize("kind", [*SURVIVES, "fsspec+memory", "fsspec+sftp", "hdfs"])
@pytest.mark.parametrize("below", [False, True])
def test_sweep_in_a_storage_that_shows_partial_files_warns_once_naming_its_path(
    kind, below, tmp_path, caplog
):
    local, path = kind == "local", str(tmp_path)
    filesystem = pyarrow.fs.LocalFileSystem() if local else Store(kind).filesystem
    if below:
        filesystem, path = pyarrow.fs.SubTreeFileSystem(path, filesystem), "sweep"
    storage = SimpleNamespace(storage_filesystem=filesystem, experiment_fs_path=path)
    ledger = Ledger(FakeClock())
    ledger.claim(storage)
    ledger.let_go()
    assert [repr(path) in one for one in caplog.messages] == [True] * (kind not in SURVIVES)
    assert isinstance(folder_at(filesystem, path), LocalFolder) is local


# What a lost machine may cost --------------------------------------------------------------------


class Disk:
    """Notes which files and folders have been handed to the disk, and what was done otherwise."""

    def __init__(self, monkeypatch):
        self.done: list[str] = []
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, descriptor):
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.done.append(f"{kind} {name}" if not name.endswith(".draft") else f"{kind} draft")
        self._fsync(descriptor)

    def replace(self, source, target, **at):
        self.done.append(f"replace {os.path.basename(target)}")
        self._replace(source, target, **at)


def test_put_syncs_a_file_to_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    disk, folder = Disk(monkeypatch), LocalFolder(tmp_path / "sweep")
    folder.put("state/a.zip", b"state")
    at = disk.done.index("replace a.zip")
    assert "file draft" in disk.done[:at] and "folder state" in disk.done[at:]
    assert "folder sweep" in disk.done


def test_journal_lines_are_on_disk_after_sync_and_close(tmp_path, monkeypatch):
    disk, folder = Disk(monkeypatch), LocalFolder(tmp_path / "sweep")
    folder.append("journal", b"one\n")
    assert disk.done.count("file 000001.jsonl") == 0 and "folder journal" in disk.done
    folder.append("journal", b"two\n")
    folder.sync()
    assert whole(folder) == b"one\ntwo\n" and disk.done[-1] == "file 000001.jsonl"
    folder.sync()
    assert disk.done.count("file 000001.jsonl") == 1, "nothing was written since"
    folder.append("journal", b"three\n")
    folder.close()
    assert disk.done.count("file 000001.jsonl") == 2


def test_failing_disk_is_logged_by_sync_and_raised_by_put(tmp_path, monkeypatch, caplog):
    folder = LocalFolder(tmp_path)
    folder.append("journal", b"one\n")

    def fails(descriptor):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fails)
    folder.sync()
    assert "I/O error" in caplog.text
    with pytest.raises(OSError, match=f"Errno {errno.EIO}"):
        folder.put("state/a.zip", b"state")
    assert folder.names("state") == []


def test_file_system_that_cannot_sync_folders_is_written_without_a_warning(
    tmp_path, monkeypatch, caplog
):
    synced = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = LocalFolder(tmp_path)
    folder.append("journal", b"one\n")
    folder.put("state/a.zip", b"state")
    folder.close()
    assert folder.read("state/a.zip") == b"state" and not caplog.text


# What a draft may be in the way of ---------------------------------------------------------------


def test_link_at_a_predictable_draft_path_is_not_written_through(tmp_path):
    """Every possible path of a draft is a link to a user's file."""
    precious, path = tmp_path / "precious", tmp_path / "report.html"
    precious.write_text("precious")
    for link in (".report.html.draft", "report.html.draft", ".report.html.tmp"):
        (tmp_path / link).symlink_to(precious)
    replace_file(path, b"report")
    assert path.read_bytes() == b"report" and not path.is_symlink()
    assert precious.read_text() == "precious"


def test_replaced_file_has_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "report.html", b"report")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o640


# What a user names -------------------------------------------------------------------------------


def test_pipe_named_by_the_user_receives_the_file_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        write_file(path, b"report")
        assert os.read(reader, 100) == b"report"
        os.close(reader)
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_open_file_named_by_the_user_is_appended_to(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        log.write(b"before ")
        log.flush()
        write_file(Path(f"/dev/fd/{log.fileno()}"), b"report")
    assert (tmp_path / "log").read_bytes() == b"before report"


@pytest.mark.parametrize("exists", [True, False])
def test_link_named_by_the_user_stays_and_its_target_is_replaced_atomically(tmp_path, exists):
    target, link = tmp_path / "site/report.html", tmp_path / "report.html"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"old")
    link.symlink_to("site/report.html")
    with open(target if exists else os.devnull, "rb") as reader:
        write_file(link, b"report")
        assert reader.read() == (b"old" if exists else b"")
    assert os.readlink(link) == "site/report.html" and target.read_bytes() == b"report"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("name", ["../x", "state/../../x", "/etc/x", "state/.."])
def test_file_name_that_leads_out_of_the_folder_is_refused_by_every_storage(tmp_path, name):
    home = tmp_path / "a/sweep"
    home.mkdir(parents=True)
    for folder in (LocalFolder(home), RemoteFolder(Store().filesystem, "sweep")):
        for use in (folder.read, folder.remove, lambda n, f=folder: f.put(n, b"")):
            with pytest.raises(tunekit.errors.UnsafeFileError, match=re.escape(name)):
                use(name)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", home]


# What is deleted, and when -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"", b'"event":"snapshot_taken"'], ids=["any-line", "snapshot-line"]
)
def test_archive_stays_until_the_line_naming_its_successor_is_written(tmp_path, monkeypatch, line):
    folder = LocalFolder(tmp_path)
    record = journal.Journal(folder)
    keeper = SnapshotWriter(folder, record, FakeClock())
    keeper.snapshot(Saved())
    [first] = folder.names("state")
    wrote = os.write

    def full(descriptor, data):
        if line in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return wrote(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    record.append(TrialResumed(trial_id="a"))
    keeper.snapshot(Saved())
    named = [one["file"] for one in read(tmp_path, "snapshot_taken")]
    assert named == [f"state/{first}"] and first in folder.names("state")
    monkeypatch.setattr(os, "write", wrote)
    keeper.snapshot(Saved())
    assert [read(tmp_path)[-1]["file"]] == [f"state/{n}" for n in folder.names("state")]


def test_journal_is_on_disk_before_a_superseded_archive_is_deleted(tmp_path, monkeypatch):
    folder = LocalFolder(tmp_path)
    keeper = SnapshotWriter(folder, journal.Journal(folder), FakeClock())
    keeper.snapshot(Saved())
    disk = Disk(monkeypatch)
    unlinked = os.unlink
    monkeypatch.setattr(
        os,
        "unlink",
        lambda path, **at: disk.done.append(f"delete {Path(path).name}") or unlinked(path, **at),
    )
    keeper.snapshot(Saved())
    deleted = disk.done.index("delete 000000002-snapshot.zip")
    assert "file 000001.jsonl" in disk.done[:deleted]
