"""Which of several checkpoints is the best, found with as few examples as that takes.

The best checkpoints of a sweep are close to each other, and were each ranked by one estimate, of
which the best is likely to be a lucky one. To confirm the winner, they are evaluated once more, in
random order: each batch goes where it tells most, and who cannot be the best any more gets none.

This is best-arm identification with a fixed confidence. Candidates are eliminated one after the
other (Even-Dar, Mannor & Mansour 2006, "Action elimination and stopping conditions for the
multi-armed bandit and reinforcement learning problems"), and of those that are left, the leader and
its closest challenger are evaluated (LUCB: Kalyanakrishnan, Tewari, Auer & Stone 2012, "PAC subset
selection in stochastic multi-armed bandits"). What is different here is that examples run out: then
a mean is exact, and nobody is evaluated for ever to tell two equal candidates apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunekit.core.confidence import Interval
from tunekit.core.problems import Problems, shown
from tunekit.core.values import number

__all__ = ["Elimination", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """Who is the best of several candidates, as far as is known.

    Attributes:
        winner: The candidate that is the best, or leads.
        certain: Whether all others are eliminated.
        confidence: The probability, at least, that the winner is the best: 0 while others may be, 1
            if every candidate's mean is exact.
        contenders: Those that may still be the best, the winner included, in the order of the
            ranking.
    """

    winner: str
    certain: bool
    confidence: float
    contenders: tuple[str, ...]


class Elimination:
    """Find the best of several candidates from intervals for their means.

    A candidate is eliminated when the best value that it can have is worse than the worst value
    that another can have. If all intervals hold together, the best candidate is never eliminated.
    So each needs an interval with the confidence :attr:`each`, which leaves every candidate the
    same share of the probability of being wrong; and the intervals must hold at all times together,
    as those of a :class:`~tunekit.core.confidence.ConfidenceSequence` do, because who is evaluated
    next depends on them.

    Args:
        candidates: Their names, the best ranked first. Equal means are ranked by this order.
        mode: ``"max"`` if large values are better, ``"min"`` if small ones are.
        confidence: The probability that the winner is the best, between 0 and 1.
        chosen_from: How many they were chosen from by estimates on the same examples, if they were.
            Who looks best after some examples was lucky with these, and his interval is missed more
            often. So all that could have been chosen need an interval with the same share of the
            probability, whether they were or not (a union bound). None: they were chosen by other
            examples, or by something else.

    Raises:
        ConfigError: If there are no candidates, or one is there twice, or ``mode`` or
            ``confidence`` is something else, or if they were chosen from fewer than there are. It
            lists all that is wrong.

    Example:
        >>> race = Elimination(["a", "b", "c"], mode="max", confidence=0.94)
        >>> round(race.each, 4), race.next()
        (0.98, ('a', 'b'))
        >>> race.evaluated("a", Interval(0.80, 0.90))
        >>> race.evaluated("b", Interval(0.82, 0.88))
        >>> race.evaluated("c", Interval(0.70, 0.79))
        >>> race.verdict()
        Verdict(winner='a', certain=False, confidence=0.0, contenders=('a', 'b'))
        >>> race.next()
        ('a', 'b')
        >>> race.exhausted("a", 0.89)
        >>> race.verdict()
        Verdict(winner='a', certain=True, confidence=0.96, contenders=('a',))
    """

    def __init__(
        self,
        candidates: Sequence[str],
        *,
        mode: str = "max",
        confidence: float = 0.95,
        chosen_from: int | None = None,
    ):
        problems = Problems("Elimination")
        names = [] if isinstance(candidates, str) else list(candidates)
        if not names or len(set(names)) < len(names):
            problems.add(
                f"candidates={shown(candidates)} must be one or more names, each there once. Pass "
                "a list of them, the best ranked first."
            )
        problems.choice("mode", mode, ["max", "min"])
        found = number(confidence)
        if found is None or not 0 < found < 1:
            problems.add(
                f"confidence={shown(confidence)} must be a number between 0 and 1. "
                "Pass 0.95 to name another than the best at most once in 20 times."
            )
        least = max(1, len(names))
        problems.integer("chosen_from", chosen_from, least=least, optional=True)
        problems.raise_any()
        self._rank = {name: rank for rank, name in enumerate(names)}
        self._sign = 1.0 if mode == "max" else -1.0
        self._confidence, self._chosen = float(confidence), chosen_from is not None
        self._alpha = (1 - float(confidence)) / (chosen_from or len(names))
        # With the sign, so that large values are better.
        self._intervals = dict.fromkeys(names, Interval(-math.inf, math.inf))
        self._exhausted: set[str] = set()
        self._withdrawn: set[str] = set()

    @property
    def each(self) -> float:
        """The confidence that each candidate's intervals must have."""
        return 1 - self._alpha

    def evaluated(self, candidate: str, interval: Interval) -> None:
        """Take note of what is known of a candidate's mean after more examples.

        Args:
            candidate: Its name.
            interval: Its newest interval, in the metric's own unit.

        Raises:
            ConfigError: If there is no such candidate, if it is exhausted, or if the ends are not
                two numbers in order.
        """
        problems = Problems("Elimination.evaluated")
        self._known(problems, candidate)
        if candidate in self._exhausted:
            problems.add(
                f"candidate={shown(candidate)} is exhausted, and its mean exact. Evaluate one of "
                "those that next() returns."
            )
        low, high = number(interval[0]), number(interval[1])
        if low is None or high is None or low > high:
            problems.add(
                f"interval={shown(interval)} must be two numbers (low, high) in order. Pass "
                "what ConfidenceSequence.update returned."
            )
        problems.raise_any()
        self._intervals[candidate] = self._signed(interval[0], interval[1])

    def exhausted(self, candidate: str, mean: float) -> None:
        """Take note of a candidate's mean over every example there is.

        Args:
            candidate: Its name.
            mean: The mean, in the metric's own unit. It counts even if it is outside the last
                interval.

        Raises:
            ConfigError: If there is no such candidate, or the mean is not a finite number.
        """
        problems = Problems("Elimination.exhausted")
        self._known(problems, candidate)
        found = number(mean)
        if found is None or not math.isfinite(found):
            problems.add(
                f"mean={shown(mean)} must be a finite number. Pass the mean over every example."
            )
        problems.raise_any()
        self._intervals[candidate] = self._signed(mean, mean)
        self._exhausted.add(candidate)

    def withdrawn(self, candidate: str) -> None:
        """Leave out a candidate that cannot be evaluated: the winner is the best of the others.

        Args:
            candidate: Its name.

        Raises:
            ConfigError: If there is no such candidate.

        Example:
            >>> race = Elimination(["a", "b"])
            >>> race.withdrawn("a")
            >>> race.verdict()
            Verdict(winner='b', certain=True, confidence=1.0, contenders=('b',))
        """
        problems = Problems("Elimination.withdrawn")
        self._known(problems, candidate)
        problems.raise_any()
        self._withdrawn.add(candidate)

    def contenders(self) -> tuple[str, ...]:
        """Return who may still be the best, in the order of the ranking.

        At least one, unless all are withdrawn.
        """
        names = [name for name in self._rank if name not in self._withdrawn]
        return tuple(name for name in names if not any(self._beats(other, name) for other in names))

    def next(self) -> tuple[str, ...]:
        """Return who is to be evaluated, who needs it most first; nobody once it is certain.

        These are the leader and its closest challenger, unless exhausted: the two whose intervals
        decide. The one whose interval is wider comes first. Give each of them a batch. To give one
        to the first only takes about a tenth more examples, since the leader's interval, with which
        all others are compared, becomes narrow later.
        """
        left = self.contenders()
        if len(left) < 2:
            return ()
        leader = self._leader(left)
        challenger = min(
            (name for name in left if name != leader),
            key=lambda name: (-self._intervals[name].high, self._rank[name]),
        )
        pair = [name for name in (leader, challenger) if name not in self._exhausted]
        return tuple(sorted(pair, key=lambda name: (-self._width(name), self._rank[name])))

    def verdict(self) -> Verdict:
        """Return who is the best, and how sure that is.

        Raises:
            ConfigError: If all are withdrawn.
        """
        left = self.contenders()
        if not left:
            problems = Problems("Elimination.verdict")
            problems.add("all candidates are withdrawn. Ask who is left first: contenders().")
            problems.raise_any()
        certain = len(left) == 1
        # Intervals that may be wrong; a single candidate is the best whatever its mean is.
        there = self._rank.keys() - self._withdrawn
        relied = len(there - self._exhausted) if len(there) > 1 else 0
        sure = 1 - self._alpha * relied
        if self._chosen and relied:  # whichever were chosen, the interval of one may be wrong
            sure = self._confidence
        confidence = sure if certain else 0.0
        return Verdict(self._leader(left), certain, round(confidence, 12), left)

    def _known(self, problems: Problems, candidate: str) -> None:
        problems.choice("candidate", candidate, list(self._rank))

    def _signed(self, low: float, high: float) -> Interval:
        ends = sorted((self._sign * float(low), self._sign * float(high)))
        return Interval(ends[0], ends[1])

    def _width(self, name: str) -> float:
        return self._intervals[name].width

    def _beats(self, one: str, other: str) -> bool:
        """Return whether one is better than other, or equal and ranked before it, for certain."""
        worst, best = self._intervals[one].low, self._intervals[other].high
        return worst > best or (worst == best and self._rank[one] < self._rank[other])

    def _leader(self, left: Sequence[str]) -> str:
        """Return who is probably the best: those without an interval come last."""

        def middle(name: str) -> float:
            low, high = self._intervals[name]
            return (low + high) / 2 if math.isfinite(high - low) else -math.inf

        return min(left, key=lambda name: (-middle(name), self._rank[name]))
