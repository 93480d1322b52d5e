"""Chooses which random runs a test makes: few at each push, others each day, and many at night."""

from __future__ import annotations

import datetime
import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

Named = TypeVar("Named")

#: Times as many as at each push, from the environment: ``TUNEKIT_SCHEDULES=30 scripts/test``.
SCHEDULES = int(os.environ.get("TUNEKIT_SCHEDULES", "1"))
#: The day, which chooses them: ``TUNEKIT_DAY=2026-11-28 scripts/test`` runs those of another one.
#: All processes of a run get the same.
DAY = os.environ.setdefault(
    "TUNEKIT_DAY", datetime.datetime.now(datetime.timezone.utc).date().isoformat()
)
#: Cases begin with different seeds, so that few of each are still many kinds of runs.
_FIRST = 30


def drawn_by(name: str) -> int:
    """Return a number that a name and the day choose."""
    return zlib.crc32(f"{name}/{DAY}".encode())


def at_push(test: str, count: int, one_in: int) -> range:
    """Return which of a test's ``count`` cases run at each push: one in so many, at least one."""
    return range(drawn_by(test) % min(one_in, count), count, one_in)


def mode_at_push(case: str, modes: Sequence[Named]) -> Named:
    """Return in which mode a test of a scheduler runs at each push.

    That is the default in half of the tests, and in the others one that differs from test to test
    and from day to day, so that each one is covered.
    """
    others, drawn = [mode for mode in modes if str(mode) != "auto"], drawn_by(case)
    if not others or (len(others) < len(modes) and drawn % 2):
        return modes[0]
    return others[drawn // 2 % len(others)]


def seeds(count: int, *case: str) -> range:
    """Return ``count`` seeds, times what was asked for, from one that names and the day choose."""
    first = drawn_by("/".join(case)) % _FIRST if case else 0
    return range(first, first + count * SCHEDULES)
