"""Locks a sweep, so that one driver at a time runs it.

The lock is a file in the journal's folder, ``journal/driver.json``, with the driver's identity and
its last heartbeat, which is renewed every few seconds. On the driver's machine, its process shows
whether it is alive; elsewhere, the last heartbeat decides.

In a local folder, mounted ones included, one of two drivers that start at the same moment gets the
lock. Object stores have no exclusive creation: both drivers write, wait, and read the file; the one
that was overwritten stops.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import posixpath
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow.fs

from tunekit.clock import Clock, SystemClock
from tunekit.core.words import duration
from tunekit.errors import AlreadyRunningError
from tunekit.journal.confined import inside, local_path, read_plain
from tunekit.journal.storage import replace_file

__all__ = [
    "BEAT_S",
    "LOCK",
    "SILENT_S",
    "TAKE_OVER",
    "Driver",
    "DriverLock",
    "LockFile",
    "driver_of",
]

logger = logging.getLogger(__name__)

#: The lock's file in the experiment's folder.
LOCK = "journal/driver.json"

#: The environment variable that, set to 1, takes a sweep over from another driver.
TAKE_OVER = "TUNEKIT_TAKE_OVER"

#: The seconds between a driver's heartbeats.
BEAT_S = 10.0

#: The seconds without a heartbeat after which a driver counts as dead.
SILENT_S = 3 * BEAT_S

_LOOK_AGAIN_S = 1.0
# A lock is not that large.
_MOST_BYTES = 64 * 1024
# How long to wait, before it is certain who has written the lock, where two may at once.
_DOUBT_S = 1.0

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
# A time that can be told: until the year 9999.
_Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799.0)]


class Driver(msgspec.Struct, frozen=True, omit_defaults=True):
    """A driver, as its lock says.

    Attributes:
        token: Tells this driver from all others.
        host: Its machine's name.
        pid_space: Where its process number means anything: a machine, or a container of it.
        pid: Its process.
        born: When that process was started, in the system's own unit; 0 if that is not known.
            Numbers of processes are used again, above all in containers.
        since: When it began, in seconds since the epoch.
        heard: When it was last heard of, likewise.
        alive: Whether it is alive, as far as can be told from here; not in the file.
    """

    token: str
    host: str
    pid_space: str
    pid: _Pid
    born: int
    since: _Time
    heard: _Time
    alive: bool = False

    def encoded(self) -> bytes:
        """Return the driver as the content of its lock file."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decoded(cls, data: bytes | None) -> Driver | None:
        """The driver that a lock's file names; None if there is no file, or it is no lock.

        Example:
            >>> driver = Driver("t", "gpu1", "gpu1|b", 7, 99, since=1.0, heard=2.0)
            >>> Driver.decoded(driver.encoded()) == driver, Driver.decoded(b'{"tok')
            (True, None)
        """
        try:
            return msgspec.json.decode(data or b"", type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def alive_for_s(self, now: float) -> float:
        """Return for how many more seconds it counts as alive if it is not heard of.

        Args:
            now: Seconds since the epoch.

        Returns:
            0 if it counts as dead, infinity if it is certain to be alive.
        """
        if self.pid_space != _pid_space():
            return max(0.0, SILENT_S - (now - self.heard))
        return math.inf if _born(self.pid) == self.born else 0.0


def _pid_space() -> str:
    """Return where process numbers mean the same as here; elsewhere than on Linux, in this one."""
    host = platform.node()
    try:
        return f"{host}|{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{host}|{os.getpid()}"


def _born(pid: int) -> int:
    """Return when a process was started; 0 if there is none, or that is not known."""
    try:
        # The command, in brackets, may have anything in it.
        state, *known = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(known[18]) if state not in "ZX" else 0


class LockFile:
    """The file of a lock, in any storage.

    In a local folder, reading and then writing is done under the operating system's lock of the
    folder, so that no other driver writes in between. Without such locks, ``doubt_s`` applies.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, home: str):
        self._filesystem, self._path = filesystem, posixpath.join(home, LOCK)
        self._home = local_path(filesystem, home)
        #: How long to wait before it is certain who has written it; 0 where that is so at once.
        self.doubt_s = _DOUBT_S if self._home is None else 0.0

    def read(self) -> bytes | None:
        """Return what is in it; None if there is none."""
        try:
            if self._home is not None:
                return read_plain(inside(self._home, LOCK), most=_MOST_BYTES)
            with self._filesystem.open_input_stream(self._path) as stream:
                return bytes(stream.read(_MOST_BYTES))
        except FileNotFoundError:
            return None

    def swap(self, held: bytes | None, data: bytes | None) -> bool:
        """Replace what is in it, None being no file; False if it has something else by now."""
        with self._alone():
            if self.read() != held:
                return False
            if self._home is not None:
                folder, name = posixpath.split(LOCK)
                path = inside(self._home, folder) / name
                path.unlink(missing_ok=True) if data is None else replace_file(path, data)
            elif data is None:
                self._filesystem.delete_file(self._path)
            else:
                self._filesystem.create_dir(posixpath.dirname(self._path))
                with self._filesystem.open_output_stream(self._path) as stream:
                    stream.write(data)
            return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other drivers from writing meanwhile, where the file system can."""
        descriptor = None
        if self._home is not None:
            folder = inside(self._home, posixpath.dirname(LOCK))
            folder.mkdir(parents=True, exist_ok=True)
            try:
                import fcntl  # not on Windows

                descriptor = os.open(folder, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except (ImportError, OSError) as error:
                logger.debug("%s cannot be locked: %s", folder, error)
                self.doubt_s = _DOUBT_S
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)  # which gives the lock back, as the end of the process does


class DriverLock:
    """One driver's hold of a sweep.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        clock: What the time is read from.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, home: str, clock: Clock | None = None):
        self._file, self._home = LockFile(filesystem, home), home
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._mine: Driver | None = None
        self._ended = threading.Event()
        self._on_lost: Callable[[AlreadyRunningError], None] = lambda error: None

    def claim(self) -> None:
        """Become the sweep's driver.

        A driver on another machine with a recent heartbeat is watched until its next heartbeat, or
        until it counts as dead.

        Raises:
            tunekit.errors.AlreadyRunningError: If another one is alive.
            OSError: If the storage fails.
        """
        held = self.require_free()
        while not self._take(held):
            held = self.require_free()
        rival = Driver.decoded(held)
        if rival is not None and rival.alive_for_s(self._clock.time()):
            logger.warning(
                "Taking over the sweep in %s from %s, because %s is set. If that driver is "
                "alive, it stops within %g s; then this one begins.",
                self._home,
                _told(rival, self._clock.time()),
                TAKE_OVER,
                BEAT_S,
            )
            self._clock.sleep(BEAT_S + _LOOK_AGAIN_S)

    def require_free(self) -> bytes | None:
        """Return what is in the lock's file of a sweep that may be driven; raise as :meth:`claim`.

        The lock stays as it is.
        """
        by_force = os.environ.get(TAKE_OVER, "0") not in ("", "0")
        watched: Driver | None = None
        while True:
            held, now = self._file.read(), self._clock.time()
            driver = Driver.decoded(held)
            left = 0.0 if driver is None else driver.alive_for_s(now)
            if driver is None or not left or by_force:
                return held
            again = watched is not None and watched.token == driver.token
            if left == math.inf or (again and watched != driver):
                raise AlreadyRunningError(
                    f"The sweep in {self._home!r} has a driver: {_told(driver, now)}. Only one can "
                    "run a sweep. Wait until that one has ended, or end it; `tunekit status` shows "
                    "its progress. If it is dead, or to take over the sweep, set the environment "
                    f"variable {TAKE_OVER}=1, or run `tunekit resume --take-over`: a running "
                    "driver then stops. For another sweep, choose another RunConfig(name=...)."
                )
            if not again:
                logger.warning(
                    "The sweep in %s is held by %s. Watching for up to %.0f s whether it is alive; "
                    "%s=1 takes it over at once.",
                    self._home,
                    _told(driver, now),
                    left,
                    TAKE_OVER,
                )
            watched = driver
            self._clock.sleep(min(_LOOK_AGAIN_S, left))

    def _take(self, held: bytes | None) -> bool:
        """Write the lock; False if another driver was faster."""
        now, pid, token = self._clock.time(), os.getpid(), secrets.token_hex(8)
        mine = Driver(token, platform.node(), _pid_space(), pid, _born(pid), since=now, heard=now)
        if not self._file.swap(held, mine.encoded()):
            return False
        self._mine = mine
        if self._file.doubt_s:
            self._clock.sleep(self._file.doubt_s)
            if self._file.read() != mine.encoded():
                self._mine = None
        return self._mine is not None

    def keep(self, on_lost: Callable[[AlreadyRunningError], None]) -> None:
        """Send heartbeats from a thread from now on.

        With a simulated clock, call :meth:`beat` instead.

        Args:
            on_lost: Called once, from any thread, if another driver has taken the sweep over;
                nothing more may be written then.
        """
        self._on_lost = on_lost
        if isinstance(self._clock, SystemClock):
            threading.Thread(target=self._beat_on, daemon=True, name="tunekit-lock").start()

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.beat()

    def beat(self) -> None:
        """Renew the heartbeat, unless another driver has taken the sweep over."""
        with self._mutex:
            mine = self._mine
            if mine is None:
                return
            try:
                held = self._file.read()
                rival = Driver.decoded(held)
                if rival is None or rival.token == mine.token:  # None: somebody has cleaned up
                    renewed = msgspec.structs.replace(mine, heard=self._clock.time())
                    if self._file.swap(held, renewed.encoded()):
                        self._mine = renewed
                    return
            except Exception as error:  # storages raise whatever their libraries do
                logger.debug("The lock of %s could not be renewed: %s", self._home, error)
                return
            self._mine = None
        self._ended.set()
        self._on_lost(
            AlreadyRunningError(
                f"The sweep in {self._home!r} was taken over by another driver: "
                f"{_told(rival, self._clock.time())}. This one has stopped, and writes nothing "
                "more."
            )
        )

    def release(self) -> None:
        """Release the lock, if this driver holds it."""
        self._ended.set()
        with self._mutex:
            mine, self._mine = self._mine, None
            if mine is None:
                return
            try:
                held = self._file.read()
                there = Driver.decoded(held)
                if there is not None and there.token == mine.token:
                    self._file.swap(held, None)
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
        """Hold the lock inside a ``with`` block."""
        try:
            self.claim()
            yield
        finally:
            self.release()


def _told(driver: Driver, now: float) -> str:
    """Describe a driver for messages."""
    began = datetime.fromtimestamp(driver.since, timezone.utc)
    own = driver.pid_space == _pid_space() and driver.pid == os.getpid()
    where = "this process" if own else f"process {driver.pid}"
    return (
        f"{where} on {driver.host}, since {began:%Y-%m-%d %H:%M:%S} UTC, last heard of "
        f"{duration(max(0.0, now - driver.heard))} ago"
    )


def driver_of(filesystem: pyarrow.fs.FileSystem, home: str, now: float) -> Driver | None:
    """Return the sweep's driver according to its lock, which may be dead; None without a lock.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        now: Seconds since the epoch.

    Example:
        >>> driver_of(pyarrow.fs.LocalFileSystem(), "/no/such/folder", 0.0) is None
        True
    """
    driver = Driver.decoded(LockFile(filesystem, home).read())
    return driver and msgspec.structs.replace(driver, alive=driver.alive_for_s(now) > 0)
