"""The user's settings for confirming a sweep's winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray import train

from tunekit.core.confirmation import CONFIRMED
from tunekit.core.problems import Problems, shown
from tunekit.core.signatures import ValidationFunction, kind_of


@dataclass(frozen=True)
class Confirm:
    """Re-evaluate the best checkpoints of a sweep, to confirm which one is best.

    The best of many noisy scores is biased upward. So the best kept checkpoint of each of the
    ``top`` best trials is evaluated again (with a seed: of the best trial of each of the best
    configurations). Each gets a confidence interval. Candidates that can no longer win are dropped;
    it ends when one remains or the examples run out. How they are evaluated depends on ``fn``:

    - A **generator** of :class:`~tunekit.Estimate` evaluates each candidate until it is clearly
      worse than the best, or the best itself. If it runs to its end, its mean is exact.
    - A function with a parameter ``seed`` is called with 0, 1, 2, ... Means over seeds are compared
      by Student's t-intervals, widened to hold after each round. This assumes that scores are
      normally distributed over seeds.
    - Any **other function** is called once for each candidate. Its scores count as exact, so the
      best of them wins.

    The sweep's own function has chosen the candidates on the same examples. So its intervals are
    widened for all validated checkpoints of the sweep rather than for the ``top``, and it continues
    where the sweep stopped if it takes ``resume``. Another function is assumed to use other
    examples.

    Args:
        top: The number of trials, or configurations, that the candidates come from.
        fn: The function, called as ``fn(checkpoint)``, or a :class:`~tunekit.ValidationConfig` with
            its arguments, resources, time limit and number of retries. It returns the metric that
            the sweep is ranked by. None: the sweep's own, with the sweep's settings.
        confidence: The probability that the winner is the best of the candidates, between 0 and 1.
        max_rounds: The most seeds to evaluate with, if ``fn`` takes ``seed``.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake.

    Example:
        >>> Confirm(top=3)
        Confirm(top=3, fn=None, confidence=0.95, max_rounds=10)
        >>> Confirm(top=0, confidence=95)
        Traceback (most recent call last):
        tunekit.errors.ConfigError: Confirm: 2 problems:
          - top=0 must be a whole number of at least 1. Pass 1 or more.
          - confidence=95 must be a number between 0 and 1. Pass 0.95 to pick the wrong winner at most 1 time in 20.
    """  # noqa: E501

    top: int = 5
    fn: ValidationFunction | train.ValidationConfig | None = None
    confidence: float = 0.95
    max_rounds: int = 10
    #: The prefix of the metrics' names.
    name: ClassVar[str] = CONFIRMED

    def __post_init__(self) -> None:
        problems = Problems("Confirm")
        problems.integer("top", self.top, least=1)
        fn = self.fn
        if (
            fn is not None
            and not isinstance(fn, train.ValidationConfig)
            and problems.function("fn", fn, "Pass a validation function, or a ValidationConfig.")
            and (kind := kind_of(fn)) is not None
        ):
            problems.add(
                f"fn={shown(fn)} is {kind}, so a call returns before anything is validated. "
                "Pass a plain function, or a generator of estimates."
            )
        fix = "Pass 0.95 to pick the wrong winner at most 1 time in 20."
        problems.share("confidence", self.confidence, fix)
        problems.integer("max_rounds", self.max_rounds, least=1)
        problems.raise_any()
