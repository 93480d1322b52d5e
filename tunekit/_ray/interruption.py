"""Handle interruptions of a driver where tunekit differs from Ray.

SIGTERM ends a sweep like Ctrl-C, and a driver does not wait forever for a Ray that a signal has
ended too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ray
from ray.exceptions import RaySystemError

logger = logging.getLogger(__name__)

# The start of Tune's message about an interrupted sweep, with its own advice.
_ADVICE = "Experiment has been interrupted"

# After a signal, in seconds: the interval between checks, how long Ray's services may still
# answer, and how long the main thread has to leave. Tune alone takes three seconds.
_SOON_S, _SETTLES_S, _GRACE_S = 0.1, 0.5, 2.0
# The seconds that recording the end may take if the main thread does not leave.
_CLOSING_S = 1.0
_TIMEOUT_S = 3.0

Address = tuple[str, int]


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Keep Tune from recommending ``ray.tune.Tuner.restore``, which tunekit's sweeps refuse."""

    def other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_ADVICE)

    tunes = logging.getLogger("ray.tune.tune")
    tunes.addFilter(other)
    try:
        yield
    finally:
        tunes.removeFilter(other)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End a sweep on SIGTERM as on the first Ctrl-C; a second SIGTERM goes to the former handler.

    This only works on the main thread, where Python handles signals. It replaces the default
    handler or Ray's, which exits immediately, but not a user's. Afterwards, all handlers are
    restored, including those that Tune changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in _changed()}

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, former[signal.SIGTERM])
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in background jobs of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # which Tune handles

    if _may_be_replaced(former[signal.SIGTERM]):
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:  # None: it was not installed from Python
                signal.signal(number, handler)


class Signals:
    """Receive the signals that end a sweep in a thread, even while the main thread is in C++.

    Python then calls no handler, but it writes each signal to a file descriptor immediately.
    """

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._there.setblocking(False)
        self._former = -1
        #: The first received signal that ends the sweep; None until there is one.
        self.first: int | None = None

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Receive signals meanwhile; this has no effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._former = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._former)

    def wait(self) -> int | None:
        """Wait for any signal, or :meth:`wake`; return the first one that ends the sweep."""
        arrived = self._here.recv(4096)
        if self._former >= 0:  # the descriptor of an event loop in which the sweep runs
            with contextlib.suppress(OSError):
                os.write(self._former, arrived.replace(b"\0", b""))
        ends = [number for number in arrived if number and _ends(number)]
        self.first = self.first or next(iter(ends), None)
        return self.first

    def wake(self) -> None:
        """End a :meth:`wait`."""
        with contextlib.suppress(OSError):
            self._there.send(b"\0")


def end_process(code: int) -> None:
    """End this process immediately, from any thread: its main thread may never return."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # any error of a replaced stream
            stream.flush()
    os._exit(code)


def is_in_ray() -> bool:
    """Return whether the main thread is in a call to Ray.

    Example:
        >>> is_in_ray()
        False
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("ray.")


def _ends(number: int) -> bool:
    """Return whether a signal ends a sweep, because its handler is Python's, Ray's or tunekit's."""
    if number not in _changed():
        return False
    handler = signal.getsignal(number)
    own = handler is signal.default_int_handler or getattr(handler, "__module__", "") == __name__
    return own or _may_be_replaced(handler)


def _changed() -> list[signal.Signals]:
    """Return the signals whose handlers tunekit or Tune changes while a sweep runs."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    return [*numbers, signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else numbers


def _may_be_replaced(handler: Any) -> bool:
    """Return whether a handler is the default or Ray's."""
    default = handler in (signal.SIG_DFL, None)
    return default or str(getattr(handler, "__module__", "")).startswith("ray.")


def services() -> dict[str, Address]:
    """Return the addresses of the services that the driver needs.

    These are the cluster's GCS and the raylet of the driver's own node; none without a cluster.
    """
    if not ray.is_initialized():
        return {}
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    found = {"GCS": (host.strip("[]"), int(port))}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            found["raylet"] = (node["NodeManagerAddress"], int(node["NodeManagerPort"]))
    return found


