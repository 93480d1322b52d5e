"""The confirmation of a sweep's winner: whom to evaluate, when to stop, and what is known then.

The best checkpoints of a sweep were each ranked by one score, and the best of many scores was
lucky. So the few best are evaluated once more, and compared by intervals
(:class:`~tunekit.core.elimination.Elimination`), until one is left or all is used. There are two
ways, which depend on the function:

- *once*: each candidate is evaluated once, as far as it takes. A generator yields estimates, and is
  stopped when its candidate is eliminated or the winner is certain. At its end, the mean over all
  examples is exact; so is what a function returns that yields nothing.
- *in rounds*: the function takes ``seed``, and is called with 0, 1, 2, ... Each score is one
  observation of the mean over seeds.

*Which intervals hold.* Who is evaluated next depends on the intervals, and so does when to stop.
Those of a confidence sequence hold at all times. Student's t-interval holds at one number of
observations, and is looked at after each round; so each of these looks gets the same share of the
probability of an error (a union bound). It holds if scores are normally distributed over seeds.

*What was known before.* The sweep has chosen the candidates by estimates. If these were made on the
same examples, then to begin anew is no remedy: a function that reads its examples in one order sees
again what the candidates were lucky with. A confidence sequence is not deceived by being looked at,
but it is by being chosen among many for its luck. What helps is that *all* that could have been
chosen have sequences that hold together (``chosen_from``), with the same share of the probability
for each. Then it may also go on from where the sweep has stopped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunekit.core import student
from tunekit.core.confidence import ConfidenceSequence, Interval
from tunekit.core.elimination import Elimination, Verdict
from tunekit.core.estimates import Estimate
from tunekit.core.events import ValidationKey
from tunekit.core.later_validations import LaterSession, rows_of
from tunekit.core.metrics import flatten, leaves
from tunekit.core.problems import Problems
from tunekit.core.timeline import Scored, Timeline, better
from tunekit.core.values import number

__all__ = [
    "Candidate",
    "Confirmation",
    "Confirmed",
    "Turn",
    "confirmation_that_counts",
    "confirmations_in",
    "confirmed_by",
    "exact",
    "interval_over_rounds",
    "is_outdated",
    "one_more",
    "pooled",
    "winning_score",
]

_UNKNOWN = Interval(-math.inf, math.inf)
# So many scores that are all equal do not depend on the seed. Fewer may be equal by chance, as
# there are only so many values that an accuracy can have, and their t-interval has no width.
_EQUAL_ENOUGH = 5


# Several scores of one candidate ----------------------------------------------------------------


def one_more(known: Estimate | None, value: float) -> Estimate:
    """Return the mean and the variance of scores after one more.

    Example:
        >>> one_more(one_more(None, 0.5), 1.0)
        Estimate(mean=0.75, n=2, variance=0.0625, bounds=None)
    """
    if known is None:
        return Estimate(value, 1, variance=0.0)
    n, apart = known.n + 1, value - known.mean
    variance = ((known.variance or 0.0) * known.n + apart**2 * known.n / n) / n
    return Estimate(known.mean + apart / n, n, variance=variance)


def pooled(known: Estimate | None, more: Estimate) -> Estimate:
    """Return the estimate of the examples of two rounds, which must be others in each.

    Raises:
        ConfigError: If one of them has neither bounds nor a variance that can be pooled.

    Example:
        >>> pooled(Estimate(0.8, 100, bounds=(0, 1)), Estimate(0.9, 300, bounds=(0, 1)))
        Estimate(mean=0.875, n=400, variance=None, bounds=(0.0, 1.0))
    """
    if known is None:
        return more
    n = known.n + more.n
    mean = known.mean + (more.mean - known.mean) * (more.n / n)
    variance = None
    if known.variance is not None and more.variance is not None:
        own = (known.n * known.variance + more.n * more.variance) / n
        variance = own + (known.mean - more.mean) ** 2 * (known.n / n) * (more.n / n)
    return Estimate(mean, n, variance, more.bounds)


def interval_over_rounds(scores: Estimate, confidence: float, max_rounds: int) -> Interval:
    """Return Student's t-interval of the mean over seeds, which holds at every look.

    With the given probability, none of the intervals after 2, 3, ..., ``max_rounds`` scores misses
    the mean, **if scores are normally distributed** over seeds and independent. Each look gets the
    same share of the probability of an error. Scores that are all equal say nothing about how much
    they vary; when there are five, they do not depend on the seed, and their value is exact.

    Args:
        scores: Their mean and variance, with the divisor ``n``.
        confidence: The probability that all intervals contain the mean.
        max_rounds: How many scores there will be at most.

    Example:
        >>> low, high = interval_over_rounds(Estimate(0.85, 4, variance=0.0001), 0.95, 4)
        >>> round(low, 3), round(high, 3)
        (0.822, 0.878)
        >>> interval_over_rounds(Estimate(0.85, 1, variance=0), 0.95, 4)
        Interval(low=-inf, high=inf)
    """
    n, variance = scores.n, scores.variance or 0.0
    if n < 2 or max_rounds < 2:
        return _UNKNOWN
    if variance <= (1e-12 * scores.mean) ** 2:
        return Interval(scores.mean, scores.mean) if n >= _EQUAL_ENOUGH else _UNKNOWN
    share = (1 - confidence) / (max_rounds - 1)
    half = student.quantile(n - 1, 1 - share) * math.sqrt(variance / (n - 1))
    return Interval(scores.mean - half, scores.mean + half)


def exact(metrics: Mapping[str, Any], names: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Return metrics of which some were estimated from every example there is.

    Args:
        metrics: The metrics, with numbers for their estimates.
        names: The flat names of those that were estimated.
        prefix: Where in the metrics these are.

    Example:
        >>> exact({"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9}, ["accuracy"])
        {'accuracy': 0.8, 'accuracy_low': 0.8, 'accuracy_high': 0.8}
    """
    found = dict(metrics)
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found[key] = exact(value, names, f"{prefix}{key}/")
        elif f"{prefix}{key}" in names:
            found[f"{key}_low"] = found[f"{key}_high"] = value
    return found


