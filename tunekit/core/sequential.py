"""Stop a validation once no value in its confidence interval would change a decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunekit.core.confidence import ConfidenceSequence, Interval
from tunekit.core.estimates import Estimate
from tunekit.core.metrics import leaves
from tunekit.core.problems import Problems


@dataclass(frozen=True)
class Sequential:
    """Stop a validation once no value in its confidence interval would change a decision.

    The validation function is a generator that yields a dict with an :class:`~tunekit.Estimate` for
    each metric that it has not finished. The interval holds at all times at once, so looking after
    every batch is allowed. This works with Tune's schedulers and with tunekit's own; with any other
    scheduler, or a subclass of one, checkpoints are evaluated in full.

    Args:
        confidence: The probability that the true mean is within the interval all the time, between
            0 and 1.
        min_examples: The fewest examples to evaluate, however clear the decision is. It bounds the
            error of scores, which are compared with each other later: accuracies are off by about
            ``1 / sqrt(min_examples)``.
        max_examples: The number of examples after which to stop in any case; None: all of them.
        best_in_full: Whether a checkpoint that may be the sweep's best so far is evaluated in full,
            whatever the scheduler would decide. The winner is then chosen by all examples. With
            False, far fewer examples are evaluated, and the best score is one of several close
            estimates.

    Raises:
        tunekit.errors.ConfigError: If ``confidence`` is not between 0 and 1, a number of examples
            is less than 1, or ``max_examples`` is below ``min_examples``; the message lists every
            mistake.

    Example:
        >>> Sequential(min_examples=500)
        Sequential(confidence=0.95, min_examples=500, max_examples=None, best_in_full=True)
    """

    confidence: float = 0.95
    min_examples: int = 200
    max_examples: int | None = None
    best_in_full: bool = True

    def __post_init__(self) -> None:
        problems = Problems("Sequential")
        fix = "Pass 0.95 to be wrong about a mean at most 1 time in 20."
        problems.share("confidence", self.confidence, fix)
        problems.integer("min_examples", self.min_examples, least=1)
        problems.integer("max_examples", self.max_examples, least=1, optional=True)
        if not problems and self.max_examples is not None and self.max_examples < self.min_examples:
            problems.add(
                f"max_examples={self.max_examples} is less than min_examples={self.min_examples}. "
                "Pass at least as many, or None."
            )
        problems.raise_any()

    def is_enough(self, n: int, alike: Callable[[], bool]) -> bool:
        """Return whether more examples would not change any decision.

        Args:
            n: The number of examples evaluated.
            alike: Returns whether no mean in the interval would change the decision; called only
                if the result depends on it.

        Example:
            >>> sequential = Sequential(min_examples=10, max_examples=1000)
            >>> [sequential.is_enough(n, alike=lambda: n > 50) for n in (5, 50, 500)]
            [False, False, True]
            >>> sequential.is_enough(1000, alike=lambda: False)
            True
        """
        if self.max_examples is not None and n >= self.max_examples:
            return True
        return n >= self.min_examples and alike()


def alike_by_value(interval: Interval, thresholds: Collection[float]) -> bool:
    """Return whether no value in an interval reaches a threshold at which a decision changes.

    Example:
        >>> alike_by_value(Interval(0.7, 0.8), [0.6]), alike_by_value(Interval(0.7, 0.8), [0.75])
        (True, False)
    """
    return not any(interval.low <= one <= interval.high for one in thresholds)


def alike_by_rank(
    interval: Interval, others: Collection[float], ranks: Collection[int], missing: int = 0
) -> bool:
    """Return whether a decision by rank is the same for all values in an interval.

    Args:
        interval: The interval of the score (larger is better).
        others: The scores that it is compared with.
        ranks: The numbers of scores below it at which the decision changes.
        missing: The number of further scores, still unknown, that it will be compared with.

    Example:
        The better half of four is kept: a score with two below it is.

        >>> alike_by_rank(Interval(0.7, 0.8), [0.1, 0.2, 0.9], ranks=[2])
        True
        >>> alike_by_rank(Interval(0.7, 0.8), [0.1, 0.75, 0.9], ranks=[2])
        False
        >>> alike_by_rank(Interval(0.7, 0.8), [0.1, 0.2], ranks=[2], missing=1)
        True
        >>> alike_by_rank(Interval(0.7, 0.8), [0.1, 0.9], ranks=[2], missing=1)
        False
    """
    least = sum(one < interval.low for one in others)
    most = sum(one <= interval.high for one in others) + missing
    return not any(least < rank <= most for rank in ranks)


def estimates_in(metrics: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the estimates that a validation yielded, by the flat names of their metrics.

    Example:
        >>> estimates_in({"loss": 0.3, "test": {"accuracy": Estimate(0.8, 100, bounds=(0, 1))}})
        {'test/accuracy': Estimate(mean=0.8, n=100, variance=None, bounds=(0.0, 1.0))}
    """
    return {name: value for name, value in leaves(metrics) if isinstance(value, Estimate)}


