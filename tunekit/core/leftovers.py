"""Checkpoints that a killed process has left in a trial's folder, and nobody knows of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

__all__ = ["left_over"]

# How Tune names a checkpoint, and how the workers of a distributed trial do.
_NAMES = re.compile(r"checkpoint_(\d{6,}|\d{4}-\d\d-\d\d_.+-[0-9a-f]{8})")


def left_over(there: Iterable[str], known: Collection[str]) -> list[str]:
    """Return what is named like a checkpoint, and is no known one, nor has one in it.

    Args:
        there: The paths of what is in a trial's folder.
        known: The paths of all checkpoints that the sweep has written down, or that Tune has.

    Example:
        >>> there = ["t/checkpoint_000003", "t/checkpoint_000004", "t/checkpoint_x", "t/a.json"]
        >>> left_over(there, known=["t/checkpoint_000003"])
        ['t/checkpoint_000004']
        >>> left_over(there, known=["t/checkpoint_000003", "t/checkpoint_000004/best"])
        []
    """
    return sorted(
        path
        for path in there
        if _NAMES.fullmatch(path.rsplit("/", 1)[-1])
        and path not in known
        and not any(other.startswith(f"{path}/") for other in known)
    )
