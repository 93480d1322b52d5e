"""Show tunekit's messages during a call if no application handles them.

Importing sets nothing up: not even a ``NullHandler``, which would silence the warnings that
Python shows by itself. An application that configures logging, at any time, gets every message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tunekit.core.words import printable

__all__ = ["shown"]

_log = logging.getLogger("tunekit")


class _Formatter(logging.Formatter):
    """Keeps values in a message from moving the cursor or imitating a message."""

    def format(self, record: logging.LogRecord) -> str:
        first, *others = printable(super().format(record).split("\n"))
        return "\n".join([first, *(f"  {line}" for line in others)])


class _WhereNobodyListens(logging.StreamHandler):
    """Shows messages that no other handler shows."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Formatter("%(asctime)s tunekit %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not _heard():
            super().emit(record)


def _heard() -> bool:
    """Return whether an application handles tunekit's messages."""
    handlers = [*_log.handlers, *(logging.getLogger().handlers if _log.propagate else [])]
    return any(not isinstance(h, (logging.NullHandler, _WhereNobodyListens)) for h in handlers)


@contextmanager
def shown() -> Iterator[None]:
    """Show messages from INFO on, on stderr, as long as no application handles them.

    Example:
        >>> with shown():
        ...     logging.getLogger("tunekit").info("a sweep runs")
    """
    if _heard() or any(isinstance(handler, _WhereNobodyListens) for handler in _log.handlers):
        yield
        return
    handler, level = _WhereNobodyListens(), _log.level
    if level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        if level == logging.NOTSET and _log.level == logging.INFO:
            _log.setLevel(level)
