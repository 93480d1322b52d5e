"""What Ray does when a driver is interrupted, as far as tunekit does it otherwise."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["ended_by_sigterm", "without_advice"]

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
    """Let SIGTERM end a sweep as the first Ctrl-C does; a second one acts as it did before.

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


def _changed() -> list[signal.Signals]:
    """The signals whose handlers are changed while a sweep runs, by tunekit or by Tune."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    return [*numbers, signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else numbers


def _may_be_replaced(handler: Any) -> bool:
    ours_to_replace = handler in (signal.SIG_DFL, None)
    return ours_to_replace or str(getattr(handler, "__module__", "")).startswith("ray.")
