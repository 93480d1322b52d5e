from __future__ import annotations

import errno
import os
import threading

import pyarrow.fs
from fsspec.implementations.local import LocalFileSystem

from tunekit.journal.storage import LocalFolder, RemoteFolder, folder_at


def whole(folder, series="journal"):
    return b"".join(folder.read(f"{series}/{name}") for name in folder.names(series))


class Disk:
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


def test_a_full_disk_loses_no_line_and_leaves_no_half_of_one(tmp_path, monkeypatch, caplog):
    disk, folder = Disk(monkeypatch), LocalFolder(tmp_path)
    folder.append("journal", b"one\n")
    disk.left = 2
    folder.append("journal", b"two\n")
    folder.append("journal", b"three\n")
    assert whole(folder) == b"one\n"
    assert "No space left" in caplog.text or "bytes could be written" in caplog.text
    assert not folder.settle(0.0)
    disk.left = float("inf")
    folder.append("journal", b"four\n")
    assert whole(folder) == b"one\ntwo\nthree\nfour\n"
    assert "written to" in caplog.text and "again" in caplog.text
    assert folder.settle(0.0)


def test_half_of_a_line_that_cannot_be_cut_stays_the_last_of_its_file(tmp_path, monkeypatch):
    disk, folder = Disk(monkeypatch), LocalFolder(tmp_path)
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


class Faulty(pyarrow.fs.FSSpecHandler):
    """A storage that is not local, and fails when it is told to."""

    def __init__(self):
        super().__init__(LocalFileSystem(auto_mkdir=True))
        self.fails = False
        self.uploads = 0
        self.gate = threading.Event()
        self.gate.set()

    def open_output_stream(self, path, metadata):
        assert self.gate.wait(10)
        if self.fails:
            raise OSError("503 Slow Down")
        self.uploads += 1
        return super().open_output_stream(path, metadata)


def remote(tmp_path):
    faulty = Faulty()
    filesystem = pyarrow.fs.PyFileSystem(faulty)
    folder = folder_at(filesystem, f"{tmp_path}/sweep")
    assert isinstance(folder, RemoteFolder)
    return faulty, folder


def test_lines_are_uploaded_behind_in_order_and_together(tmp_path):
    faulty, folder = remote(tmp_path)
    faulty.gate.clear()
    expected = [b"%d\n" % number for number in range(100)]
    for line in expected:
        folder.append("journal", line)  # none waits for the storage
    folder.put("state/a.zip", b"state")
    folder.append("journal", b"last\n")
    faulty.gate.set()
    assert folder.settle(10)
    assert whole(folder) == b"".join(expected) + b"last\n"
    assert folder.read("state/a.zip") == b"state"
    assert faulty.uploads <= 4  # the first line or more, the rest, the file, the last line
    folder.close()


def test_a_failing_storage_is_tried_again_and_gets_everything(tmp_path, caplog):
    faulty = Faulty()
    tried = threading.Event()

    def sleep(seconds):
        tried.set()
        return False

    folder = RemoteFolder(pyarrow.fs.PyFileSystem(faulty), f"{tmp_path}/sweep", sleep)
    faulty.fails = True
    folder.append("journal", b"one\n")
    assert tried.wait(10) and not folder.settle(0.01)
    assert "503 Slow Down" in caplog.text
    folder.append("journal", b"two\n")
    faulty.fails = False
    assert folder.settle(10)
    assert whole(folder) == b"one\ntwo\n"
    folder.close()


def test_a_storage_that_never_works_does_not_keep_the_driver(tmp_path):
    faulty, folder = remote(tmp_path)
    faulty.fails = True
    folder.append("journal", b"one\n")
    assert not folder.settle(0.05)
    folder.close()


def test_a_large_journal_is_several_objects(tmp_path):
    _, folder = remote(tmp_path)
    line = b"x" * 100_000 + b"\n"
    for _ in range(7):
        folder.append("journal", line)
        assert folder.settle(10)
    assert len(folder.names("journal")) == 3
    assert whole(folder) == line * 7
    folder.close()
