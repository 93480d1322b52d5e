"""Retention of checkpoints: which are needed, and which of the others are deleted.

A checkpoint that is needed has a lease in ``Engine.leases``, in the name of a holder:

- :func:`scheduler_holder`: the scheduler has asked for it, and may clone it until it asks for a
  newer one or the trial has ended.
- :func:`clone_holder`: a trial was overwritten with it, and Tune has no newer checkpoint of the
  trial.

A checkpoint that waits for its score needs none: Tune does not have it yet.

Checkpoints are deleted in two places of ``_ray/checkpoints.py``. At the end of each step, the
driver prunes the trials of :meth:`Leases.pop_touched`: it deletes the checkpoints that are
:func:`surplus`. A restore removes incomplete uploads of killed processes: :func:`orphaned`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

#: Who needs a checkpoint: a purpose and a name.
Holder: TypeAlias = tuple[str, ...]


def clone_holder(trial_id: str, generation: int) -> Holder:
    """Return the holder for the start of a trial's generation, until the trial saves again."""
    return ("clone", trial_id, str(generation))


def scheduler_holder(trial_id: str) -> Holder:
    """Return the holder for a trial's checkpoint that the scheduler may clone."""
    return ("scheduler", trial_id)


def rank(score: float | None) -> tuple[bool, float]:
    """Return the sort key of a checkpoint with a score; larger is better.

    Checkpoints without a score (or with NaN) rank below all others. Equal ones rank by age, oldest
    first, if they are sorted in the order in which they were saved.
    """
    known = score is not None and not math.isnan(score)
    return (known, score if known and score is not None else 0.0)


def surplus(ranked: Sequence[str], num_to_keep: int | None, needed: Container[str]) -> list[str]:
    """Return the checkpoints of a trial to delete.

    The best ``num_to_keep`` stay, as do all that are needed and the newest one, which a restart
    needs.

    Args:
        ranked: The paths, from worst to best; those of newer checkpoints sort last.
        num_to_keep: How many to keep; None for all.
        needed: The paths of checkpoints that are needed.

    Example:
        >>> surplus(["c4", "c2", "c3", "c1"], 1, needed=["c3"])
        ['c2']
    """
    if num_to_keep is None or not ranked:
        return []
    newest = max(ranked)
    worst = ranked[: max(0, len(ranked) - num_to_keep)]
    return [path for path in worst if path != newest and path not in needed]


class Leases:
    """The checkpoints that are needed, and the trials with checkpoints that may be deleted.

    A holder has one lease at a time; taking another releases the first. Several holders may lease
    the same checkpoint, which is free when the last one has released it.

    Example:
        >>> leases = Leases()
        >>> leases.acquire(scheduler_holder("a"), "a/checkpoint_3", "a")
        >>> leases.acquire(clone_holder("b", 1), "a/checkpoint_3")
        >>> leases.release(scheduler_holder("a"))
        >>> list(leases), leases.pop_touched()
        (['a/checkpoint_3'], [])
        >>> leases.release(clone_holder("b", 1))
        >>> list(leases), leases.pop_touched()
        ([], ['a'])
    """

    def __init__(self) -> None:
        self._paths: dict[Holder, str] = {}
        self._holders: dict[str, set[Holder]] = {}
        # The trials that have saved them, and delete them when they are not needed.
        self._owners: dict[str, str] = {}
        self._touched: dict[str, None] = {}

    def acquire(self, holder: Holder, path: str, trial_id: str | None = None) -> None:
        """Lease a checkpoint to a holder, instead of the holder's previous one.

        Args:
            holder: Who needs it.
            path: The checkpoint.
            trial_id: The trial that saved it; None if unknown.
        """
        if trial_id is not None:
            self._owners.setdefault(path, trial_id)
        if self._paths.get(holder) == path:
            return
        self.release(holder)
        self._paths[holder] = path
        self._holders.setdefault(path, set()).add(holder)

    def release(self, holder: Holder) -> None:
        """Release a holder's lease, if it has one."""
        path = self._paths.pop(holder, None)
        if path is None:
            return
        holders = self._holders[path]
        holders.discard(holder)
        if not holders:
            del self._holders[path]
            owner = self._owners.pop(path, None)
            if owner is not None:
                self.touch(owner)

    def touch(self, trial_id: str) -> None:
        """Record that a trial may have a checkpoint to delete: it has a new one, or a new score."""
        self._touched[trial_id] = None

    def pop_touched(self) -> list[str]:
        """Return, once, the trials that may have checkpoints to delete."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def __contains__(self, path: object) -> bool:
        return path in self._holders

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)


# Names of checkpoints: Tune's, and those of the workers of a distributed trial.
_NAMES = re.compile(r"checkpoint_(\d{6,}|\d{4}-\d\d-\d\d_.+-[0-9a-f]{8})")


def orphaned(there: Iterable[str], known: Collection[str]) -> list[str]:
    """Return paths named like checkpoints that neither are nor contain known ones.

    Args:
        there: The paths in a trial's folder.
        known: The paths of all checkpoints that the sweep or Tune has recorded.

    Example:
        >>> there = ["t/checkpoint_000003", "t/checkpoint_000004", "t/checkpoint_x", "t/a.json"]
        >>> orphaned(there, known=["t/checkpoint_000003"])
        ['t/checkpoint_000004']
        >>> orphaned(there, known=["t/checkpoint_000003", "t/checkpoint_000004/best"])
        []
    """
    return sorted(
        path
        for path in there
        if _NAMES.fullmatch(path.rsplit("/", 1)[-1])
        and path not in known
        and not any(other.startswith(f"{path}/") for other in known)
    )
