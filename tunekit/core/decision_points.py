"""Which reports' scores the scheduler will use.

Most schedulers decide only at some reports: at a rung, at a perturbation interval. A rule tells
what a scheduler's internal state says about one trial now: when it decides, and what it has already
used. What that cannot know is passed in: what the scores that are on their way will serve
(``Engine.coming``). So a rule is asked anew for each report, and as often as one likes.

One report too many does no harm: the scheduler looks at it and goes on. One too few leaves it
without a score to decide by. Where the two cannot be told apart, the report is due.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Always", "DecisionRule", "Interval", "Never", "Rungs"]


class DecisionRule(Protocol):
    """When a scheduler uses a score of one trial, as its books now stand."""

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return what a report's score would serve in the scheduler's books; None if nothing.

        Args:
            now: The time of the report, in the scheduler's own unit.
            coming: What this method returned for reports whose scores are on their way.
        """
        ...


@dataclass(frozen=True)
class Rungs:
    """Due at the first report at or past each milestone: ASHA, HyperBand, a replayed PBT.

    Args:
        times: The milestones, sorted.
        served: The milestones that the scheduler has a score for, or will not ask one for.
        each: What a report that has passed several open milestones at once serves. False: all of
            them. True: the highest; the next report serves the next lower one, as in ASHA.

    Example:
        >>> rule = Rungs((1, 4, 16))
        >>> [rule.serves(now, coming=()) for now in (0.5, 1, 3, 4, 20)]
        [None, 1, 1, 4, 16]
        >>> [rule.serves(now, coming=(4,)) for now in (5, 15, 16)]
        [None, None, 16]
        >>> [Rungs((1, 4, 16), each=True).serves(now, coming=(4,)) for now in (5, 15, 16)]
        [1, 1, 16]
        >>> Rungs((1, 4, 16), served=frozenset({1, 4})).serves(5, coming=())
    """

    times: tuple[float, ...]
    served: frozenset[float] = frozenset()
    each: bool = False

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return the milestone that a report at ``now`` would serve."""
        for time in reversed(self.times):
            if time <= now:
                if time not in self.served and time not in coming:
                    return time
                if not self.each:
                    return None
        return None


@dataclass(frozen=True)
class Interval:
    """Due when the last score that was used is ``interval`` old: PBT and PB2.

    Args:
        interval: The time between two scores that are used.
        burn_in: No score is used before this time.
        last: The time of the last score that the scheduler has used, 0 at first.

    Example:
        >>> rule = Interval(4, burn_in=6)
        >>> [now for now in range(10) if rule.serves(now, coming=()) is not None]
        [6, 7, 8, 9]
        >>> [now for now in range(12) if rule.serves(now, coming=(6,)) is not None]
        [10, 11]
    """

    interval: float
    burn_in: float = 0.0
    last: float = 0.0

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return ``now``, if it is late enough."""
        last = max([self.last, *coming])
        return now if now >= self.burn_in and now - last >= self.interval else None


@dataclass(frozen=True)
class Always:
    """Every report is due: the scheduler uses all scores, or nobody knows which.

    Example:
        >>> Always().serves(3, coming=())
        3
    """

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return ``now``."""
        return now


@dataclass(frozen=True)
class Never:
    """No report is due but the trial's last: the scheduler decides nothing.

    Example:
        >>> Never().serves(3, coming=())
    """

    def serves(self, now: float, coming: Collection[float]) -> float | None:
        """Return None."""
        return None
