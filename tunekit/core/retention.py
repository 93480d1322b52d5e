"""Which checkpoints of a trial may be deleted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Kept", "rank", "surplus"]


@dataclass(frozen=True)
class Kept:
    """A checkpoint that lies in storage.

    Attributes:
        order: Its place among the trial's checkpoints in the order they were saved.
        score: Its score, larger is better; None if it has none (or NaN).
        leased: Whether a validation or a clone still needs it.
    """

    order: int
    score: float | None = None
    leased: bool = False


def rank(checkpoints: Sequence[Kept], *, by_score: bool) -> list[int]:
    """Return the indices from worst to best.

    By score, those without one rank below all that have one; equals and all others by age, the
    older the worse.
    """

    def key(index: int) -> tuple[bool, float, int]:
        checkpoint = checkpoints[index]
        score = checkpoint.score if by_score else None
        if score is None or math.isnan(score):
            return (False, 0.0, checkpoint.order)
        return (True, score, checkpoint.order)

    return sorted(range(len(checkpoints)), key=key)


def surplus(checkpoints: Sequence[Kept], num_to_keep: int | None, *, by_score: bool) -> list[int]:
    """Return the indices of the checkpoints to delete.

    The best ``num_to_keep`` stay, and so do all that are leased and the newest one, which a
    restart needs.

    Example:
        >>> checkpoints = [Kept(0, 0.9), Kept(1, 0.5), Kept(2, 0.7, leased=True), Kept(3)]
        >>> surplus(checkpoints, 1, by_score=True)
        [1]
    """
    if num_to_keep is None or not checkpoints:
        return []
    newest = max(range(len(checkpoints)), key=lambda index: checkpoints[index].order)
    worst_first = rank(checkpoints, by_score=by_score)
    return sorted(
        index
        for index in worst_first[: max(0, len(worst_first) - num_to_keep)]
        if index != newest and not checkpoints[index].leased
    )
