"""Asynchronous successive halving: which trials continue at a rung, are held there, or end.

By promotion, it is Algorithm 2 of Li et al., 2018 (https://arxiv.org/abs/1810.05934): a trial that
reaches a rung is held there. Of the ``n`` scores at a rung, the best ``n / reduction_factor`` are
promoted: those of their trials that are held continue to the next rung. By stopping, a trial that
reaches a rung ends there, unless it is among the best that have reached it so far.

With several objectives, ``tunekit.core.pareto`` ranks the scores.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tunekit.core.decision_points import DecisionRule, Never, Rungs
from tunekit.core.pareto import Point, descending, rank_points


class RungAction(enum.Enum):
    """What a trial does after a result."""

    #: It trains to the next rung.
    CONTINUE = "continue"
    #: It is held at the rung that it has reached.
    HOLD = "hold"
    #: It has trained for the maximum time, or is stopped.
    END = "end"


def milestones(
    grace_period: float, max_t: float, reduction_factor: float, bracket: int = 0
) -> tuple[float, ...]:
    """Return the times of a bracket's rungs; all are before ``max_t``.

    Args:
        grace_period: The first rung of bracket 0.
        max_t: The time at which a trial ends.
        reduction_factor: The ratio of the times of two consecutive rungs.
        bracket: The number of first rungs that the bracket skips.

    Example:
        >>> milestones(1, 27, 3), milestones(1, 28, 3, bracket=2), milestones(5, 5, 2)
        ((1, 3, 9), (9, 27), ())
    """
    found = []
    time = grace_period * reduction_factor**bracket
    while time < max_t:
        found.append(time)
        time *= reduction_factor
    return tuple(found)


def next_bracket(sizes: Sequence[int], counts: Sequence[int]) -> int:
    """Return the bracket of the next trial, so that each bracket gets its share.

    The shares are the probabilities with which Tune's ``ASHAScheduler`` draws a bracket: the
    softmax of the sizes.

    Args:
        sizes: The number of rungs of each bracket.
        counts: The number of trials in each bracket so far.

    Example:
        >>> counts = [0, 0, 0]
        >>> for _ in range(11):
        ...     counts[next_bracket([4, 3, 2], counts)] += 1
        >>> counts
        [7, 3, 1]
    """
    weights = [math.exp(size - max(sizes)) for size in sizes]
    coming = sum(counts) + 1
    return max(
        range(len(sizes)),
        key=lambda n: (coming * weights[n] / sum(weights) - counts[n], -n),
    )


@dataclass
class _Rung:
    # The time at which trials reach it.
    time: float
    # The score of each trial, in the order in which the trials reached the rung.
    scores: dict[str, Point] = field(default_factory=dict)
    # The trials from best to worst; None if that has to be computed.
    _order: list[str] | None = None

    def record(self, trial_id: str, score: Point) -> None:
        self.scores[trial_id] = score
        if len(score) > 1 or self._order is None:
            self._order = None  # one point may change all ranks
        else:
            bisect.insort(self._order, trial_id, key=lambda one: descending(self.scores[one][0]))

    def forget(self, trial_id: str) -> None:
        del self.scores[trial_id]
        self._order = None

    def ranked(self) -> list[str]:
        if self._order is None:
            trials = list(self.scores)
            self._order = [trials[place] for place in rank_points(list(self.scores.values()))]
        return self._order

    def is_among_best(self, trial_id: str, reduction_factor: float) -> bool:
        """Return whether a trial is in the best ``1 / reduction_factor`` of those at the rung."""
        return self.ranked().index(trial_id) <= len(self.scores) / reduction_factor


class Halving:
    """Record which trial has reached which rung with which score, and which trials wait.

    Ties go to the trial that came first; NaN is the worst score. Scores of ended trials still
    count, but only held trials can be promoted.

    Args:
        brackets: The times of each bracket's rungs.
        max_t: The time at which a trial ends.
        reduction_factor: One in this many trials continues.
        stops: Whether trials that are not among the best at a rung end there; none is held.

    Example:
        >>> halving = Halving([(1, 3)], max_t=9, reduction_factor=3)
        >>> for name, score in [("a", 0.1), ("b", 0.7), ("c", 0.4)]:
        ...     halving.add(name)
        ...     print(halving.reported(name, 1, (score,)), list(halving.promotable()))
        RungAction.HOLD []
        RungAction.HOLD []
        RungAction.HOLD ['b']
        >>> halving.promote("b")
        >>> list(halving.promotable())
        []
        >>> halving.reported("b", 2, (0.8,)), halving.reported("b", 3, (0.9,))
        (<RungAction.CONTINUE: 'continue'>, <RungAction.HOLD: 'hold'>)
        >>> halving = Halving([(1, 3)], max_t=9, reduction_factor=3, stops=True)
        >>> for name, score in [("a", (0.1, 5)), ("b", (0.7, 1)), ("c", (0.4, 3)), ("d", (0.3, 1))]:
        ...     halving.add(name)
        ...     print(halving.reported(name, 1, score))
        RungAction.CONTINUE
        RungAction.CONTINUE
        RungAction.END
        RungAction.END
    """

    def __init__(
        self,
        brackets: Sequence[Sequence[float]],
        max_t: float,
        reduction_factor: float,
        *,
        stops: bool = False,
    ):
        self._stops = stops
        self._brackets = [[_Rung(time) for time in times] for times in brackets]
        self._max_t, self._reduction_factor = max_t, reduction_factor
        # The number of trials in each bracket so far.
        self._counts = [0] * len(brackets)
        # The bracket of each trial that has not ended, and the last rung that it has reached.
        self._bracket: dict[str, int] = {}
        self._level: dict[str, int] = {}
        # The trials held at the last rung that they have reached.
        self._held: set[str] = set()
        # The latest time of a trial that ended without being stopped.
        self._farthest = -math.inf
        # The trials that may be promoted, until something changes.
        self._promotable: list[str] | None = None

    # Events ------------------------------------------------------------------------------------

    def add(self, trial_id: str) -> None:
        """Assign a trial to a bracket; one that restarts after a failure keeps its own.

        Example:
            >>> halving = Halving([(1, 3), (3,)], max_t=9, reduction_factor=3)
            >>> for name in "abcd":
            ...     halving.add(name)
            >>> [halving.rule(name).times for name in "abcd"]
            [(1, 3, 9), (3, 9), (1, 3, 9), (1, 3, 9)]
        """
        if trial_id in self._bracket:
            return
        sizes = [len(rungs) for rungs in self._brackets]
        bracket = self._bracket[trial_id] = next_bracket(sizes, self._counts)
        self._counts[bracket] += 1
        self._level[trial_id] = -1

    def reported(self, trial_id: str, time: float, score: Point) -> RungAction:
        """Record a result of a running trial.

        A result at or past several new rungs counts for the last of them.

        Args:
            trial_id: The trial.
            time: How long it has trained.
            score: Its value of each objective (larger is better).
        """
        if trial_id not in self._bracket:
            return RungAction.CONTINUE
        self.promote(trial_id)  # it runs, so it is no longer held
        if time >= self._max_t:
            return RungAction.END
        rungs = self._brackets[self._bracket[trial_id]]
        level = bisect.bisect_right([rung.time for rung in rungs], time) - 1
        if level <= self._level[trial_id]:
            return RungAction.CONTINUE
        rungs[level].record(trial_id, score)
        self._level[trial_id] = level
        if self._stops:
            best = rungs[level].is_among_best(trial_id, self._reduction_factor)
            return RungAction.CONTINUE if best else RungAction.END
        self._held.add(trial_id)
        self._promotable = None
        return RungAction.HOLD

    def promote(self, trial_id: str) -> None:
        """Promote a held trial to the next rung."""
        if trial_id in self._held:
            self._held.discard(trial_id)
            self._promotable = None

    def failed(self, trial_id: str) -> None:
        """Record a failure. If the trial restarts, it must reach its rung again.

        Example:
            >>> halving = Halving([(1,)], max_t=9, reduction_factor=3)
            >>> halving.add("a")
            >>> for time in (1, 2):
            ...     verdict = halving.reported("a", time, (0.5,))
            ...     halving.failed("a")
            ...     print(verdict)
            RungAction.HOLD
            RungAction.HOLD
        """
        if trial_id not in self._held:
            return
        self.promote(trial_id)
        rungs, level = self._brackets[self._bracket[trial_id]], self._level[trial_id]
        rungs[level].forget(trial_id)
        below = [n for n in range(level) if trial_id in rungs[n].scores]
        self._level[trial_id] = max(below, default=-1)

    def ended(self, trial_id: str, time: float | None = None) -> None:
        """Record that a trial has ended; its scores still count.

        Args:
            trial_id: The trial.
            time: The time that it has reached; None if it was ended while it was held.
        """
        self.promote(trial_id)
        self._bracket.pop(trial_id, None)
        self._level.pop(trial_id, None)
        if time is not None:
            self._farthest = max(self._farthest, time)

    # Decisions ---------------------------------------------------------------------------------

    def holds(self, trial_id: str) -> bool:
        """Return whether a trial is held at a rung."""
        return trial_id in self._held

    def has_begun(self, trial_id: str) -> bool:
        """Return whether a trial has reached a rung."""
        return self._level.get(trial_id, -1) >= 0

    def promotable(self) -> Iterator[str]:
        """Yield the trials that may be promoted: the highest rung first, then the best score."""
        if self._promotable is None:
            found = []
            for rung in self._from_above():
                most = int(len(rung.scores) / self._reduction_factor)
                found += [one for one in rung.ranked()[:most] if self._holds_at(one, rung)]
            self._promotable = found
        return iter(self._promotable)

    def held(self) -> Iterator[str]:
        """Yield all held trials: the highest rung first, then the best score."""
        for rung in self._from_above():
            for trial_id in rung.ranked():
                if self._holds_at(trial_id, rung):
                    yield trial_id

    def is_ahead(self, trial_id: str) -> bool:
        """Return whether no ended trial went beyond the rung where this one is held.

        Example:
            >>> halving = Halving([(1, 3)], max_t=9, reduction_factor=3)
            >>> for name, time in [("a", 3), ("b", 2)]:
            ...     halving.add(name)
            ...     _ = halving.reported(name, time, (0.5,))
            >>> halving.is_ahead("a")
            True
            >>> halving.ended("b", time=9)
            >>> halving.is_ahead("a")
            False
        """
        return self._farthest <= self._rung_of(trial_id).time

    def rule(self, trial_id: str) -> DecisionRule:
        """Return the rule for which scores of a trial the scheduler will use.

        Example:
            >>> halving = Halving([(1, 3)], max_t=9, reduction_factor=3)
            >>> halving.add("a")
            >>> verdict = halving.reported("a", 1, (0.5,))
            >>> rule = halving.rule("a")
            >>> [time for time in range(1, 10) if rule.decision_point(time, pending=[]) == time]
            [3, 9]
        """
        if trial_id not in self._bracket:
            return Never()
        times = [rung.time for rung in self._brackets[self._bracket[trial_id]]]
        used = frozenset(times[: self._level[trial_id] + 1])
        return Rungs((*times, self._max_t), used)

    def counts(self) -> list[tuple[float, int, int]]:
        """Return (time, scores, held trials) of each rung, from the lowest up."""
        return [
            (rung.time, len(rung.scores), sum(self._holds_at(one, rung) for one in rung.scores))
            for rung in reversed(list(self._from_above()))
        ]

    def _from_above(self) -> Iterator[_Rung]:
        """Yield all brackets' rungs, the latest first."""
        rungs = [rung for bracket in self._brackets for rung in bracket]
        return iter(sorted(rungs, key=lambda rung: rung.time, reverse=True))

    def _rung_of(self, trial_id: str) -> _Rung:
        return self._brackets[self._bracket[trial_id]][self._level[trial_id]]

    def _holds_at(self, trial_id: str, rung: _Rung) -> bool:
        return trial_id in self._held and self._rung_of(trial_id) is rung
