"""The confirmation of a sweep's winner: candidates, when to stop, and the result.

The best checkpoints of a sweep were each ranked by one score, and the best of many noisy scores is
biased upward. So the top candidates are evaluated again, and compared by intervals, until one
remains or the examples run out. There are two ways, depending on the function:

- *once*: each candidate is evaluated once. A generator yields estimates, and is stopped when its
  candidate is eliminated or the winner is certain. At its end, the mean over all examples is exact;
  so is the value of a function that does not yield.
- *in rounds*: the function takes ``seed``, and is called with 0, 1, 2, ... Each score is one
  observation of the mean over seeds. Each round is a validation, with the seed in its name.

This is best-arm identification with a fixed confidence by action elimination (Even-Dar, Mannor &
Mansour 2006, "Action elimination and stopping conditions for the multi-armed bandit and
reinforcement learning problems"), except that examples run out: then a mean is exact, and equal
candidates are not evaluated forever.

*Which intervals hold.* When to stop depends on the intervals. Those of a confidence sequence hold
at all times. Student's t-interval holds at one number of observations, but is computed after each
round; so each of these looks gets the same share of the error probability (a union bound). It holds
if scores are normally distributed over seeds.

*Earlier estimates.* The sweep has chosen the candidates by estimates. If these were made on the
same examples, starting from scratch does not help: a function that reads its examples in one order
sees the same lucky ones again. Looking at a confidence sequence does not invalidate it, but
selecting it among many for its luck does. The remedy is that the sequences of *all* checkpoints
that could have been chosen hold together (``chosen_from``), each with the same share of the error
probability. Then it may also continue from where the sweep stopped. See decision 007.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunekit.core import t_distribution
from tunekit.core.confidence import EVERYTHING, Interval
from tunekit.core.events import ValidationKey
from tunekit.core.later_validations import LaterSession, rows_of
from tunekit.core.metrics import flatten
from tunekit.core.timeline import ScoredCheckpoint, Timeline, better
from tunekit.core.values import number

#: The prefix of the names of confirmed metrics.
CONFIRMED = "confirmed"

# As many equal scores do not depend on the seed. Fewer may be equal by chance, as an accuracy has
# only so many possible values, and their t-interval would have no width.
_EQUAL_ENOUGH = 5
_ENDED = ("validated", "failed", "timed_out")


def interval_over_rounds(
    scores: Sequence[float], confidence: float, max_rounds: int
) -> tuple[float, float] | None:
    """Return Student's t-interval of the mean over seeds, valid at every look.

    With the given probability, all of the intervals after 2, 3, ..., ``max_rounds`` scores contain
    the mean, **if scores are normally distributed** over seeds and independent. A few equal scores
    say nothing about the variance; five do not depend on the seed, and their value is exact.

    Args:
        scores: One per seed.
        confidence: The probability that all intervals contain the mean.
        max_rounds: The largest number of scores.

    Returns:
        None if no interval can be given.

    Example:
        >>> [round(end, 3) for end in interval_over_rounds([0.84, 0.86, 0.84, 0.86], 0.95, 4)]
        [0.822, 0.878]
        >>> interval_over_rounds([0.85], 0.95, 4)
    """
    n, mean = len(scores), statistics.fmean(scores)
    if n < 2:
        return None
    error = statistics.stdev(scores, mean) / math.sqrt(n)
    if error <= abs(1e-12 * mean):
        return (mean, mean) if n >= _EQUAL_ENOUGH else None
    half = t_distribution.quantile(n - 1, 1 - (1 - confidence) / (max_rounds - 1)) * error
    return mean - half, mean + half


# The best candidate -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that is among the best of its sweep.

    Attributes:
        trial_id: Its trial.
        generation: How many times the trial had been overwritten by then (PBT).
        iteration: The training iteration at which it was saved.
        mean: Its confirmed value of the metric; None if it could not be evaluated.
        low: The lower end of its interval, equal to ``mean`` if that is exact; None if unknown.
        high: The upper end.
        n: The number of examples or seeds; None if the function does not return it.
    """

    trial_id: str
    generation: int
    iteration: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Return ``(generation, iteration)``."""
        return (self.generation, self.iteration)


class Race:
    """Find the best of several candidates from the outcomes of their validations.

    A candidate is eliminated when its best possible value is worse than the worst possible value of
    another. If all intervals hold together, the best candidate is never eliminated; so each has
    the confidence :attr:`each`.

    Args:
        about: The journal's record of the confirmation: the ``candidates`` by the names of their
            validations, the best ranked first; ``metric``, ``mode``, ``confidence``; ``max_rounds``
            if they are evaluated with several seeds; and ``chosen_from``: the number of checkpoints
            they were chosen from by scores on the same examples, if they were.

    Example:
        >>> about = {"candidates": ["a:0:3:1", "b:0:2:1"], "metric": "accuracy", "mode": "max"}
        >>> race = Race({**about, "confidence": 0.95, "max_rounds": 5})
        >>> for score in (0.90, 0.91, 0.92, 0.90, 0.91):
        ...     for key in race.wanted():
        ...         accuracy = score - (0.2 if key.trial_id == "b" else 0)
        ...         race.take(str(key), "validated", {"accuracy": accuracy})
        >>> race.winner.trial_id, race.winner.n, race.sure, race.wanted()
        ('a', 3, 0.95, [])
    """

    def __init__(self, about: Mapping[str, Any]):
        self._metric, self._sign = about["metric"], 1.0 if about["mode"] == "max" else -1.0
        self._confidence, self._chosen = about["confidence"], about.get("chosen_from")
        self._max_rounds = about.get("max_rounds")
        names: list[str] = about["candidates"]
        #: The state of each, the best ranked first, by the name of its validation.
        self.candidates = {name: Candidate(*ValidationKey.parse(name)[:3]) for name in names}
        self._alpha = (1 - self._confidence) / (self._chosen or len(names))
        self._scores: dict[str, dict[str, float]] = {name: {} for name in names}
        self._failed: set[str] = set()

    @property
    def each(self) -> float:
        """Return the confidence that the intervals of each candidate need."""
        return 1 - self._alpha

    def take(self, key: str, status: str, metrics: Mapping[str, Any]) -> None:
        """Record how a validation ended; one that was interrupted is still wanted.

        Args:
            key: Its name.
            status: How it ended, as a value of :class:`~tunekit.core.validation.Status`.
            metrics: Its score.
        """
        name = str(ValidationKey.parse(key).first)
        if name not in self.candidates or status not in _ENDED:
            return
        value = self.value(metrics)
        if status != "validated" or value is None:
            self._failed.add(name)
            self.candidates[name] = Candidate(*ValidationKey.parse(name)[:3])
            return
        scores = self._scores[name]
        scores[key] = value
        if self._max_rounds is not None:
            own = list(scores.values())
            ends = interval_over_rounds(own, self.each, self._max_rounds) or (None, None)
            found = (statistics.fmean(own), *ends, len(own))
        else:
            known = flatten(metrics)
            low, high, n = (_number(known, f"{self._metric}_{end}") for end in ("low", "high", "n"))
            if low is None and n is None:
                low = high = value  # without a number of examples, a value is exact
            found = (value, low, high, None if n is None else int(n))
        self.candidates[name] = Candidate(*ValidationKey.parse(name)[:3], *found)

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the metric's value in a score; None if it is not a finite number."""
        return _number(flatten(metrics), self._metric)

    def enough(self, key: str, interval: Interval) -> bool:
        """Return whether a validation that has yielded an estimate may end.

        It may if its candidate is eliminated, or all others are. In rounds, none ends early.

        Args:
            key: The name of the validation.
            interval: The interval of the candidate's mean.
        """
        if self._max_rounds is not None:
            return False
        low, high = interval
        self.candidates[key] = replace(self.candidates[key], low=low, high=high)
        left = self.contenders()
        return key not in left or len(left) < 2

    def wanted(self) -> list[ValidationKey]:
        """Return the validations that still have to end, the best ranked candidate's first.

        In rounds, these are for candidates that may be the best, and none is a round ahead.
        """
        left = self.contenders()
        done = {name: len(self._scores[name]) for name in left}
        if self._max_rounds is None or not left:
            return [ValidationKey.parse(name) for name in left if not done[name]]
        least = min(done.values())
        if least >= (1 if len(left) == 1 else self._max_rounds):
            return []
        keys = (ValidationKey.parse(name) for name in left if done[name] == least)
        return [ValidationKey(*key[:4], stage=f"seed{least}") for key in keys]

    def contenders(self) -> list[str]:
        """Return the candidates that may still be the best, the best ranked first."""
        there = [name for name in self.candidates if name not in self._failed]
        ends = {name: self._ends(name) for name in there}
        found: list[str] = []
        for place, name in enumerate(there):
            best = ends[name][1]
            # Equal ones keep their rank in the sweep.
            beaten = (
                worst > best or (worst == best and other < place)
                for other, (worst, _) in enumerate(ends.values())
            )
            if not any(beaten):
                found.append(name)
        return found

    def _ends(self, name: str) -> tuple[float, float]:
        """Return the worst and the best value that a candidate can have (larger is better)."""
        one = self.candidates[name]
        low, high = EVERYTHING if one.low is None or one.high is None else (one.low, one.high)
        worst, best = sorted((self._sign * low, self._sign * high))
        return worst, best

    @property
    def winner(self) -> Candidate:
        """Return the best contender, or the one that leads."""
        left = [self.candidates[name] for name in self.contenders()]
        return max(left, key=lambda one: -math.inf if one.mean is None else self._sign * one.mean)

    @property
    def sure(self) -> float:
        """Return the least probability that the winner is the best; 0 while others may be."""
        there = [self.candidates[name] for name in self.candidates if name not in self._failed]
        relied = sum(one.low is None or one.low != one.high for one in there)
        if len(self.contenders()) > 1:
            return 0.0
        if len(there) == 1 or not relied:
            return 1.0
        # Any of the chosen ones may have a wrong interval.
        return round(self._confidence if self._chosen else 1 - self._alpha * relied, 12)


