"""Decide which versions of the journal's format this tunekit reads, and convert older lines.

Whoever renames or removes a field of an event, or changes what one means, raises ``VERSION`` and
adds to ``UPGRADES`` how a line of the former version becomes one of the new. Journals are read from
the oldest version from which all upgrades exist; new sessions are written in the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The version of the format, in each session's first line.
VERSION = 5

#: By older version, how one of its lines becomes one of the next version.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def oldest() -> int:
    """Return the oldest version that can be read.

    Example:
        >>> oldest() <= VERSION
        True
    """
    version = VERSION
    while version - 1 in UPGRADES:
        version -= 1
    return version


def upgraded(line: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a line of a version as one of the newest.

    Example:
        >>> upgraded({"n": 7, "event": "waited"}, VERSION)
        {'n': 7, 'event': 'waited'}
    """
    for older in range(version, VERSION):
        line = UPGRADES[older](line)
    return line