@dataclass
class Evidence:
    """The estimates of one validation so far.

    Args:
        confidence: As in :class:`Sequential`.

    Example:
        >>> evidence = Evidence(0.95)
        >>> evidence.take({"accuracy": Estimate(0.8, 100, bounds=(0, 1))})
        >>> {name: round(value, 2) for name, value in evidence.score().items()}
        {'accuracy': 0.8, 'accuracy_low': 0.66, 'accuracy_high': 0.9, 'accuracy_n': 100}
    """

    confidence: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    sequences: dict[str, ConfidenceSequence] = field(default_factory=dict)

    def take(self, metrics: Mapping[str, Any]) -> None:
        """Record what a validation yielded or returned.

        Raises:
            ConfigError: If an estimate does not continue the one before it.
        """
        for name, estimate in estimates_in(metrics).items():
            known = self.sequences.get(name)
            if known is not None and known.newest == estimate:
                continue  # the last yielded estimate is returned once more
            if known is None:
                known = self.sequences[name] = ConfidenceSequence(self.confidence)
            known.update(estimate)
        self.metrics = metrics

    def examples(self, name: str) -> int:
        """Return the number of examples that a metric was estimated from."""
        newest = self.sequences[name].newest
        return 0 if newest is None else newest.n

    def score(self) -> dict[str, Any]:
        """Return the metrics, with numbers for the estimates.

        An estimated metric has up to three more next to it: the interval of its mean, ``_low`` and
        ``_high``, if that is finite, and the number of examples, ``_n``.
        """
        return spread(self.metrics, {name: one.interval for name, one in self.sequences.items()})


def spread(
    metrics: Mapping[str, Any], intervals: Mapping[str, Interval], prefix: str = ""
) -> dict[str, Any]:
    """Return metrics with each estimate's mean, interval and number of examples.

    Args:
        metrics: Metrics, nested as they were yielded.
        intervals: The intervals of the estimates, by the flat names of their metrics.
        prefix: The name of the level that ``metrics`` is.

    Example:
        >>> estimate = Estimate(0.8, 100, bounds=(0, 1))
        >>> spread({"accuracy": estimate, "loss": 0.3}, {"accuracy": Interval(0.7, 0.9)})
        {'accuracy': 0.8, 'accuracy_low': 0.7, 'accuracy_high': 0.9, 'accuracy_n': 100, 'loss': 0.3}
    """
    found: dict[str, Any] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found[key] = spread(value, intervals, f"{name}/")
        elif isinstance(value, Estimate):
            found[key] = value.mean
            interval = intervals.get(name)
            if interval is not None and interval.width < float("inf"):
                found[f"{key}_low"], found[f"{key}_high"] = interval
            found[f"{key}_n"] = value.n
        else:
            found[key] = value
    return found


def gathered(
    metrics: Mapping[str, Any], estimates: Mapping[str, Estimate], prefix: str = ""
) -> dict[str, Any]:
    """Return a score with its estimates restored: the inverse of :func:`spread`.

    Args:
        metrics: A score.
        estimates: Estimates, by the flat names of their metrics. An estimate that does not match
            the score is ignored.
        prefix: The name of the level that ``metrics`` is.

    Example:
        >>> known = {"accuracy": Estimate(0.8, 100, bounds=(0, 1))}
        >>> gathered({"accuracy": 0.8, "accuracy_n": 100, "loss": 0.3}, known)
        {'accuracy': Estimate(mean=0.8, n=100, variance=None, bounds=(0.0, 1.0)), 'loss': 0.3}
        >>> gathered({"accuracy": 0.7, "loss": 0.3}, known)
        {'accuracy': 0.7, 'loss': 0.3}
    """
    found: dict[str, Any] = {}
    beside: set[str] = set()
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        estimate = estimates.get(name)
        if isinstance(value, Mapping):
            found[key] = gathered(value, estimates, f"{name}/")
        elif estimate is not None and (value, metrics.get(f"{key}_n")) == (
            estimate.mean,
            estimate.n,
        ):
            found[key] = estimate
            beside |= {f"{key}_low", f"{key}_high", f"{key}_n"}
        else:
            found[key] = value
    return {key: value for key, value in found.items() if key not in beside}
