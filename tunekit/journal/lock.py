"""The lock of a sweep: one driver at a time goes on with it.

It is a file in the journal's folder, ``journal/driver.json``, that says who the driver is and when
it was last heard of (:mod:`tunekit.core.driver_lock`). In a local folder, also a mounted one, of
two that begin at the same moment one gets it. An object store has nothing that only one can make:
there both write, wait, and read what is there; whoever was written over gives way.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import platform
import posixpath
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import pyarrow.fs

from tunekit.clock import Clock, SystemClock
from tunekit.core.driver_lock import BEAT_S, Holder, alive_for_s
from tunekit.core.words import duration
from tunekit.errors import AlreadyRunningError
from tunekit.journal.confined import inside, local_path, read_plain
from tunekit.journal.storage import replace_file

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "TAKE_OVER", "Driver", "DriverLock", "driver_of", "lock_at"]

logger = logging.getLogger(__name__)

#: The lock's file in the experiment's folder.
LOCK = "journal/driver.json"

#: The environment variable that, set to 1, takes a sweep over from whoever holds it.
TAKE_OVER = "TUNEKIT_TAKE_OVER"

_LOOK_AGAIN_S = 1.0
_HALF_WRITTEN_S = 3.0
# A lock is not that large.
_MOST_BYTES = 64 * 1024
# How long to wait, before it is certain who has written the lock, where two may at once.
_DOUBT_S = 1.0

# The tokens of the drivers in this process.
_OURS: set[str] = set()

# Where we are ------------------------------------------------------------------------------------


def _place() -> str:
    """Return where process numbers mean the same as here."""
    host = platform.node()
    if os.name == "nt":  # whether another process is alive cannot be asked for there
        return f"{host}|{os.getpid()}"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{host}|{boot}|{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return host


def _born(pid: int) -> int | None:
    """Return when a process was started; 0 if that is not known, None if there is no process."""
    try:
        # The command, in brackets, may have anything in it.
        state, *known = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(known[18]) if state not in "ZX" else None
    except (OSError, ValueError, IndexError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it is somebody else's
        pass
    return 0


def _alive_for_s(holder: Holder, now: float) -> float:
    there = None
    if holder.place == _place():
        own = holder.pid == os.getpid()
        there = holder.token in _OURS if own else _born(holder.pid) == holder.born
    return alive_for_s(holder, now, there=there)


# Where it is written -----------------------------------------------------------------------------


class LockFile(Protocol):
    """The file of a lock."""

    #: How long to wait before it is certain who has made it; 0 where that is certain at once.
    doubt_s: float

    def read(self) -> bytes | None:
        """Return what is in it; None if there is none."""
        ...

    def create(self, data: bytes) -> bool:
        """Make it; False if there is one."""
        ...

    def take(self, held: bytes, data: bytes) -> bool:
        """Replace what is in it; False if it has something else by now."""
        ...

    def remove(self, held: bytes) -> None:
        """Delete it, unless it has something else by now."""
        ...


class _LocalFile:
    """In a file system of this machine, mounted ones included.

    Whoever looks and then writes holds the operating system's lock of the folder meanwhile: between
    the two nobody else writes. Where there are no such locks, a doubt is left.
    """

    def __init__(self, home: Path):
        self._home = home
        self.doubt_s = 0.0

    @property
    def _path(self) -> Path:
        folder, name = posixpath.split(LOCK)
        return inside(self._home, folder) / name

    def read(self) -> bytes | None:
        try:
            return read_plain(inside(self._home, LOCK), most=_MOST_BYTES)
        except FileNotFoundError:
            return None

    def create(self, data: bytes) -> bool:
        return self.take(None, data)

    def take(self, held: bytes | None, data: bytes) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if self.read() != held:
                return False
            replace_file(self._path, data)
            return True

    def remove(self, held: bytes) -> None:
        with self._alone():
            if self.read() == held:
                self._path.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other drivers from writing meanwhile."""
        folder = None
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no such locks on this system")
            folder = os.open(self._path.parent, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError as error:  # not every file system can lock a folder
            logger.debug("%s cannot be locked: %s", self._path.parent, error)
            self.doubt_s = _DOUBT_S
        try:
            yield
        finally:
            if folder is not None:
                os.close(folder)  # which gives the lock back, as the end of the process does


class _RemoteFile:
    """In a storage that pyarrow reaches."""

    doubt_s = _DOUBT_S

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str):
        self._filesystem, self._path = filesystem, path

    def read(self) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(self._path) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def create(self, data: bytes) -> bool:
        if self.read() is not None:
            return False
        self._filesystem.create_dir(posixpath.dirname(self._path))
        self._write(data)
        return True

    def take(self, held: bytes, data: bytes) -> bool:
        if self.read() != held:
            return False
        self._write(data)
        return True

    def remove(self, held: bytes) -> None:
        if self.read() == held:
            self._filesystem.delete_file(self._path)

    def _write(self, data: bytes) -> None:
        with self._filesystem.open_output_stream(self._path) as stream:
            stream.write(data)


