"""Retention of checkpoints: which are needed, and which of the others are deleted.

A checkpoint that is needed has a lease in ``State.leases``, in the name of a holder:

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
    return (False, 0.0) if score is None or math.isnan(score) else (True, score)


def surplus(
    ranked: Sequence[str], newest: str | None, num_to_keep: int | None, needed: Container[str]
) -> list[str]:
    """Return the checkpoints of a trial to delete.

    The best ``num_to_keep`` stay, as do all that are needed and the newest one, which a restart
    needs.

    Args:
        ranked: The paths, from worst to best.
        newest: The path of the newest; names say nothing about age.
        num_to_keep: How many to keep; None for all.
        needed: The paths of checkpoints that are needed.

    Example:
        >>> surplus(["epoch-10", "epoch-8", "epoch-9", "epoch-7"], "epoch-10", 1, ["epoch-9"])
        ['epoch-8']
    """
    if num_to_keep is None:
        return []
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


# Names of checkpoints -----------------------------------------------------------------------------

# Tune's, and those of the workers of a distributed trial.
_NAMES = re.compile(r"checkpoint_\d{6,}|.+-run[0-9a-f]{8}-\d+")


def unique_name(given: str, run: str, report: int) -> str:
    """Return the name for a checkpoint of a training loop, which no other one in the sweep has.

    The loop may choose the same name again: when it restarts, in a clone, or at each report. The
    files of the older checkpoint would then be overwritten, and its score be that of other weights.

    Args:
        given: The name that the loop has chosen.
        run: The loop's run: eight random hexadecimal digits.
        report: The number of its report.

    Example:
        >>> unique_name("epoch-5", "1a2b3c4d", 5), unique_name("best/loss", "1a2b3c4d", 6)
        ('epoch-5-run1a2b3c4d-5', 'best-loss-run1a2b3c4d-6')
    """
    return f"{str(given).replace('/', '-')}-run{run}-{report}"


def uploads_of(run: str, names: Iterable[str]) -> list[str]:
    """Return the names that a run of a training loop has given to its checkpoints.

    Example:
        >>> uploads_of("1a2b3c4d", ["epoch-5-run1a2b3c4d-5", "epoch-5-runffffffff-5", "a.json"])
        ['epoch-5-run1a2b3c4d-5']
    """
    return [name for name in names if f"-run{run}-" in name and _NAMES.fullmatch(name)]


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
