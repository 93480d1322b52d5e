"""The confirmation of a sweep's winner: what to evaluate, when to stop, and what is known then.

The best checkpoints of a sweep were each ranked by one score, and the best of many scores was
lucky. So the few best are evaluated once more, and compared by intervals, until one is left or all
is used. There are two ways, which depend on the function:

- *once*: each candidate is evaluated once, as far as it takes. A generator yields estimates, and is
  stopped when its candidate is eliminated or the winner is certain. At its end, the mean over all
  examples is exact; so is what a function returns that yields nothing.
- *in rounds*: the function takes ``seed``, and is called with 0, 1, 2, ... Each score is one
  observation of the mean over seeds. A round is a validation of its own, with the seed in its name.

This is best-arm identification with a fixed confidence by action elimination (Even-Dar, Mannor &
Mansour 2006, "Action elimination and stopping conditions for the multi-armed bandit and
reinforcement learning problems"). What is different is that examples run out: then a mean is exact,
and nobody is evaluated for ever to tell two equal candidates apart.

*Which intervals hold.* When to stop depends on the intervals. Those of a confidence sequence hold
at all times. Student's t-interval holds at one number of observations, and is looked at after each
round; so each of these looks gets the same share of the probability of an error (a union bound). It
holds if scores are normally distributed over seeds.

*What was known before.* The sweep has chosen the candidates by estimates. If these were made on the
same examples, then to begin again is no remedy: a function that reads its examples in one order
sees again what the candidates were lucky with. A confidence sequence is not deceived by being
looked at, but it is by being chosen among many for its luck. What helps is that *all* that could
have been chosen have sequences that hold together (``chosen_from``), with the same share of the
probability for each. Then it may also go on from where the sweep has stopped. See decision 007.
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

__all__ = [
    "CONFIRMED",
    "Candidate",
    "Confirmed",
    "Race",
    "confirmation_in",
    "confirmation_that_counts",
    "confirmed_by",
    "interval_over_rounds",
    "is_outdated",
    "rows_per_checkpoint",
    "winning_score",
]

#: What the names of confirmed metrics begin with.
CONFIRMED = "confirmed"

# So many scores that are all equal do not depend on the seed. Fewer may be equal by chance, as
# there are only so many values that an accuracy can have, and their t-interval has no width.
_EQUAL_ENOUGH = 5
_ENDED = ("validated", "failed", "timed_out")


def interval_over_rounds(
    scores: Sequence[float], confidence: float, max_rounds: int
) -> tuple[float, float] | None:
    """Return Student's t-interval of the mean over seeds, which holds at every look.

    With the given probability, none of the intervals after 2, 3, ..., ``max_rounds`` scores misses
    the mean, **if scores are normally distributed** over seeds and independent. Scores that are all
    equal say nothing about how much they vary; when there are five, they do not depend on the seed,
    and their value is exact.

    Args:
        scores: One for each seed.
        confidence: The probability that all intervals contain the mean.
        max_rounds: How many scores there will be at most.

    Returns:
        None if nothing is known of the mean.

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


