"""Decision points: the reports whose scores the scheduler will use.

Most schedulers decide only at some reports: at a rung, at a perturbation interval. A rule
describes a scheduler's internal state for one trial: when it decides, and which scores it has
already used. What that state does not show is passed in: what pending scores will fill
(``Queue.pending_points``). So a rule is evaluated again for each report, any number of times.

An extra report does no harm: the scheduler looks at it and continues. A missing one leaves it
without a score to decide on. In case of doubt, a report is a decision point.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


class DecisionRule(Protocol):
    """When a scheduler uses a score of one trial, given its current internal state."""

    def decision_point(self, now: float, pending: Collection[float]) -> float | None:
        """Return what a report's score would fill in that state, such as a rung; None if nothing.

        Args:
            now: The time of the report, in the scheduler's own unit.
            pending: What this method returned for reports whose scores are pending.
        """
        ...


@dataclass(frozen=True)
class Rungs:
    """Decide at the first report at or past each milestone: ASHA, HyperBand, a replayed PBT.

    Args:
        times: The milestones, sorted.
        used: The milestones that the scheduler has a score for, or will not need one for.
        each: Which milestone a report fills if it has passed several open ones at once. False: all
            of them. True: the highest; the next report fills the next lower one, as in ASHA.

    Example:
        >>> rule = Rungs((1, 4, 16))
        >>> [rule.decision_point(now, pending=()) for now in (0.5, 1, 3, 4, 20)]
        [None, 1, 1, 4, 16]
        >>> [rule.decision_point(now, pending=(4,)) for now in (5, 15, 16)]
        [None, None, 16]
        >>> [Rungs((1, 4, 16), each=True).decision_point(now, pending=(4,)) for now in (5, 15, 16)]
        [1, 1, 16]
        >>> Rungs((1, 4, 16), used=frozenset({1, 4})).decision_point(5, pending=())
    """

    times: tuple[float, ...]
    used: frozenset[float] = frozenset()
    each: bool = False

    def decision_point(self, now: float, pending: Collection[float]) -> float | None:
        """Return the milestone that a report at ``now`` would fill."""
        for time in reversed(self.times):
            if time <= now:
                if time not in self.used and time not in pending:
                    return time
                if not self.each:
                    return None
        return None


@dataclass(frozen=True)
class Interval:
    """Decide when the last used score is ``interval`` old: PBT and PB2.

    Args:
        interval: The time between two scores that are used.
        burn_in: No score is used before this time.
        last: The time of the last score that the scheduler has used, initially 0.

    Example:
        >>> rule = Interval(4, burn_in=6)
        >>> [now for now in range(10) if rule.decision_point(now, pending=()) is not None]
        [6, 7, 8, 9]
        >>> [now for now in range(12) if rule.decision_point(now, pending=(6,)) is not None]
        [10, 11]
    """

    interval: float
    burn_in: float = 0.0
    last: float = 0.0

    def decision_point(self, now: float, pending: Collection[float]) -> float | None:
        """Return ``now``, if it is late enough."""
        last = max([self.last, *pending])
        return now if now >= self.burn_in and now - last >= self.interval else None


@dataclass(frozen=True)
class Always:
    """Decide at every report: the scheduler uses all scores, or it is unknown which.

    Example:
        >>> Always().decision_point(3, pending=())
        3
    """

    def decision_point(self, now: float, pending: Collection[float]) -> float | None:
        """Return ``now``."""
        return now


@dataclass(frozen=True)
class Never:
    """Decide at no report but the trial's last.

    Example:
        >>> Never().decision_point(3, pending=())
    """

    def decision_point(self, now: float, pending: Collection[float]) -> float | None:
        """Return None."""
        return None
