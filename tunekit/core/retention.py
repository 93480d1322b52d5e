"""Which checkpoints of a trial are kept, for whom, and which may be deleted."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Kept", "Leases", "left_over", "rank", "surplus"]


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


class Leases:
    """Checkpoints that somebody still needs: a validation, a scheduler, a clone.

    A holder has one lease at a time; taking another gives the first one back. Several holders may
    have a lease on the same checkpoint, which is free when the last one has given it back.

    Example:
        >>> leases = Leases()
        >>> leases.take("validation 1", "trial_a/checkpoint_3")
        >>> leases.take("clone b", "trial_a/checkpoint_3")
        >>> leases.release("validation 1")
        >>> "trial_a/checkpoint_3" in leases
        True
        >>> leases.release("clone b")
        'trial_a/checkpoint_3'
    """

    def __init__(self) -> None:
        self._paths: dict[Hashable, str] = {}
        self._holders: dict[str, set[Hashable]] = {}

    def take(self, holder: Hashable, path: str) -> str | None:
        """Keep ``path`` for ``holder``; return the path that became free by that, if any."""
        if self._paths.get(holder) == path:
            return None
        freed = self.release(holder)
        self._paths[holder] = path
        self._holders.setdefault(path, set()).add(holder)
        return freed

    def release(self, holder: Hashable) -> str | None:
        """Give back what ``holder`` has; return its path if nobody else needs it."""
        path = self._paths.pop(holder, None)
        if path is None:
            return None
        holders = self._holders[path]
        holders.discard(holder)
        if holders:
            return None
        del self._holders[path]
        return path

    def held(self, holder: Hashable) -> str | None:
        """The path that is kept for ``holder``, if any."""
        return self._paths.get(holder)

    def __contains__(self, path: object) -> bool:
        return path in self._holders

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        """Return how many checkpoints are kept."""
        return len(self._holders)


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