def _number(metrics: Mapping[str, Any], name: str) -> float | None:
    value = number(metrics.get(name))
    return value if value is not None and math.isfinite(value) else None


def rows_per_checkpoint(sessions: Iterable[LaterSession]) -> list[dict[str, Any]]:
    """Return a row for each checkpoint and name, with the means over rounds.

    Args:
        sessions: The sessions of later validations that are in force, in order.
    """
    of: dict[str, list[LaterSession]] = {}
    for session in sessions:
        of.setdefault(session.name, []).append(session)
    found = []
    for own in of.values():
        about, rows = own[-1].confirms or {}, rows_of(own)
        found += rows if about.get("max_rounds") is None else _over_rounds(rows, about)
    return found


def _over_rounds(
    rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    race, of = Race(about), dict[str, list[Mapping[str, Any]]]()
    for row in rows:
        race.take(row["id"], row["status"], row["metrics"])
        of.setdefault(str(ValidationKey.parse(row["id"]).first), []).append(row)
    found = []
    for name, rounds in of.items():
        scored = [row for row in rounds if row["status"] == "validated"]
        odd = next((row for row in rounds if row["status"] in _ENDED and row not in scored), None)
        metrics: dict[str, Any] = {}
        if scored and odd is None:
            known, one = [flatten(row["metrics"]) for row in scored], race.candidates[name]
            for metric in known[0]:
                values = [_number(metrics, metric) for metrics in known]
                there = [value for value in values if value is not None]
                if len(there) == len(values):
                    metrics[metric] = statistics.fmean(there)
            own = {"low": one.low, "high": one.high, "n": one.n}
            metrics |= {f"{about['metric']}_{k}": v for k, v in own.items() if v is not None}
        last = odd or (scored or rounds)[-1]
        found.append({**last, "id": name, "metrics": metrics})
    return found


# The result of a confirmation -------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmed:
    """The result of the confirmation of a sweep's winner.

    Attributes:
        function: The function that evaluated the candidates.
        metric: The metric, by flat name; ``mode``: whether small or large values are better.
        by: ``"trial"`` if the candidates are the best checkpoints of the best trials,
            ``"configuration"`` if they are those of the best configurations, over their seeds.
        asked: The requested confidence.
        winner: The best candidate, or the one that leads.
        certain: Whether all others are eliminated.
        sure: The least probability that the winner is the best of the candidates: 0 if it is not
            certain, 1 if every candidate's value is exact.
        contenders: The candidates that may be the best, in the sweep's order.
        candidates: All candidates, in the sweep's order.
        began: When it began or was last continued, in seconds since the epoch.
    """

    function: str
    metric: str
    mode: str
    by: str
    asked: float
    winner: Candidate
    certain: bool
    sure: float
    contenders: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    began: float = 0.0


def confirmed_by(
    function: str,
    about: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    began: float = 0.0,
) -> Confirmed | None:
    """Return the result of a confirmation from its records.

    Args:
        function: The function that evaluated the candidates.
        about: As for :class:`Race`, plus ``by``.
        rows: A row for each validation, as from :func:`tunekit.core.later_validations.rows_of`.
        began: When it began, in seconds since the epoch.

    Returns:
        None if it has not ended, or if no candidate could be evaluated.

    Example:
        >>> about = {"candidates": ["a:0:3:1", "b:0:2:1"], "metric": "accuracy", "mode": "max"}
        >>> about |= {"confidence": 0.95}
        >>> rows = [
        ...     {"id": one, "status": "validated", "metrics": {"accuracy": value}}
        ...     for one, value in (("a:0:3:1", 0.8), ("b:0:2:1", 0.9))
        ... ]
        >>> found = confirmed_by("validate", about, rows)
        >>> found.winner.trial_id, found.certain, found.sure
        ('b', True, 1.0)
        >>> confirmed_by("validate", about, rows[:1]) is None
        True
    """
    race = Race(about)
    for row in rows:
        race.take(row["id"], row["status"], row["metrics"])
    contenders = tuple(race.candidates[one] for one in race.contenders())
    if not contenders or race.wanted():
        return None
    return Confirmed(
        function=function,
        metric=about["metric"],
        mode=about["mode"],
        by=about.get("by", "trial"),
        asked=about["confidence"],
        winner=race.winner,
        certain=len(contenders) == 1,
        sure=race.sure,
        contenders=contenders,
        candidates=tuple(race.candidates.values()),
        began=began,
    )


def confirmation_in(sessions: Iterable[LaterSession]) -> Confirmed | None:
    """Return the result of the newest confirmation; None if it has not ended.

    Args:
        sessions: The sessions of later validations that are in force, in order.
    """
    own = [session for session in sessions if session.name == CONFIRMED]
    if not own or own[-1].confirms is None:
        return None
    return confirmed_by(own[-1].function, own[-1].confirms, rows_of(own), own[-1].began)


def confirmation_that_counts(
    confirmed: Confirmed | None, timeline: Timeline, metric: str, mode: str, by: str
) -> Confirmed | None:
    """Return a confirmation if it answers the question and still holds; None otherwise.

    Args:
        confirmed: Its result.
        timeline: The sweep's timeline.
        metric: The metric that the winner is to be the best by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        by: ``"trial"`` or ``"configuration"``.

    Example:
        >>> confirmation_that_counts(None, Timeline(()), "accuracy", "max", "trial") is None
        True
    """
    if confirmed is None or (confirmed.metric, confirmed.mode, confirmed.by) != (metric, mode, by):
        return None
    counts = winning_score(confirmed, timeline) is not None and not is_outdated(confirmed, timeline)
    return confirmed if counts else None


def is_outdated(confirmed: Confirmed, timeline: Timeline) -> bool:
    """Return whether the sweep has since validated a checkpoint that would be a candidate."""
    places = {(one.trial_id, *one.place) for one in confirmed.candidates}
    scores: dict[bool, list[float]] = {True: [], False: []}
    for row in timeline.validations:
        there = (row["trial_id"], row["generation"], row["iteration"]) in places
        if row["status"] == "validated" and (there or row["ended"] > confirmed.began):
            value = number(flatten(row["metrics"]).get(confirmed.metric))
            if value is not None:
                scores[there].append(value)
    worst = (min if confirmed.mode == "max" else max)(scores[True], default=None)
    return worst is not None and any(
        better(confirmed.mode, value, worst) for value in scores[False]
    )


def winning_score(confirmed: Confirmed, timeline: Timeline) -> ScoredCheckpoint | None:
    """Return a confirmed checkpoint's score; None if its trial has run the iteration again."""
    winner = confirmed.winner
    if winner.trial_id not in timeline.trials:
        return None
    scores = (one for one in timeline.scores(winner.trial_id) if one.place == winner.place)
    return next((one for one in scores if one.value(confirmed.metric) is not None), None)
