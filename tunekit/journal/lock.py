"""Lock a sweep, so that only one driver runs it at a time.

The lock is a file with a random token, the driver's host and process, and its last heartbeat. A
driver is dead if its heartbeat is older than :data:`SILENT_S`, or if its process has ended. The
latter can be known only where its process ID means the same: in the same PID namespace since the
same boot. Containers have their own, but often the same host name and the same small IDs.

A local or mounted folder is locked with ``flock`` while the file is written. Object stores have no
such lock: a driver writes the file, waits, reads it, and gives way if another one has written it.
"""

from __future__ import annotations

import logging
import os
import platform
import posixpath
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow.fs

from tunekit.core.timing import Clock
from tunekit.errors import AlreadyRunningError
from tunekit.journal.safe_files import folder_in, local_path, read_plain
from tunekit.journal.storage import replace_file

logger = logging.getLogger(__name__)

#: The lock's file in the experiment's folder.
LOCK = "journal/driver.json"
#: The environment variable that, if set to 1, takes over a sweep from another driver.
TAKE_OVER = "TUNEKIT_TAKE_OVER"
#: The seconds between a driver's heartbeats.
BEAT_S = 10.0
#: The seconds without a heartbeat after which a driver counts as dead.
SILENT_S = 3 * BEAT_S

# How long to wait in an object store before reading which driver has the lock.
_DOUBT_S = 1.0
# More than any lock has.
_MOST_BYTES = 64 * 1024
_PROC = Path("/proc")

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
# A time that ``datetime`` can show: until the year 9999.
_Time = Annotated[float, msgspec.Meta(ge=0, le=253_402_300_799.0)]