# Whom to evaluate, and until when ---------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """A candidate that is to be evaluated now.

    Attributes:
        candidate: Its name.
        seed: The seed of the round; None if it is evaluated once.
        known: What was yielded before, by the flat names of the metrics, to go on from.
    """

    candidate: str
    seed: int | None = None
    known: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass
class _State:
    known: Mapping[str, Estimate] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    interval: Interval = _UNKNOWN
    rounds: int = 0
    sequence: ConfidenceSequence | None = None
    # How often it has yielded: in former turns, and in this one.
    before: int = 0
    yields: int = 0
    exhausted: bool = False
    failed: bool = False
    settled: bool = False


class Confirmation:
    """The rule by which a winner is confirmed: data in, whom to evaluate out.

    Candidates that are evaluated once take turns if there are fewer slots than candidates and the
    function can be resumed: then, the leader and its closest challenger have them (LUCB). A turn
    lasts until there were as many estimates in it as in all turns of the candidate before, so a
    validation is started again a handful of times, not after each batch. Without ``resumes``, who
    was started is evaluated until it is eliminated.

    Args:
        candidates: Their names, the best ranked first.
        metric: The flat name of the metric.
        mode: ``"min"`` or ``"max"``.
        confidence: The probability that the winner is the best of them.
        max_rounds: How many seeds there are at most; None if each is evaluated once.
        resumes: Whether the function takes ``resume``.
        chosen_from: As of :class:`~tunekit.core.elimination.Elimination`.

    Raises:
        ConfigError: As of :class:`~tunekit.core.elimination.Elimination`.

    Example:
        >>> confirmation = Confirmation(["a", "b"], metric="accuracy", mode="max", max_rounds=5)
        >>> for score in (0.90, 0.91, 0.92, 0.90, 0.91):
        ...     for name, behind in (("a", 0.0), ("b", 0.2)):
        ...         turn = confirmation.next()
        ...         if turn is not None:
        ...             confirmation.scored(turn.candidate, {"accuracy": score - behind})
        >>> confirmation.verdict()
        Verdict(winner='a', certain=True, confidence=0.95, contenders=('a',))
        >>> confirmation.rounds("a"), confirmation.next()
        (3, None)
    """

    def __init__(
        self,
        candidates: Sequence[str],
        *,
        metric: str,
        mode: str,
        confidence: float = 0.95,
        max_rounds: int | None = None,
        resumes: bool = False,
        chosen_from: int | None = None,
    ):
        self._race = Elimination(
            candidates, mode=mode, confidence=confidence, chosen_from=chosen_from
        )
        self._metric, self._sign = metric, 1.0 if mode == "max" else -1.0
        self._max_rounds, self._resumes = max_rounds, resumes
        self._states = {name: _State() for name in candidates}

    @property
    def each(self) -> float:
        """Return the confidence of each candidate's intervals."""
        return self._race.each

    @property
    def by_rounds(self) -> bool:
        """Return whether candidates are evaluated with several seeds."""
        return self._max_rounds is not None

    @property
    def resumes(self) -> bool:
        """Return whether a validation goes on from what an earlier one has yielded."""
        return self._resumes

    def is_exact(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether a recorded score is of every example there is."""
        low, high = _ends(metrics, self._metric)
        return low is not None and low == high

    def rounds(self, candidate: str) -> int:
        """Return with how many seeds a candidate was evaluated."""
        return self._states[candidate].rounds

    def known(self, candidate: str) -> Mapping[str, Estimate]:
        """Return what is known of a candidate, by the flat names of its metrics."""
        return self._states[candidate].known

    # Who is next --------------------------------------------------------------------------------

    def next(self, running: Collection[str] = ()) -> Turn | None:
        """Return who is to be started next; None if nobody is.

        Args:
            running: Who is evaluated already.
        """
        due = self._due(running)
        if not due:
            return None
        first = [name for name in self._race.next() if name in due]
        order = list(self._states)
        name = (first or sorted(due, key=lambda one: (-self._hope(one), order.index(one))))[0]
        state = self._states[name]
        seed = state.rounds if self.by_rounds else None
        return Turn(name, seed, state.known if self._resumes and not self.by_rounds else {})

    def _due(self, running: Collection[str] = ()) -> list[str]:
        """Return who needs to be evaluated further, and is not yet."""
        left = self._race.contenders()
        open_ = [name for name in left if not self._states[name].exhausted]
        if len(left) == 1:  # it is certain; but the last one has to be known, too
            open_ = [name for name in open_ if not self._has_been_evaluated(name)]
        if self._max_rounds is not None and open_:
            least = min(self._states[name].rounds for name in open_)
            open_ = [
                name
                for name in open_
                if self._states[name].rounds == least and least < self._max_rounds
            ]
        return [name for name in open_ if name not in running]

    def _hope(self, name: str) -> float:
        """Return the best value that a candidate can have; large is better."""
        return max(self._sign * end for end in self._states[name].interval)

    def _has_been_evaluated(self, name: str) -> bool:
        state = self._states[name]
        return state.exhausted or bool(state.known)

    # What has become known ----------------------------------------------------------------------

    def recall(self, candidate: str, known: Mapping[str, Estimate], rounds: int = 0) -> None:
        """Take what was found out before, in a session that has ended.

        Args:
            candidate: Its name.
            known: The newest estimates, by the flat names of their metrics.
            rounds: With how many seeds, if it is evaluated in rounds.
        """
        if self._metric not in known:
            return
        state = self._states[candidate]
        state.known, state.rounds = dict(known), rounds
        if not self.by_rounds:
            interval = ConfidenceSequence(self.each).update(known[self._metric])
        else:
            interval = self._over_rounds(state)
        self._take(candidate, interval)
        state.metrics = self._metrics_of(state)

    def started(self, candidate: str) -> None:
        """Take note that a turn of a candidate has begun."""
        state = self._states[candidate]
        state.before, state.yields, state.settled = state.before + state.yields, 0, False

    def evaluated(
        self,
        candidate: str,
        interval: Interval,
        running: Collection[str] = (),
        *,
        crowded: bool = True,
    ) -> bool:
        """Take an estimate that a candidate has yielded; return whether to stop its validation.

        Args:
            candidate: Its name.
            interval: Where its mean is.
            running: Who is evaluated now, itself included.
            crowded: Whether there are fewer slots than candidates, so that nobody else can be
                started unless somebody gives way.
        """
        state = self._states[candidate]
        state.yields += 1
        self._take(candidate, interval)
        left = self._race.contenders()
        if candidate not in left or len(left) < 2:
            return True
        if not crowded or not self._resumes or state.yields < max(1, state.before):
            return False
        slots = max(1, len(running))
        wanted = self._race.next()[:slots]
        return candidate not in wanted and any(name not in running for name in wanted)

    def yielded(
        self, candidate: str, known: Mapping[str, Estimate], metrics: Mapping[str, Any]
    ) -> None:
        """Take what was known of a candidate when its validation was stopped.

        Args:
            candidate: Its name.
            known: Its newest estimates, by the flat names of their metrics.
            metrics: The same as a score.
        """
        state = self._states[candidate]
        state.known, state.metrics = dict(known), metrics

    def exhausted(
        self,
        candidate: str,
        metrics: Mapping[str, Any],
        known: Mapping[str, Estimate] | None = None,
    ) -> None:
        """Take the score of a candidate that was evaluated in full.

        Args:
            candidate: Its name.
            metrics: The score.
            known: Which metrics were estimated, if any were.

        Raises:
            ConfigError: If the score lacks the metric, or it is not a finite number.
        """
        value = self._value(metrics)
        state = self._states[candidate]
        state.known, state.metrics = dict(known or {}), exact(metrics, (known or {}).keys())
        state.interval, state.exhausted = Interval(value, value), True
        self._race.exhausted(candidate, value)

    def scored(
        self,
        candidate: str,
        metrics: Mapping[str, Any],
        known: Mapping[str, Estimate] | None = None,
    ) -> None:
        """Take the score of a candidate with one more seed.

        Args:
            candidate: Its name.
            metrics: The score.
            known: Its estimates, if the function returns such; they are pooled over the seeds.

        Raises:
            ConfigError: If the score lacks the metric, if it is not a finite number, or if it is an
                estimate that does not go with those before.
        """
        self._value(metrics)
        state, estimates = self._states[candidate], known or {}
        before = state.known.get(self._metric)
        if before is not None and (self._metric in estimates) is _are_scores(before, state.rounds):
            problems = Problems("Confirmation")
            problems.add(
                f"{self._metric!r} is an estimate with some seeds, and a number with others. "
                "Return the same with each."
            )
            problems.raise_any()
        found: dict[str, Estimate] = {}
        for name, value in leaves(metrics):
            if name in estimates:
                found[name] = pooled(state.known.get(name), estimates[name])
            elif _beside(name, estimates):
                continue
            elif (own := number(value)) is not None and math.isfinite(own):
                found[name] = one_more(state.known.get(name), own)
        state.known, state.rounds = found, state.rounds + 1
        self._take(candidate, self._over_rounds(state))
        state.metrics = self._metrics_of(state)

    def failed(self, candidate: str) -> None:
        """Leave out a candidate that could not be evaluated."""
        self._states[candidate].failed = True
        self._race.withdrawn(candidate)

    def _value(self, metrics: Mapping[str, Any]) -> float:
        value = number(flatten(metrics).get(self._metric))
        if value is None or not math.isfinite(value):
            problems = Problems("Confirmation")
            there = ", ".join(map(repr, flatten(metrics))) or "nothing"
            problems.add(
                f"the score has no finite number {self._metric!r}, by which the winner is "
                f"confirmed, but {there}. Return that metric, or rank the sweep by another one."
            )
            problems.raise_any()
        assert value is not None  # or it was raised
        return value

    def _over_rounds(self, state: _State) -> Interval:
        scores, most = state.known[self._metric], self._max_rounds or 1
        if _are_scores(scores, state.rounds):
            return interval_over_rounds(scores, self.each, most)
        if state.sequence is None:
            state.sequence = ConfidenceSequence(self.each)
        return state.sequence.update(scores)

    def _take(self, candidate: str, interval: Interval) -> None:
        self._states[candidate].interval = interval
        self._race.evaluated(candidate, interval)

    def _metrics_of(self, state: _State) -> dict[str, Any]:
        """Return what is known as a score, with the interval of the metric."""
        found: dict[str, Any] = {name: one.mean for name, one in state.known.items()}
        if math.isfinite(state.interval.width):
            found[f"{self._metric}_low"], found[f"{self._metric}_high"] = state.interval
        found[f"{self._metric}_n"] = state.known[self._metric].n
        return found

    # What is settled ----------------------------------------------------------------------------

    def settled(self, running: Collection[str] = ()) -> list[tuple[str, Mapping[str, Any]]]:
        """Return who needs no more, each once, with its score.

        Args:
            running: Who is being evaluated: what becomes of these is not known yet.
        """
        left = self._race.contenders()
        used_up = not running and not self._due()
        found = []
        for name, state in self._states.items():
            if state.failed or state.settled or name in running or state.metrics is None:
                continue
            if state.exhausted or name not in left or len(left) == 1 or used_up:
                state.settled = True
                found.append((name, state.metrics))
        return found

    def verdict(self) -> Verdict | None:
        """Return who is the best, and how sure that is; None if none could be evaluated."""
        return self._race.verdict() if self._race.contenders() else None


def _are_scores(known: Estimate, rounds: int) -> bool:
    """Return whether the values of an estimate are scores, one of each seed."""
    return known.n == rounds and known.bounds is None


def _beside(name: str, estimates: Mapping[str, Estimate]) -> bool:
    """Return whether a metric says how sure an estimate of a single round is."""
    return any(name == f"{one}_{end}" for one in estimates for end in ("low", "high", "n"))


# What has come of it ----------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Confirmed:
    """What the confirmation of a sweep's winner has come to.

    Attributes:
        name: What the names of the confirmed metrics begin with.
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

    name: str
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
    name: str,
    function: str,
    about: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    began: float = 0.0,
) -> Confirmed | None:
    """Return what a confirmation has come to, from what is recorded of it.

    Args:
        name: What the names of its metrics begin with.
        function: What it evaluated with.
        about: What its journal says of it: the ``candidates`` by the names of their validations,
            ``metric``, ``mode``, ``confidence``, ``chosen_from`` and ``by``.
        rows: A row for each candidate, as of
            :func:`tunekit.core.later_validations.rows_of`.
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
        >>> found = confirmed_by("confirmed", "validate", about, rows)
        >>> found.winner.trial_id, found.certain, found.sure
        ('b', True, 1.0)
        >>> confirmed_by("confirmed", "validate", about, rows[:1]) is None
        True
    """
    of = {row["id"]: row for row in rows}
    names, metric, mode = list(about["candidates"]), about["metric"], about["mode"]
    if any(of.get(one, {}).get("status") not in _ENDED for one in names):
        return None
    race = Elimination(
        names, mode=mode, confidence=about["confidence"], chosen_from=about.get("chosen_from")
    )
    found: dict[str, Candidate] = {}
    for one in names:
        candidate = found[one] = _candidate(one, metric, of[one])
        if candidate.mean is None:
            race.withdrawn(one)
        elif candidate.low is None or candidate.high is None:
            continue
        elif candidate.low == candidate.high:
            race.exhausted(one, candidate.mean)
        else:
            race.evaluated(one, Interval(candidate.low, candidate.high))
    if not race.contenders():
        return None
    verdict = race.verdict()
    return Confirmed(
        name=name,
        function=function,
        metric=metric,
        mode=mode,
        by=about.get("by", "trial"),
        asked=about["confidence"],
        winner=found[verdict.winner],
        certain=verdict.certain,
        sure=verdict.confidence,
        contenders=tuple(found[one] for one in verdict.contenders),
        candidates=tuple(found.values()),
        began=began,
    )


