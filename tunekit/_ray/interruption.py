"""What Ray does when a driver is interrupted, as far as tunekit does it otherwise."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Signals", "end_process", "ended_by_sigterm", "stands_in_ray", "without_advice"]

# How Tune begins what it says of an interrupted sweep, with its own way to go on.
_ADVICE = "Experiment has been interrupted"


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Keep Tune from advising ``ray.tune.Tuner.restore``, which a sweep of tunekit's refuses."""

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
    """End a sweep on SIGTERM as on the first Ctrl-C; a second one acts as it did before.

    On the main thread only, where Python handles signals, and only in the place of the default or
    of Ray's own handler, which exits at once: one of the user's stays. Afterwards the handlers are
    as they were, also those that Tune leaves behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in _changed()}

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, former[signal.SIGTERM])
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell runs behind it
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # which Tune handles

    if _may_be_replaced(former[signal.SIGTERM]):
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:  # one that was not installed from Python
                signal.signal(number, handler)


class Signals:
    """Lets a thread receive the signals that end a sweep, also while the main thread is in C++.

    There Python calls no handler, but it reports each signal to a file descriptor at once.
    """

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._there.setblocking(False)
        self._former = -1
        #: The first signal that has arrived and ends the sweep; None until there is one.
        self.first: int | None = None

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Receive them meanwhile; without effect outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._former = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._former)

    def wait(self, timeout_s: float) -> int | None:
        """Return the signal that ends the sweep, as soon as there is one; None if there is none."""
        if select.select([self._here], [], [], timeout_s)[0]:
            arrived = self._here.recv(4096)
            if self._former >= 0:  # that of an event loop in which the sweep runs
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
    """End this process at once, from any thread: what its main thread waits for is not there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whatever it was replaced by
            stream.flush()
    os._exit(code)


def stands_in_ray() -> bool:
    """Return whether the main thread is in a call to Ray, and so in nothing of tunekit's.

    Example:
        >>> stands_in_ray()
        False
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("ray.")


def _ends(number: int) -> bool:
    """Return whether a signal ends a sweep: its handler is Python's, Ray's or tunekit's own."""
    if number not in _changed():
        return False
    handler = signal.getsignal(number)
    own = handler is signal.default_int_handler or getattr(handler, "__module__", "") == __name__
    return own or _may_be_replaced(handler)


def _changed() -> list[signal.Signals]:
    """The signals whose handlers are changed while a sweep runs, by tunekit or by Tune."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    return [*numbers, signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else numbers


def _may_be_replaced(handler: Any) -> bool:
    ours_to_replace = handler in (signal.SIG_DFL, None)
    return ours_to_replace or str(getattr(handler, "__module__", "")).startswith("ray.")
