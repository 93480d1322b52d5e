"""Lock a sweep, so that one driver at a time runs it.

The lock is a file in the journal's folder, ``journal/driver.json``, with the driver's identity and
its last heartbeat, which is renewed every few seconds. On the driver's machine, its process shows
whether it is alive; elsewhere, the last heartbeat decides.

If two drivers start at the same moment in a local or mounted folder, one of them gets the lock.
Object stores have no exclusive creation, so both drivers write the file, wait, and read it; the one
whose content was overwritten stops.
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
# More than any lock has.
_MOST_BYTES = 64 * 1024
# Where two drivers may write the lock at once: how long to wait before reading which one has it.
_DOUBT_S = 1.0

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
# A time that ``datetime`` can show: until the year 9999.
_Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799.0)]


class Driver(msgspec.Struct, frozen=True, omit_defaults=True):
    """A driver, as its lock file describes it.

    Attributes:
        token: A random text that identifies it.
        host: The name of its machine.
        pid_space: The machine or container in which its process ID is valid.
        pid: Its process ID.
        born: When that process was started, in the system's own unit; 0 if unknown. Process IDs
            are reused, above all in containers.
        since: When it began, in seconds since the epoch.
        heard: The time of its last heartbeat, likewise.
        alive: Whether it seems to be alive; not in the file.
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
        """Return the driver that a lock file names; None if there is no file or it is not a lock.

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
        """Return for how many more seconds it counts as alive without another heartbeat.

        Args:
            now: Seconds since the epoch.

        Returns:
            0 if it counts as dead, infinity if it is certain to be alive.
        """
        if self.pid_space != _pid_space():
            return max(0.0, SILENT_S - (now - self.heard))
        return math.inf if _born(self.pid) == self.born else 0.0


def _pid_space() -> str:
    """Return this machine or container; outside of Linux, this process only."""
    host = platform.node()
    try:
        return f"{host}|{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{host}|{os.getpid()}"


def _born(pid: int) -> int:
    """Return when a process was started; 0 if it has ended, or if that is unknown."""
    try:
        # The command, in parentheses, may contain any character.
        state, *known = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(known[18]) if state not in "ZX" else 0


class LockFile:
    """The file of a lock, in any storage.

    A local folder is locked with ``flock`` between reading and writing, so that no other driver
    writes in between. Where that is not possible, ``doubt_s`` applies.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, home: str):
        self._filesystem, self._path = filesystem, posixpath.join(home, LOCK)
        self._home = local_path(filesystem, home)
        #: The seconds to wait before reading which of two drivers has written it; 0: no wait.
        self.doubt_s = _DOUBT_S if self._home is None else 0.0

    def read(self) -> bytes | None:
        """Return its content; None if it does not exist."""
        try:
            if self._home is not None:
                return read_plain(inside(self._home, LOCK), most=_MOST_BYTES)
            with self._filesystem.open_input_stream(self._path) as stream:
                return bytes(stream.read(_MOST_BYTES))
        except FileNotFoundError:
            return None

    def swap(self, held: bytes | None, data: bytes | None) -> bool:
        """Replace the content ``held``, None for no file; return False if it has changed."""
        with self._alone():
            if self.read() != held:
                return False
            if self._home is not None:
                folder, name = posixpath.split(LOCK)
                path = inside(self._home, folder) / name
                path.unlink(missing_ok=True) if data is None else replace_file(path, data)
            elif data is None:
                if held is not None:
                    self._filesystem.delete_file(self._path)
            else:
                self._filesystem.create_dir(posixpath.dirname(self._path))
                with self._filesystem.open_output_stream(self._path) as stream:
                    stream.write(data)
            return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other drivers from writing inside a ``with`` block, if the file system can."""
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
                os.close(descriptor)  # this unlocks it, as the end of the process would


class DriverLock:
    """Make this process the only driver of a sweep.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        clock: The clock.
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
            tunekit.errors.AlreadyRunningError: If another driver is alive.
            OSError: If the storage fails.
        """
        held = self.require_free()
        while not self._take(held):
            held = self.require_free()
        rival = Driver.decoded(held)
        if rival is not None and rival.alive_for_s(self._clock.time()):
            logger.warning(
                "Taking over the sweep in %s from %s, because %s is set. If that driver is "
                "alive, it stops within %g s; this one waits for that.",
                self._home,
                _told(rival, self._clock.time()),
                TAKE_OVER,
                BEAT_S,
            )
            self._clock.sleep(BEAT_S + _LOOK_AGAIN_S)

    def require_free(self) -> bytes | None:
        """Return the lock file's content if no other driver is alive; raise as :meth:`claim`.

        The lock does not change.
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
                    "The sweep in %s has a driver: %s. Waiting up to %.0f s for a heartbeat that "
                    "shows whether it is alive; %s=1 takes the sweep over at once.",
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
            now = self._clock.time()
            try:
                rival = self._replace(mine, msgspec.structs.replace(mine, heard=now))
            except Exception as error:  # storages raise whatever their libraries do
                logger.debug("The lock of %s could not be renewed: %s", self._home, error)
                return
            if rival is None:
                return
            self._mine = None
        self._ended.set()
        self._on_lost(
            AlreadyRunningError(
                f"The sweep in {self._home!r} was taken over by another driver: "
                f"{_told(rival, now)}. This one has stopped, and writes nothing more."
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
                self._replace(mine, None)
            except Exception as error:  # storages raise whatever their libraries do
                logger.warning(
                    "%s in %s could not be removed: %s. On another machine, the sweep can be "
                    "restored once the file has not been renewed for %g s.",
                    LOCK,
                    self._home,
                    error,
                    SILENT_S,
                )

    def _replace(self, mine: Driver, new: Driver | None) -> Driver | None:
        """Write or remove this driver's lock; if another driver has taken it, return that one."""
        held = self._file.read()
        there = Driver.decoded(held)
        if there is not None and there.token != mine.token:
            return there
        self._file.swap(held, None if new is None else new.encoded())
        return None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Claim the lock for a ``with`` block."""
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
