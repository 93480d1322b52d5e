"""Show tunekit's messages during a call if no application handles them.

Importing tunekit sets up nothing, not even a ``NullHandler``, which would silence the warnings that
Python shows by default. An application that configures logging, at any time, gets every message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tunekit.messages.formatting import printable

_log = logging.getLogger("tunekit")


class _Formatter(logging.Formatter):
    """Format messages so that no value in one can move the cursor or imitate a message."""

    def format(self, record: logging.LogRecord) -> str:
        first, *others = printable(super().format(record).split("\n"))
        return "\n".join([first, *(f"  {line}" for line in others)])


class _FallbackHandler(logging.StreamHandler):
    """Show messages that no other handler shows."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Formatter("%(asctime)s tunekit %(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_handled():
            super().emit(record)


def _is_handled() -> bool:
    """Return whether an application handles tunekit's messages."""
    handlers = [*_log.handlers, *(logging.getLogger().handlers if _log.propagate else [])]
    return any(not isinstance(h, (logging.NullHandler, _FallbackHandler)) for h in handlers)


@contextmanager
def showing_messages() -> Iterator[None]:
    """Show messages of level INFO and above on stderr, as long as no application handles them.

    Example:
        >>> with showing_messages():
        ...     logging.getLogger("tunekit").info("a sweep runs")
    """
    if _is_handled() or any(isinstance(handler, _FallbackHandler) for handler in _log.handlers):
        yield
        return
    handler, level = _FallbackHandler(), _log.level
    if level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        if level == logging.NOTSET and _log.level == logging.INFO:
            _log.setLevel(level)