def confirmations_in(sessions: Iterable[LaterSession]) -> list[Confirmed]:
    """Return the confirmations that have ended, in the order in which they began.

    Args:
        sessions: Those of later validations that are in force, in that order.
    """
    of: dict[str, list[LaterSession]] = {}
    for session in sessions:
        if session.head.get("confirm") is not None:
            of.setdefault(session.name, []).append(session)
    found = []
    for name, own in sorted(of.items(), key=lambda pair: pair[1][-1].began):
        newest = own[-1]
        known = confirmed_by(
            name, newest.function, newest.head["confirm"], rows_of(own), newest.began
        )
        if known is not None:
            found.append(known)
    return found


_ENDED = ("validated", "failed", "timed_out")


def _candidate(key: str, metric: str, row: Mapping[str, Any]) -> Candidate:
    trial_id, generation, iteration, *_ = ValidationKey.parse(key)
    metrics = flatten(row["metrics"])
    mean = number(metrics.get(metric)) if row["status"] == "validated" else None
    if mean is None or not math.isfinite(mean):
        return Candidate(trial_id, generation, iteration)
    n = number(metrics.get(f"{metric}_n"))
    own = None if n is None else int(n)
    return Candidate(trial_id, generation, iteration, mean, *_ends(metrics, metric), own)


