"""Sweeps that are killed at a line of their journal, and restored until they end."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace
from ray.train._internal.syncer import _BackgroundProcess

from tests.support.invariants import JournalSummary, check_journal
from tests.support.sweeps import Plan, Ran
from tunekit.core.events import SnapshotTaken
from tunekit.driver import ledger
from tunekit.journal.journal import events_in
from tunekit.journal.lock import LOCK, Driver
from tunekit.journal.storage import LocalFolder


class Killed(BaseException):
    """The driver was killed."""


class DoomedFolder(LocalFolder):
    """A folder whose process is killed after a number of writes.

    ``torn``: in the middle of writing the last one.
    """

    def __init__(self, root: Path, writes: Iterator[int], torn: bool):
        super().__init__(root)
        self._writes, self._torn = writes, torn

    def _write_line(self, series: str, line: bytes) -> None:
        if next(self._writes) > 0:
            super()._write_line(series, line)
            return
        if self._torn:
            super()._write_line(series, line[: len(line) // 2])
        raise Killed

    def put(self, name: str, data: bytes) -> None:
        if next(self._writes) <= 0:
            if self._torn:
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_name(f".{path.name}.draft").write_bytes(data[: len(data) // 2])
            raise Killed
        super().put(name, data)


@contextmanager
def killed_after(writes: int, *, torn: bool = False) -> Iterator[None]:
    """Kill a sweep instead of the write after the given number.

    A killed driver no longer copies anything. The threads in which Tune copies its state live on
    here, and are waited for: what is read afterwards does not change, nor is it half written.
    """
    countdown = iter(range(writes, -1, -1))
    copies: list[_BackgroundProcess] = []
    homes: set[Path] = set()
    start = _BackgroundProcess.start

    def folder_at(filesystem: Any, path: str) -> DoomedFolder:
        homes.add(Path(path))
        return DoomedFolder(Path(path), countdown, torn)

    def started(self: _BackgroundProcess, *args: Any, **kwargs: Any) -> bool:
        copies.append(self)
        return start(self, *args, **kwargs)

    with mock.patch.object(ledger, "folder_at", folder_at):
        try:
            with mock.patch.object(_BackgroundProcess, "start", started):
                yield
        finally:
            for home in homes:
                bury(home)
            for copy in copies:
                with suppress(Exception):  # it may fail, as a killed driver's does
                    copy.wait()


def bury(home: Path) -> None:
    """Make the driver of a sweep a dead process instead of this one."""
    file = home / LOCK
    holder = Driver.decoded(file.read_bytes()) if file.exists() else None
    if holder is not None:
        file.write_bytes(replace(holder, pid=2**22 + 1).encoded())


def killed_at_each(
    folder: Path, make: Callable[[Path], Plan], every: int, start: int = 0
) -> Iterator[tuple[Ran, JournalSummary]]:
    """Run sweeps that are each killed once, every few writes later; the last one is not killed."""
    for at in itertools.count(start, every):
        ran, kills = run_killed(folder / str(at), make, iter([at]), torn=bool(at // every % 2))
        lives = check_journal(events_in(ran.home))
        lives.running = 0  # is another matter
        yield ran, lives
        if not kills:
            return


def run_killed(
    folder: Path,
    make: Callable[[Path], Plan],
    lives: Iterator[int],
    *,
    torn: bool = False,
    elsewhere: bool = True,
    most: int = 200,
) -> tuple[Ran, int]:
    """Run a sweep that is killed after a number of writes in each session, and then to its end.

    Args:
        folder: Where it goes.
        make: Returns the plan of the sweep in a folder.
        lives: After how many writes it is killed, life by life.
        torn: Whether the last write is torn.
        elsewhere: Whether it is restored on another machine, without the driver's own copies.
        most: How many lives it may have.

    Returns:
        The sweep's last life, and how often it was killed.
    """
    kills, home = 0, folder / "sweep"
    begun = False
    while kills < most:
        writes = next(lives, None)
        plan = make(folder)
        if begun:
            plan = plan.restored()
        try:
            with nullcontext() if writes is None else killed_after(writes, torn=torn):
                return plan.run(), kills
        except Killed:
            kills += 1
        if elsewhere:
            shutil.rmtree(f"{folder}-session", ignore_errors=True)
        events = events_in(home) if (home / "journal").is_dir() else []
        begun = any(isinstance(event, SnapshotTaken) for event in events)
        if not begun:
            shutil.rmtree(home)
    raise AssertionError(f"The sweep is not over after {kills} kills.")