def answers(address: Address) -> bool:
    """Return whether a service accepts connections at an address."""
    try:
        socket.create_connection(address, timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True


class RayWatch:
    """Detect that Ray's GCS or this node's raylet is gone; end the process if a signal ended both.

    ``timeout``, Slurm and most supervisors send SIGTERM to the whole process group, which includes
    the services that ``ray.init()`` has started. A call to Ray then blocks in C++ for a minute,
    where Python handles no signals. So once a signal has arrived and a service is gone, the main
    thread has two seconds to leave; then a thread ends the process. That loses nothing, because
    each line of the journal is written before it is acted on. Even after the main thread has left,
    it may block in Ray again: Ray and Tune query the GCS when Python exits too.
    """

    def __init__(self) -> None:
        self._services: dict[str, Address] = {}
        self._signals: Signals | None = None
        self._over = threading.Event()

    def check(self) -> None:
        """Raise an error if Ray is gone, so that the failures that this causes are not recorded.

        A GCS that was lost without a signal may come back.

        Raises:
            ray.exceptions.RaySystemError: If the raylet is gone, or if Ray ends with the driver.
        """
        ends = self._signals is not None and self._signals.first is not None
        name = self._lost_service() if ends else None
        if name is None and "raylet" in self._services and not answers(self._services["raylet"]):
            name = "raylet"
        if name is not None:
            host, port = self._services[name]
            raise RaySystemError(f"Ray's {name} at {host}:{port} does not answer")

    @contextlib.contextmanager
    def watching(
        self, how_to_continue: Callable[[], str], close: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Watch Ray's services in a thread.

        Args:
            how_to_continue: Returns instructions for continuing when Ray is up again.
            close: Records the end if the thread ends the process; called in another thread.
        """
        try:
            self._services = services()
        except Exception as error:  # a sweep can run without being watched
            logger.debug("Ray's services are not watched: %s", error)
        if not self._services:
            yield
            return
        self._signals = signals = Signals()
        run = partial(self._watch, signals, how_to_continue, close)
        with signals.received():
            threading.Thread(target=run, name="tunekit-watch", daemon=True).start()
            try:
                yield
            finally:
                self._over.set()
                signals.wake()

    def _watch(
        self,
        signals: Signals,
        how_to_continue: Callable[[], str],
        close: Callable[[], None] | None,
    ) -> None:
        """Wait for a signal; end the process if Ray also ends and blocks the main thread."""
        while (number := signals.wait()) is None:
            if self._over.is_set():
                return
        while (name := self._lost_service()) is None:
            if self._over.is_set():
                return
        if self._over.wait(_GRACE_S):
            if not _blocks_in_ray():
                return
        elif close is not None and is_in_ray():  # else, the main thread may be recording the end
            closing = threading.Thread(target=close, daemon=True)
            closing.start()
            closing.join(_CLOSING_S)
        logger.error("%s", _format_end(name, number, how_to_continue()))
        end_process(128 + number)

    def _lost_service(self) -> str | None:
        """Return a service that does not answer, or stops answering, within half a second."""
        settled = time.monotonic() + _SETTLES_S
        while True:
            found = (name for name, at in self._services.items() if not answers(at))
            name = next(found, None)
            if name is not None or time.monotonic() >= settled:
                return name
            time.sleep(_SOON_S)


def _blocks_in_ray() -> bool:
    """Return whether the main thread blocks in Ray too long; False once Ray is down."""
    since = time.monotonic()
    while ray.is_initialized():
        if not is_in_ray():
            since = time.monotonic()
        elif time.monotonic() >= since + _GRACE_S:
            return True
        time.sleep(_SOON_S)
    return False


def _format_end(name: str, number: int, how_to_continue: str) -> str:
    return (
        f"{signal.Signals(number).name} has ended Ray's {name} too, because it was sent to the "
        "whole process group, and a call to Ray does not return. This process ends now. The "
        f"sweep's progress is recorded; to continue it:\n{how_to_continue}"
    )