def _ends(metrics: Mapping[str, Any], metric: str) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a metric in a score; None if nothing is known of them."""
    known = flatten(metrics)
    low, high = number(known.get(f"{metric}_low")), number(known.get(f"{metric}_high"))
    if low is None and number(known.get(f"{metric}_n")) is None:
        low = high = number(known.get(metric))  # a function that says nothing of examples is exact
    return low, high


def confirmation_that_counts(
    confirmations: Sequence[Confirmed], timeline: Timeline, metric: str, mode: str, by: str
) -> Confirmed | None:
    """Return the newest confirmation of what is asked for; None if there is none that holds.

    An older one does not take the place of one that is outdated.

    Args:
        confirmations: Those that have ended; newest last.
        timeline: What became of the sweep.
        metric: What the winner is the best by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        by: ``"trial"`` or ``"configuration"``.

    Example:
        >>> confirmation_that_counts([], Timeline(()), "accuracy", "max", "trial") is None
        True
    """
    for one in reversed(confirmations):
        if (one.metric, one.mode, one.by) == (metric, mode, by):
            counts = winning_score(one, timeline) is not None and not is_outdated(one, timeline)
            return one if counts else None
    return None


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


def winning_score(confirmed: Confirmed, timeline: Timeline) -> Scored | None:
    """Return the score of a confirmed checkpoint, unless the trial has run that again since."""
    winner = confirmed.winner
    if winner.trial_id not in timeline.trials:
        return None
    for scored in timeline.scores(winner.trial_id):
        known = scored.value(confirmed.metric)
        if (scored.generation, scored.iteration) == winner.place and known is not None:
            return scored
    return None