def _file_at(filesystem: pyarrow.fs.FileSystem, home: str) -> LockFile:
    local = local_path(filesystem, home)
    if local is not None:
        return _LocalFile(local)
    return _RemoteFile(filesystem, posixpath.join(home, LOCK))


# The lock ----------------------------------------------------------------------------------------


def lock_at(filesystem: pyarrow.fs.FileSystem, home: str, clock: Clock | None = None) -> DriverLock:
    """The lock of the experiment in a folder of a storage."""
    return DriverLock(_file_at(filesystem, home), home, clock or SystemClock())


class DriverLock:
    """One driver's hold of a sweep.

    Args:
        file: Where it is written.
        home: The experiment's folder, for messages.
        clock: What the time is read from.
    """

    def __init__(self, file: LockFile, home: str, clock: Clock):
        self._file, self._home, self._clock = file, home, clock
        self._mutex = threading.Lock()
        self._mine: Holder | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0
        self._on_lost: Callable[[AlreadyRunningError], None] = lambda error: None

    def claim(self) -> None:
        """Become the sweep's driver.

        A driver on another machine that was heard of a moment ago is watched until it is heard of
        again, or counts as dead.

        Raises:
            tunekit.errors.AlreadyRunningError: If another one is alive.
            OSError: If the storage fails.
        """
        while True:
            held, holder = self._wait_until_free()
            if not self._take(held):
                continue
            if holder is not None:
                logger.warning(
                    "The sweep in %s is taken over from %s, because %s is set. If that one is "
                    "alive, it stops within %g s; this one begins then.",
                    self._home,
                    _told(holder, self._clock.time()),
                    TAKE_OVER,
                    BEAT_S,
                )
                self._clock.sleep(BEAT_S + _LOOK_AGAIN_S)
            return

    def require_free(self) -> None:
        """Raise what :meth:`claim` would, and leave the lock as it is."""
        self._wait_until_free()

    def _wait_until_free(self) -> tuple[bytes | None, Holder | None]:
        """Return what is in the lock's file, and who it is to be taken from by force."""
        by_force = os.environ.get(TAKE_OVER, "0") not in ("", "0")
        watched: Holder | None = None
        unreadable_since: float | None = None
        while True:
            held = self._file.read()
            holder = None if held is None else Holder.decoded(held)
            if held is not None and holder is None:  # being written, or never finished
                now = self._clock.monotonic()
                unreadable_since = now if unreadable_since is None else unreadable_since
                if now - unreadable_since < _HALF_WRITTEN_S:
                    self._clock.sleep(_LOOK_AGAIN_S)
                    continue
            left = 0.0 if holder is None else _alive_for_s(holder, self._clock.time())
            if holder is None or not left:
                return held, None
            if by_force:
                return held, holder
            self._watch(holder, watched, left)
            watched = holder

    def _watch(self, holder: Holder, watched: Holder | None, left: float) -> None:
        """Wait a moment, where that may show that a driver is dead; raise if it is alive."""
        again = watched is not None and watched.token == holder.token
        alive = again and watched is not None and watched.beat != holder.beat
        if left == math.inf or alive:
            raise AlreadyRunningError(_refusal(self._home, holder, self._clock.time()))
        if not again:
            logger.warning(
                "The sweep in %s is held by %s. Watching for up to %.0f s whether it is alive; %s=1"
                " takes it over at once.",
                self._home,
                _told(holder, self._clock.time()),
                left,
                TAKE_OVER,
            )
        self._clock.sleep(min(_LOOK_AGAIN_S, left))

    def _take(self, held: bytes | None) -> bool:
        """Write the lock; False if another driver was faster."""
        now, pid = self._clock.time(), os.getpid()
        mine = Holder(
            token=secrets.token_hex(8),
            host=platform.node(),
            place=_place(),
            pid=pid,
            born=_born(pid) or 0,
            since=now,
            beat=now,
        )
        _OURS.add(mine.token)  # before anybody can read it
        try:
            if self._written(mine, held):
                self._mine, self._next_beat = mine, self._clock.monotonic() + BEAT_S
        finally:
            if self._mine is None:
                _OURS.discard(mine.token)
        return self._mine is not None

    def _written(self, mine: Holder, held: bytes | None) -> bool:
        file = self._file
        if not (file.create(mine.encoded()) if held is None else file.take(held, mine.encoded())):
            return False
        if file.doubt_s:
            self._clock.sleep(file.doubt_s)
        there = Holder.decoded(file.read() or b"")
        return there is not None and there.token == mine.token

    def keep(self, on_lost: Callable[[AlreadyRunningError], None]) -> None:
        """Say that this driver is alive from now on, every few seconds.

        Where time passes by itself, a thread does, however long a step takes; otherwise
        :meth:`check`.

        Args:
            on_lost: Called once, from whichever thread, if another driver has taken the sweep
                over: nothing more may be written.
        """
        self._on_lost = on_lost
        if isinstance(self._clock, SystemClock):
            self._thread = threading.Thread(target=self._beat_on, daemon=True, name="tunekit-lock")
            self._thread.start()

    def check(self) -> None:
        """Say that this driver is alive, if that is due and no thread does."""
        if self._thread is None and self._clock.monotonic() >= self._next_beat:
            self.beat()

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.beat()

    def beat(self) -> None:
        """Say that this driver is alive, unless another one has taken the sweep over."""
        lost = None
        with self._mutex:
            if self._mine is None:
                return
            self._next_beat = self._clock.monotonic() + BEAT_S
            try:
                lost = self._beat(self._mine)
            except Exception as error:  # storages raise whatever their libraries do
                logger.debug("The lock of %s could not be renewed: %s", self._home, error)
            if lost is not None:
                _OURS.discard(self._mine.token)
                self._mine = None
        if lost is not None:
            self._ended.set()
            self._on_lost(AlreadyRunningError(_taken(self._home, lost, self._clock.time())))

    def _beat(self, mine: Holder) -> Holder | None:
        held = self._file.read()
        holder = None if held is None else Holder.decoded(held)
        if holder is not None and holder.token != mine.token:
            return holder
        renewed = replace(mine, beat=self._clock.time())
        if held is None:
            done = self._file.create(renewed.encoded())  # somebody has cleaned up
        else:
            done = self._file.take(held, renewed.encoded())
        if done:
            self._mine = renewed
        return None

    def release(self) -> None:
        """Let another driver have the sweep; nothing happens if this one has not got it."""
        self._ended.set()
        with self._mutex:
            mine, self._mine = self._mine, None
            if mine is None:
                return
            _OURS.discard(mine.token)
            try:
                held = self._file.read() or b""
                there = Holder.decoded(held)
                if there is not None and there.token == mine.token:
                    self._file.remove(held)
            except Exception as error:  # storages raise whatever their libraries do
                logger.warning(
                    "%s in %s could not be removed: %s. On another machine, the sweep can be "
                    "restored when that has not been renewed for a while.",
                    LOCK,
                    self._home,
                    error,
                )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the driver for as long as something short takes."""
        try:
            self.claim()
            yield
        finally:
            self.release()


def _told(holder: Holder, now: float) -> str:
    """Return who a driver is, for the user."""
    began = datetime.fromtimestamp(holder.since, timezone.utc)
    own = holder.place == _place() and holder.pid == os.getpid()
    where = "this process" if own else f"process {holder.pid}"
    return (
        f"{where} on {holder.host}, since {began:%Y-%m-%d %H:%M:%S} UTC, last heard of "
        f"{duration(max(0.0, now - holder.beat))} ago"
    )


def _refusal(home: str, holder: Holder, now: float) -> str:
    return (
        f"The sweep in {home!r} has a driver: {_told(holder, now)}. Two would both go on with it. "
        "Wait until that one has ended, or end it; `tunekit status` shows what it does. If it is "
        f"dead, or to take the sweep from it, set the environment variable {TAKE_OVER}=1, or run "
        "`tunekit resume --take-over`: a driver that is alive then stops. For another sweep, "
        "choose another RunConfig(name=...)."
    )


def _taken(home: str, holder: Holder, now: float) -> str:
    return (
        f"The sweep in {home!r} was taken over by another driver: {_told(holder, now)}. This one "
        "has stopped, and writes nothing more."
    )


# Who holds it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """Who a sweep's lock names.

    Attributes:
        alive: Whether that driver is alive, as far as can be told from here.
        host: Its machine.
        pid: Its process.
        since: When it began, in seconds since the epoch.
        heard: When it was last heard of, likewise.
    """

    alive: bool
    host: str
    pid: int
    since: float
    heard: float


def driver_of(filesystem: pyarrow.fs.FileSystem, home: str, now: float) -> Driver | None:
    """Return who drives the sweep in a folder, or did when it was killed; None if no lock says so.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        now: Seconds since the epoch.

    Example:
        >>> driver_of(pyarrow.fs.LocalFileSystem(), "/no/such/folder", 0.0) is None
        True
    """
    holder = Holder.decoded(_file_at(filesystem, home).read() or b"")
    if holder is None:
        return None
    alive = _alive_for_s(holder, now) > 0
    return Driver(alive, holder.host, holder.pid, holder.since, holder.beat)
