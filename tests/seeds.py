"""How many random runs a test makes: a few at each push, many more at night."""

from __future__ import annotations

import os
import zlib

#: Times as many as at each push, from the environment: ``TUNEKIT_SCHEDULES=30 scripts/test``.
SCHEDULES = int(os.environ.get("TUNEKIT_SCHEDULES", "1"))
#: Cases begin with different seeds, so that few of each are still many kinds of runs.
_FIRST = 30


def at_push(test: str, count: int, one_in: int) -> range:
    """Return which of a test's ``count`` cases run at each push: one in so many, at least one."""
    return range(zlib.crc32(test.encode()) % min(one_in, count), count, one_in)


def seeds(count: int, *case: str) -> range:
    """Return ``count`` seeds, times what was asked for, from one that the case's names choose."""
    first = zlib.crc32("/".join(case).encode()) % _FIRST if case else 0
    return range(first, first + count * SCHEDULES)
