"""Lock a sweep, so that one driver at a time runs it.

The lock is a file with a random token, the driver's process and its last heartbeat. On the driver's
machine, the process shows whether it is alive; elsewhere, the heartbeat does.

A local or mounted folder is locked with ``flock`` while the file is written. Object stores have no
such lock: a driver writes the file, waits, reads it, and gives way if another one has written it.
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
from contextlib import contextmanager, suppress
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
# How long to wait in an object store before reading which driver has the lock.
_DOUBT_S = 1.0
# More than any lock has.
_MOST_BYTES = 64 * 1024

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
        born: When that process was started, in the system's own unit, because IDs are reused; 0 if
            unknown.
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
        """Return for how many seconds it counts as alive without another heartbeat.

        0: it is dead. Infinity: its process is alive.
        """
        if self.pid_space != _pid_space():
            return max(0.0, SILENT_S - (now - self.heard))
        return math.inf if _born(self.pid) == self.born else 0.0

    def told(self, now: float) -> str:
        """Describe it for messages."""
        began = datetime.fromtimestamp(self.since, timezone.utc)
        heard = f"last heard of {duration(now - self.heard)} ago"
        return f"process {self.pid} on {self.host}, since {began:%Y-%m-%d %H:%M:%S} UTC, {heard}"


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

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, home: str):
        self._filesystem, self._path = filesystem, posixpath.join(home, LOCK)
        self._home = local_path(filesystem, home)
        #: Whether two drivers may write it at once.
        self.shared = self._home is None

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
        with self._alone() as path:
            if self.read() != held:
                return False
            if path is not None:
                path.unlink(missing_ok=True) if data is None else replace_file(path, data)
            elif data is not None:
                self._filesystem.create_dir(posixpath.dirname(self._path))
                with self._filesystem.open_output_stream(self._path) as stream:
                    stream.write(data)
            elif held is not None:
                self._filesystem.delete_file(self._path)
        return True

    @contextmanager
    def _alone(self) -> Iterator[Path | None]:
        """Keep other drivers from writing, if possible; yield the path of a local file."""
        if self._home is None:
            yield None
            return
        folder, descriptor = inside(self._home, posixpath.dirname(LOCK)), None
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(ImportError, OSError):  # Windows and some network storages cannot
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield folder / posixpath.basename(LOCK)
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

        A driver on another machine is watched until its next heartbeat, or until it counts as dead.

        Raises:
            tunekit.errors.AlreadyRunningError: If another driver is alive.
            OSError: If the storage fails.
        """
        held = None
        while self._mine is None:
            held, now, pid = self.require_free(), self._clock.time(), os.getpid()
            who = (secrets.token_hex(8), platform.node(), _pid_space(), pid, _born(pid))
            self._mine = mine = Driver(*who, since=now, heard=now)
            taken = self._file.swap(held, mine.encoded())
            if taken and self._file.shared:
                self._clock.sleep(_DOUBT_S)
                taken = self._file.read() == mine.encoded()
            if not taken:
                self._mine = None  # another driver was faster
        rival, now = Driver.decoded(held), self._clock.time()
        if rival is not None and rival.alive_for_s(now):
            logger.warning("Taking the sweep in %s over from %s.", self._home, rival.told(now))
            self._clock.sleep(BEAT_S + _LOOK_AGAIN_S)  # until it has noticed, and stopped

    def require_free(self) -> bytes | None:
        """Return the lock file's content if no other driver is alive; raise as :meth:`claim`.

        The lock does not change.
        """
        watched: Driver | None = None
        while True:
            held, now = self._file.read(), self._clock.time()
            driver = Driver.decoded(held)
            left = 0.0 if driver is None else driver.alive_for_s(now)
            if driver is None or not left or os.environ.get(TAKE_OVER, "0") not in ("", "0"):
                return held
            if left == math.inf or watched not in (None, driver):
                raise AlreadyRunningError(
                    f"The sweep in {self._home!r} has a driver: {driver.told(now)}. Only one can "
                    "run a sweep. Wait until that one has ended, or end it; `tunekit status` shows "
                    "its progress. If it is dead, or to take over the sweep, set the environment "
                    f"variable {TAKE_OVER}=1, or run `tunekit resume --take-over`: a running "
                    "driver then stops. For another sweep, choose another RunConfig(name=...)."
                )
            if watched is None:
                known = (self._home, driver.told(now), left)
                logger.warning("The sweep in %s has a driver: %s. Waiting up to %.0f s.", *known)
            watched = driver
            self._clock.sleep(min(_LOOK_AGAIN_S, left))

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
            now = self._clock.time()
            rival = self._renew(lambda mine: msgspec.structs.replace(mine, heard=now).encoded())
            if rival is None:
                return
            self._mine = None
        self._ended.set()
        self._on_lost(
            AlreadyRunningError(
                f"The sweep in {self._home!r} was taken over by another driver: "
                f"{rival.told(now)}. This one has stopped, and writes nothing more."
            )
        )

    def release(self) -> None:
        """Release the lock, if this driver holds it."""
        self._ended.set()
        with self._mutex:
            self._renew(lambda mine: None)
            self._mine = None

    def _renew(self, content: Callable[[Driver], bytes | None]) -> Driver | None:
        """Write or remove this driver's lock; if another driver has taken it, return that one."""
        if self._mine is None:
            return None
        try:
            held = self._file.read()
            there = Driver.decoded(held)
            if there is not None and there.token != self._mine.token:
                return there
            self._file.swap(held, content(self._mine))
        except Exception as error:  # storages raise whatever their libraries do
            logger.debug("The lock of %s could not be written: %s", self._home, error)
        return None


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