# Who is the best --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that was among the best.

    Attributes:
        trial_id: Its trial.
        generation: How many times the trial had been overwritten by then (PBT).
        iteration: The training iteration at which it was saved.
        mean: Its confirmed value of the metric; None if it could not be evaluated.
        low: The lower end of its interval, equal to ``mean`` if that is exact; None if nothing is
            known.
        high: The upper end, likewise.
        n: How many examples, or seeds, that is from; None if the function does not say.
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
    """Find the best of several candidates from how their validations end.

    A candidate is eliminated when the best value that it can have is worse than the worst value
    that another can have. If all intervals hold together, the best candidate is never eliminated:
    so each gets one with the confidence :attr:`each`.

    Args:
        about: What the journal says of the confirmation: the ``candidates`` by the names of their
            validations, the best ranked first; ``metric``, ``mode``, ``confidence``; ``max_rounds``
            if they are evaluated with several seeds; and ``chosen_from``: how many they were chosen
            from by scores on the same examples, if they were.

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
        #: What is known of each, the best ranked first, by the name of its validation.
        self.candidates = {name: Candidate(*ValidationKey.parse(name)[:3]) for name in names}
        self._alpha = (1 - self._confidence) / (self._chosen or len(names))
        self._scores: dict[str, dict[str, float]] = {name: {} for name in names}
        self._failed: set[str] = set()

    @property
    def each(self) -> float:
        """Return the confidence that each candidate's intervals must have."""
        return 1 - self._alpha

    def take(self, key: str, status: str, metrics: Mapping[str, Any]) -> None:
        """Take how a validation ended; one that was interrupted is still wanted.

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
                low = high = value  # a function that says nothing of examples is exact
            found = (value, low, high, None if n is None else int(n))
        self.candidates[name] = Candidate(*ValidationKey.parse(name)[:3], *found)

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return what a score says of the metric; None if it is no finite number."""
        return _number(flatten(metrics), self._metric)

    def enough(self, key: str, interval: Interval) -> bool:
        """Return whether a validation may end that has yielded an estimate.

        That is when its candidate is eliminated, or all others are. In rounds, each counts in full.

        Args:
            key: The name of the validation.
            interval: Where the candidate's mean is.
        """
        if self._max_rounds is not None:
            return False
        low, high = interval
        self.candidates[key] = replace(self.candidates[key], low=low, high=high)
        left = self.contenders()
        return key not in left or len(left) < 2

    def wanted(self) -> list[ValidationKey]:
        """Return the validations that have to end, the best ranked candidate's first.

        In rounds, these are for those that may be the best, and nobody is a round ahead.
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
        """Return who may still be the best, the best ranked first; nobody if all have failed."""
        there = [name for name in self.candidates if name not in self._failed]
        ends = {name: self._ends(name) for name in there}
        found: list[str] = []
        for place, name in enumerate(there):
            best = ends[name][1]
            # Equal ones are ranked as the sweep has ranked them.
            beaten = (
                worst > best or (worst == best and other < place)
                for other, (worst, _) in enumerate(ends.values())
            )
            if not any(beaten):
                found.append(name)
        return found

    def _ends(self, name: str) -> tuple[float, float]:
        """Return the worst and the best value that a candidate can have; large is better."""
        one = self.candidates[name]
        low, high = EVERYTHING if one.low is None or one.high is None else (one.low, one.high)
        worst, best = sorted((self._sign * low, self._sign * high))
        return worst, best

    @property
    def winner(self) -> Candidate:
        """Return the contender that is the best, or leads."""
        left = [self.candidates[name] for name in self.contenders()]
        return max(left, key=lambda one: -math.inf if one.mean is None else self._sign * one.mean)

    @property
    def sure(self) -> float:
        """Return the probability, at least, that the winner is the best; 0 while others may be."""
        there = [self.candidates[name] for name in self.candidates if name not in self._failed]
        relied = sum(one.low is None or one.low != one.high for one in there)
        if len(self.contenders()) > 1:
            return 0.0
        if len(there) == 1 or not relied:
            return 1.0
        # Whichever were chosen, the interval of one may be wrong.
        return round(self._confidence if self._chosen else 1 - self._alpha * relied, 12)


def _number(metrics: Mapping[str, Any], name: str) -> float | None:
    value = number(metrics.get(name))
    return value if value is not None and math.isfinite(value) else None


def rows_per_checkpoint(sessions: Iterable[LaterSession]) -> list[dict[str, Any]]:
    """Return a row for each checkpoint and name; of rounds, with the means over them.

    Args:
        sessions: Those of later validations that are in force, in that order.
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


# What has come of it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Confirmed:
    """What the confirmation of a sweep's winner has come to.

    Attributes:
        function: What the candidates were evaluated with.
        metric: The metric, by flat name; ``mode``: whether small or large values are better.
        by: ``"trial"`` if the candidates are the best checkpoints of the best trials,
            ``"configuration"`` if they are those of the best configurations, over their seeds.
        asked: The confidence that was asked for.
        winner: The candidate that is the best, or leads.
        certain: Whether all others are eliminated.
        sure: The probability, at least, that the winner is the best of the candidates: 0 if it is
            not certain, 1 if every candidate's value is exact.
        contenders: Those that may be the best, in the order in which the sweep ranked them.
        candidates: All of them, in that order.
        began: When it began, or went on last, in seconds since the epoch.
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
    """Return what a confirmation has come to, from what is recorded of it.

    Args:
        function: What it evaluated with.
        about: As of :class:`Race`; and ``by``.
        rows: A row for each validation, as of :func:`tunekit.core.later_validations.rows_of`.
        began: When it began, in seconds since the epoch.

    Returns:
        None if it has not ended, or if none of the candidates could be evaluated.

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
    """Return what the newest confirmation has come to; None if it has not ended.

    Args:
        sessions: Those of later validations that are in force, in that order.
    """
    own = [session for session in sessions if session.name == CONFIRMED]
    if not own or own[-1].confirms is None:
        return None
    return confirmed_by(own[-1].function, own[-1].confirms, rows_of(own), own[-1].began)


def confirmation_that_counts(
    confirmed: Confirmed | None, timeline: Timeline, metric: str, mode: str, by: str
) -> Confirmed | None:
    """Return a confirmation if it is of what is asked for, and holds; None otherwise.

    Args:
        confirmed: What it has come to.
        timeline: What became of the sweep.
        metric: What the winner is the best by, as a flat name.
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
    """Return whether the sweep has validated since what would have been a candidate."""
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
    """Return the score of a confirmed checkpoint, unless the trial has run that again since."""
    winner = confirmed.winner
    if winner.trial_id not in timeline.trials:
        return None
    for scored in timeline.scores(winner.trial_id):
        known = scored.value(confirmed.metric)
        if scored.place == winner.place and known is not None:
            return scored
    return None
