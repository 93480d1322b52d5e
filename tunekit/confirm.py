"""How a sweep's winner is confirmed: the user's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray import train

from tunekit.core.calls import ValidationFunction, kind_of
from tunekit.core.confirmation import CONFIRMED
from tunekit.core.problems import Problems, shown

__all__ = ["Confirm"]


@dataclass(frozen=True)
class Confirm:
    """How the best checkpoints of a sweep are evaluated once more, to confirm which is the best.

    The best of many scores was lucky. So the best kept checkpoint of each of the ``top`` best
    trials (with a seed, of each of the best configurations: of its best trial) is evaluated again.
    Each gets a confidence interval, and who cannot be the best any more is evaluated no further. It
    ends when one is left, or all is used. How they are evaluated depends on the function:

    - A **generator** of :class:`~tunekit.Estimate`: each candidate is evaluated as far as it takes
      to tell it from the best. At its end, a mean is exact.
    - A function that takes **seed** (a parameter of that name) is called with 0, 1, 2, ... The
      candidates are compared by their means over seeds with Student's t-intervals, wide enough to
      hold after each round: this assumes that scores are normally distributed over seeds.
    - Any **other function** is called once for each candidate. Its scores are taken for exact, so
      the best of them is the winner, as far as these examples go.

    The sweep's own function has seen the same examples before, and the candidates were chosen by
    that; so its intervals are made wide enough for all validated checkpoints of the sweep, instead
    of those ``top``, and it goes on from where the sweep has stopped if it takes ``resume``. Of
    another function it is assumed that it evaluates with other examples.

    Args:
        top: How many trials, or configurations, the candidates come from.
        fn: The function, called as ``fn(checkpoint)``, or a :class:`~tunekit.ValidationConfig` with
            its arguments, resources, time limit and number of retries. It returns the metric that
            the sweep is ranked by. None: the sweep's own, with the sweep's settings.
        confidence: The probability that the winner is the best of the candidates, between 0 and 1.
        max_rounds: How many seeds to evaluate with at most, if ``fn`` takes ``seed``.

    Raises:
        ConfigError: If an argument is wrong; the message lists all that is.

    Example:
        >>> Confirm(top=3)
        Confirm(top=3, fn=None, confidence=0.95, max_rounds=10)
        >>> Confirm(top=0, confidence=95)
        Traceback (most recent call last):
        tunekit.errors.ConfigError: Confirm: 2 problems:
          - top=0 must be a whole number of at least 1. Pass 1 or more.
          - confidence=95 must be a number between 0 and 1. Pass 0.95 to name another than the best at most once in 20 times.
    """  # noqa: E501

    top: int = 5
    fn: ValidationFunction | train.ValidationConfig | None = None
    confidence: float = 0.95
    max_rounds: int = 10
    #: What the names of the metrics begin with.
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
                f"fn={shown(fn)} is {kind}: a call of it returns before anything is validated. "
                "Pass a plain function, or a generator of estimates."
            )
        fix = "Pass 0.95 to name another than the best at most once in 20 times."
        problems.share("confidence", self.confidence, fix)
        problems.integer("max_rounds", self.max_rounds, least=1)
        problems.raise_any()