class Driver(msgspec.Struct, frozen=True, omit_defaults=True):
    """A driver, as described in its lock file.

    Attributes:
        token: A random text that identifies it.
        host: The name of its machine.
        pid: Its process ID there.
        heard: The time of its last heartbeat, in seconds since the epoch.
        namespace: What its process ID refers to: the boot and the PID namespace; empty if unknown.
        started: When its process started, in clock ticks since the boot.
        alive: Whether it seems to be alive; not in the file.
    """

    token: str
    host: str
    pid: _Pid
    heard: _Time
    namespace: str = ""
    started: int = 0
    alive: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def encoded(self) -> bytes:
        """Return the driver as the contents of its lock file."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decoded(cls, data: bytes | None) -> Driver | None:
        """Return the driver that a lock file names; None if there is no file or it is not a lock.

        Example:
            >>> driver = Driver("t", "gpu1", 7, heard=2.0)
            >>> Driver.decoded(driver.encoded()) == driver, Driver.decoded(b'{"tok')
            (True, None)
        """
        try:
            return msgspec.json.decode(data or b"", type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @classmethod
    def here(cls, now: float, proc: Path = _PROC) -> Driver:
        """Return this process as a driver, with a new token."""
        ids = _namespace(proc), _started(os.getpid(), proc) or 0
        return cls(secrets.token_hex(8), platform.node(), os.getpid(), now, *ids)

    def is_alive(self, now: float, proc: Path = _PROC) -> bool:
        """Return whether it seems to be alive at a given time.

        Args:
            now: Seconds since the epoch.
            proc: Where the system shows its processes.
        """
        known = self.namespace != "" and self.namespace == _namespace(proc)
        ended = known and _started(self.pid, proc) not in (self.started, None)
        return not ended and now - self.heard < SILENT_S


def _namespace(proc: Path) -> str:
    """Return what process IDs refer to here; empty if unknown, or if ``proc`` is of another one."""
    with suppress(OSError):
        if os.readlink(proc / "self") == str(os.getpid()):
            boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
            return f"{boot} {os.readlink(proc / 'self/ns/pid')}"
    return ""


def _started(pid: int, proc: Path) -> int | None:
    """Return when a process started, in clock ticks since the boot; 0 if it has ended.

    None: that is unknown, because the process is another user's and ``proc`` hides it (hidepid).
    """
    with suppress(OSError, ValueError, IndexError):
        # The process's name, in parentheses, may contain anything.
        return int((proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    try:
        os.kill(pid, 0)  # sends nothing
    except OSError as error:
        return 0 if isinstance(error, ProcessLookupError) else None
    return None


class DriverLock:
    """Make this process the only driver of a sweep.

    Args:
        filesystem: The storage.
        home: The experiment's folder there.
        clock: The clock.
        on_lost: Called once, from any thread, if another driver has taken over the sweep; nothing
            more may be written after that. If given, and with the system's clock, a thread sends
            heartbeats.
        below: The folder in it that is locked, if not all of it.
    """

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        home: str,
        clock: Clock | None = None,
        on_lost: Callable[[AlreadyRunningError], None] | None = None,
        below: str = "",
    ):
        self._filesystem, self._name = filesystem, posixpath.join(below, LOCK)
        self._path = posixpath.join(home, self._name)
        self._home = self._path.removesuffix(f"/{LOCK}")
        self._local = local_path(filesystem, home)
        self._clock = clock or time
        self._mutex = threading.Lock()
        self._mine: Driver | None = None
        self._ended = threading.Event()
        self._on_lost = on_lost

    def claim(self) -> None:
        """Become the sweep's driver.

        Raises:
            tunekit.errors.AlreadyRunningError: If another driver is alive.
            OSError: If the storage fails.
        """
        held = None
        while self._mine is None:
            held, mine = self.check_free(), Driver.here(self._clock.time())
            taken = self.swap(held, mine.encoded())
            if taken and self._local is None:
                self._clock.sleep(_DOUBT_S)
                taken = self.read() == mine.encoded()
            self._mine = mine if taken else None  # another driver may have been faster
        rival = Driver.decoded(held)
        if rival is not None and rival.is_alive(self._clock.time()):
            logger.warning("Taking the sweep in %s over from %s.", self._home, rival)
            self._clock.sleep(BEAT_S + 1.0)  # until it has noticed, and stopped
        if self._on_lost is not None and self._clock is time:
            threading.Thread(target=self._beat_on, daemon=True, name="tunekit-lock").start()

    def check_free(self) -> bytes | None:
        """Return the lock file's contents if no other driver is alive; raise as in :meth:`claim`.

        The lock does not change.
        """
        held = self.read()
        driver = Driver.decoded(held)
        take_over = os.environ.get(TAKE_OVER, "0") not in ("", "0")
        if driver is None or take_over or not driver.is_alive(self._clock.time()):
            return held
        raise AlreadyRunningError(
            f"The sweep in {self._home!r} has a driver, {driver}, and only one can run it. End it, "
            f"or wait: a killed one counts as dead after {SILENT_S:.0f} s. To take over, set "
            f"{TAKE_OVER}=1: a running driver then stops. For another sweep, choose "
            "another RunConfig(name=...)."
        )

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.beat()

    def beat(self) -> None:
        """Renew the heartbeat, unless another driver has taken over the sweep."""
        rival = self._renew()
        if rival is not None and self._on_lost is not None:
            self._ended.set()
            text = f"The sweep in {self._home!r} was taken over by another driver, {rival}."
            self._on_lost(AlreadyRunningError(f"{text} This one writes nothing more."))

    def release(self) -> None:
        """Release the lock, if this driver holds it."""
        self._ended.set()
        self._renew(release=True)

    def _renew(self, *, release: bool = False) -> Driver | None:
        """Write or remove this driver's lock; if another driver has taken it, return that one."""
        with self._mutex:
            if (mine := self._mine) is None:
                return None
            self._mine = None if release else mine
            with suppress(Exception):  # storages raise whatever their libraries do
                held, now = self.read(), self._clock.time()
                there = Driver.decoded(held)
                if there is not None and there.token != mine.token:
                    self._mine = None
                    return there
                beat = msgspec.structs.replace(mine, heard=now)
                self.swap(held, None if release else beat.encoded())
        return None

    def read(self) -> bytes | None:
        """Return the file's content; None if it does not exist."""
        with suppress(FileNotFoundError):
            if self._local is not None:
                return read_plain(self._local, self._name, most=_MOST_BYTES)
            with self._filesystem.open_input_stream(self._path) as stream:
                return bytes(stream.read(_MOST_BYTES))
        return None

    def swap(self, held: bytes | None, data: bytes | None) -> bool:
        """Replace the content ``held``, None for no file; return False if it has changed."""
        with ExitStack() as stack:
            if self._local is None:
                self._filesystem.create_dir(posixpath.dirname(self._path))
            else:
                folder, file = posixpath.split(self._name)
                at, dir_fd = stack.enter_context(folder_in(self._local, folder, make=True))
                if dir_fd is not None:  # Windows has none
                    with suppress(OSError):  # some network storages cannot
                        import fcntl

                        fcntl.flock(dir_fd, fcntl.LOCK_EX)  # until it is closed
            if self.read() != held:
                return False
            if self._local is not None and data is not None:
                replace_file(at / file, data, dir_fd=dir_fd)
            elif self._local is not None:
                os.unlink(at / file, dir_fd=dir_fd)
            elif data is None:
                self._filesystem.delete_file(self._path)
            else:
                with self._filesystem.open_output_stream(self._path) as stream:
                    stream.write(data)
        return True


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
    driver = Driver.decoded(DriverLock(filesystem, home).read())
    return driver and msgspec.structs.replace(driver, alive=driver.is_alive(now))
