"""Handle interruptions of a driver where tunekit differs from Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

# The start of Tune's message about an interrupted sweep, with its own advice.
_ADVICE = "Experiment has been interrupted"


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Keep Tune from advising ``ray.tune.Tuner.restore``, which tunekit's sweeps refuse."""

    def other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_ADVICE)

    logger = logging.getLogger("ray.tune.tune")
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End a sweep on SIGTERM as on the first Ctrl-C; the former handler gets a second SIGTERM.

    This works on the main thread only, where Python handles signals. It replaces the default
    handler, or Ray's, which exits at once, but not one of the user. Afterwards, all handlers are
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

    Python calls no handler then, but it writes each signal to a file descriptor at once.
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
    """End this process at once, from any thread, because its main thread may never return."""
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
