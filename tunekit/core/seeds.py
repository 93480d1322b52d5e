"""Configurations: trials that differ only in their seeds, ranked together.

A configuration is ranked by the mean over its seeds. How a trial ended decides whether it is part
of that mean (:class:`Ending`):

- a **complete** one counts;
- one that was **stopped** early counts with the score that it had reached. Leaving it out would let
  the lucky seeds represent a configuration whose unlucky ones were stopped. The best score of a
  part of a run is never better than that of the whole, so this mean is at worst too pessimistic;
- an **unfinished** one (it failed, still runs, or was overwritten with another trial's
  weights) does not count, unless the configuration has no others yet.

The intervals and tests assume repetitions of equal length that differ by chance only. So there are
none unless all trials that count are complete.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from tunekit.core import t_distribution
from tunekit.core.metric_names import listed, meant
from tunekit.core.problems import Problems, shown
from tunekit.core.timeline import TrialSummary

#: The confidence of intervals and verdicts.
CONFIDENCE = 0.95

#: The hyperparameter in which Tune's ``Repeater`` numbers the trials of a configuration.
REPEAT_INDEX = "__trial_index__"

_PLAIN = (bool, int, float, str, type(None))


class Ending(str, Enum):
    """How far a trial has run: see the module's docstring."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    UNFINISHED = "unfinished"


def ending_of(trial: TrialSummary, *, validating: bool, whole: bool) -> Ending:
    """Return how far a trial has run.

    Args:
        trial: Its summary.
        validating: Whether one of its validations has not ended.
        whole: Whether it has run as far as trials can, even if it was stopped. ASHA, for example,
            also stops trials that reach its ``max_t``.

    Example:
        >>> ended = TrialSummary("a", status="terminated", stopped=True)
        >>> ending_of(ended, validating=False, whole=False)
        <Ending.STOPPED: 'stopped'>
        >>> ending_of(ended, validating=True, whole=False)
        <Ending.UNFINISHED: 'unfinished'>
    """
    if trial.status != "terminated" or trial.generation or validating:
        return Ending.UNFINISHED
    return Ending.STOPPED if trial.stopped and not whole else Ending.COMPLETE


@dataclass(frozen=True)
class Repeat:
    """A trial, as a repeat of a configuration.

    Attributes:
        trial_id: The trial.
        hyperparameters: Its hyperparameters by flat name, with the seed.
        value: Its score; None if it has none.
        ending: How far it has run.
    """

    trial_id: str
    hyperparameters: Mapping[str, Any]
    value: float | None
    ending: Ending = Ending.COMPLETE


@dataclass(frozen=True)
class MeanEstimate:
    """The mean of values over seeds.

    Attributes:
        n: The number of values.
        mean: Their mean.
        std: Their standard deviation (of the sample: divided by n - 1); NaN for one value.
        low: The lower end of the 95 % t-interval of the mean; NaN for one value.
        high: The upper end.
    """

    n: int
    mean: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Configuration:
    """Trials that differ only in their seeds.

    Attributes:
        rank: 1 for the best; None without a score, or without a mode to rank by.
        hyperparameters: The hyperparameters that they share, by flat name.
        repeats: The trials that count, best first; then the others, in the order of addition.
        counted: The number of trials that count.
        seeds: The number of different seeds that count. Trials of one seed count once, with their
            mean.
        estimate: The mean over the seeds that count; None without a score. It has an interval if
            two or more count, and all trials that count are complete.
    """

    rank: int | None
    hyperparameters: Mapping[str, Any]
    repeats: tuple[Repeat, ...]
    counted: int
    seeds: int
    estimate: MeanEstimate | None

    @property
    def best(self) -> Repeat | None:
        """Return the best of the trials that count."""
        return self.repeats[0] if self.counted else None

    @property
    def worst(self) -> Repeat | None:
        """Return the worst of the trials that count."""
        return self.repeats[self.counted - 1] if self.counted else None

    @cached_property
    def complete(self) -> int:
        """Return the number of complete trials with a score."""
        return sum(one.ending is Ending.COMPLETE and one.value is not None for one in self.repeats)

    @property
    def comparable(self) -> bool:
        """Return whether all trials that count are complete."""
        return all(one.ending is Ending.COMPLETE for one in self.repeats[: self.counted])


def estimate_of(values: Sequence[float], *, interval: bool = True) -> MeanEstimate:
    """Return the mean of values with its Student's t-interval.

    Args:
        values: At least one value; they are independent of each other.
        interval: Whether to compute the interval.

    Example:
        >>> estimate_of([1, 2, 3])
        MeanEstimate(n=3, mean=2.0, std=1.0, low=-0.484..., high=4.484...)
        >>> estimate_of([0.9])
        MeanEstimate(n=1, mean=0.9, std=nan, low=nan, high=nan)
    """
    n = len(values)
    mean = float(statistics.mean(values))
    if n < 2 or not all(map(math.isfinite, values)):
        return MeanEstimate(n, mean)
    scale = max(map(abs, values)) or 1.0  # so that nothing overflows
    std = statistics.stdev(value / scale for value in values) * scale
    if not interval:
        return MeanEstimate(n, mean, std)
    half = t_distribution.quantile(n - 1, CONFIDENCE) * std / math.sqrt(n)
    return MeanEstimate(n, mean, std, mean - half, mean + half)


def configurations_of(
    repeats: Iterable[Repeat], seed: str, mode: str | None
) -> list[Configuration]:
    """Group trials by all their hyperparameters but the seed, and rank the groups by their means.

    Groups with equal means keep the order of their first trials; groups without a score come last.

    Args:
        repeats: The trials, in the order of addition.
        seed: The flat name of the hyperparameter that is the seed.
        mode: ``"min"`` or ``"max"``; None leaves them unranked.

    Example:
        >>> found = configurations_of([
        ...     Repeat("a", {"lr": 0.1, "seed": 0}, 0.90),
        ...     Repeat("b", {"lr": 0.2, "seed": 0}, 0.95),
        ...     Repeat("c", {"lr": 0.1, "seed": 1}, 0.94),
        ...     Repeat("d", {"lr": 0.2, "seed": 1}, 0.79),
        ... ], "seed", "max")
        >>> [(one.rank, one.hyperparameters, round(one.estimate.mean, 3)) for one in found]
        [(1, {'lr': 0.1}, 0.92), (2, {'lr': 0.2}, 0.87)]
        >>> found[1].best.trial_id, found[1].worst.trial_id
        ('b', 'd')
    """
    groups: dict[Any, list[Repeat]] = {}
    for one in repeats:
        groups.setdefault(_key(without_seed(one.hyperparameters, seed)), []).append(one)
    found = [_configuration(group, seed, mode) for group in groups.values()]
    if mode is None:
        return found
    found.sort(key=lambda one: _order(None if one.estimate is None else one.estimate.mean, mode))
    return [
        replace(one, rank=None if one.estimate is None else place)
        for place, one in enumerate(found, start=1)
    ]


def without_seed(hyperparameters: Mapping[str, Any], seed: str) -> dict[str, Any]:
    """Return the hyperparameters that the trials of one configuration share.

    The index of Tune's ``Repeater`` is excluded, whichever hyperparameter is the seed.

    Example:
        >>> without_seed({"lr": 0.1, "seed": 3, "__trial_index__": 2}, "seed")
        {'lr': 0.1}
    """
    return {k: v for k, v in hyperparameters.items() if k not in (seed, REPEAT_INDEX)}


def _configuration(group: Sequence[Repeat], seed: str, mode: str | None) -> Configuration:
    scored = [(one, one.value) for one in group if one.value is not None]
    finished = [pair for pair in scored if pair[0].ending is not Ending.UNFINISHED]
    counted = sorted(finished or scored, key=lambda pair: _order(pair[1], mode))
    by_seed: dict[Any, list[float]] = {}
    for one, value in counted:
        # A trial without a seed counts as a separate seed.
        known = seed in one.hyperparameters
        name = _key(one.hyperparameters[seed]) if known else ("trial", one.trial_id)
        by_seed.setdefault(name, []).append(value)
    values = [float(statistics.mean(same)) for same in by_seed.values()]
    complete = all(one.ending is Ending.COMPLETE for one, _ in counted)
    first = {one.trial_id: one for one, _ in counted}
    return Configuration(
        rank=None,
        hyperparameters=without_seed(group[0].hyperparameters, seed),
        repeats=tuple({**first, **{one.trial_id: one for one in group}}.values()),
        counted=len(counted),
        seeds=len(values),
        estimate=estimate_of(values, interval=complete) if values else None,
    )


def _order(value: float | None, mode: str | None) -> tuple[bool, bool, float]:
    """Return a sort key: best first; then a mean that is NaN, as of inf and -inf."""
    if value is None or math.isnan(value):
        return value is None, True, 0.0
    return False, False, -value if mode == "max" else value


def _key(value: Any) -> Any:
    """Return a hashable key that is equal for equal values of hyperparameters.

    Numbers are equal as in Python, 1 and 1.0, but True is not 1; other values are equal if their
    ``repr`` is.
    """
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _key(inner)) for name, inner in value.items()))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return ("number", value)
    return ("text", repr(value))


# Comparing two configurations -------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Whether the seeds distinguish two configurations.

    Attributes:
        margin: The difference of the means.
        p: The probability of a difference this large if the configurations were equally good, by
            Welch's t-test; None if it is unknown.
        reason: Why it is unknown.
    """

    margin: float
    p: float | None = None
    reason: str | None = None

    @property
    def apart(self) -> bool | None:
        """Return whether they differ significantly; None if that is unknown."""
        return None if self.p is None else self.p < 1 - CONFIDENCE


def compare(one: Configuration, other: Configuration) -> Comparison | None:
    """Compare two configurations by Welch's t-test, which lets their variances differ.

    Welch (1947), "The generalization of 'Student's' problem when several different population
    variances are involved".

    Returns:
        None if one of them has no score.

    Example:
        >>> def seeds(name, *values):
        ...     of = [Repeat(f"{name}{n}", {"seed": n}, v) for n, v in enumerate(values)]
        ...     return configurations_of(of, "seed", "max")[0]
        >>> near = compare(seeds("a", 0.90, 0.94, 0.92), seeds("b", 0.89, 0.93, 0.91))
        >>> round(near.margin, 2), round(near.p, 2), near.apart
        (0.01, 0.57, False)
        >>> compare(seeds("a", 0.90, 0.91), seeds("b", 0.80, 0.81)).apart
        True
        >>> compare(seeds("a", 0.90, 0.91), seeds("b", 0.80)).reason
        'one of them has one seed'
    """
    a, b = one.estimate, other.estimate
    if a is None or b is None:
        return None
    margin = abs(a.mean - b.mean)
    if not (one.comparable and other.comparable):
        return Comparison(margin, reason="not all of their trials are complete")
    if min(a.n, b.n) < 2:
        lone = "both have" if a.n == b.n else "one of them has"
        return Comparison(margin, reason=f"{lone} one seed")
    errors = [estimate.std / math.sqrt(estimate.n) for estimate in (a, b)]
    error = math.hypot(*errors)
    if not math.isfinite(error) or not math.isfinite(margin):
        return Comparison(margin, reason="not all scores are finite")
    if error == 0:  # the seed makes no difference
        return Comparison(margin, p=float(margin == 0))
    share = (errors[0] / error) ** 2
    df = 1 / (share**2 / (a.n - 1) + (1 - share) ** 2 / (b.n - 1))
    return Comparison(margin, p=t_distribution.two_sided(margin / error, df))


# Checking the seed's name -----------------------------------------------------------------------


def check_seed(seed: Any, problems: Problems) -> None:
    """Add a problem if ``seed`` cannot be the name of any hyperparameter.

    Example:
        >>> problems = Problems("load")
        >>> check_seed(0, problems)
        >>> print(problems.error())
        load: seed_param=0 is not the name of a hyperparameter. Pass its flat name, such as 'seed'.
    """
    if seed is not None and not (isinstance(seed, str) and seed):
        problems.add(
            f"seed_param={shown(seed)} is not the name of a hyperparameter. Pass its flat name, "
            "such as 'seed'."
        )


def check_known(
    seed: str, hyperparameters: Iterable[Mapping[str, Any]], problems: Problems
) -> None:
    """Add a problem if no trial has the hyperparameter, unless there are no trials.

    Args:
        seed: The flat name of the hyperparameter.
        hyperparameters: The hyperparameters of each trial, by flat name.
        problems: Collects the problem.

    Example:
        >>> problems = Problems("load")
        >>> check_known("sed", [{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}], problems)
        >>> print(problems.error())
        load: seed_param='sed' is not a hyperparameter of any trial. Did you mean 'seed'? Pass one
        of 'seed', 'lr'.
    """
    known = list(hyperparameters)
    if not known or any(seed in one for one in known):
        return
    names = dict.fromkeys(name for one in known for name in one)
    near = meant(seed, names)
    hint = f"Did you mean {near!r}? " if near else ""
    others = f"Pass one of {listed(names, [near or seed])}." if names else "The trials have none."
    problems.add(f"seed_param={seed!r} is not a hyperparameter of any trial. {hint}{others}")


def checked_seed(
    seed: str | None, hyperparameters: Iterable[Mapping[str, Any]], problems: Problems
) -> str:
    """Return the hyperparameter that is the seed; add what is wrong with it to ``problems``.

    Args:
        seed: Its flat name; None if it is missing.
        hyperparameters: The hyperparameters of each trial, by flat name.
        problems: Collects the problems.

    Example:
        >>> problems = Problems("Sweep.configurations")
        >>> checked_seed("seed", [{"lr": 0.1, "seed": 0}], problems)
        'seed'
        >>> seed = checked_seed(None, [{"lr": 0.1, "seed": 0}], problems)
        >>> print(problems.error())
        Sweep.configurations: seed_param is missing, and the sweep was started without
        Tuner(seed_param=...). Pass the hyperparameter's name, here or as tunekit.load(path,
        seed_param=...): one of 'lr', 'seed'.
    """
    known = list(hyperparameters)
    if seed is None:
        names = list(dict.fromkeys(name for one in known for name in one))
        problems.add(
            "seed_param is missing, and the sweep was started without Tuner(seed_param=...). "
            "Pass the hyperparameter's name, here or as tunekit.load(path, seed_param=...): one of "
            f"{listed(names)}."
        )
    else:
        check_known(seed, known, problems)
    return str(seed)


def space_lacks(space: Mapping[str, Any], seed: str) -> str | None:
    """Return what is wrong if a search space lacks the hyperparameter that is the seed.

    Args:
        space: The search space, as it is passed to a ``Tuner``.
        seed: The flat name of the hyperparameter.

    Returns:
        None if it has the hyperparameter, or if that is unknown: the value drawn for a prefix of
        the name may be a dict.

    Example:
        >>> space_lacks({"seed": {"grid_search": [0, 1]}, "opt": {"lr": 0.1}}, "seed")
        >>> space_lacks({"opt": {"lr": 0.1, "seed": 0}}, "seed")
        "the search space lacks it: it has 'opt/seed', 'opt/lr'. Did you mean 'opt/seed'?"
        >>> space_lacks({}, "seed")
        'the search space lacks it: it has nothing.'
    """
    names = _names_in(space)
    for name, value in names.items():
        if name == seed or (seed.startswith(f"{name}/") and not isinstance(value, _PLAIN)):
            return None
    near = meant(seed, names)
    hint = f" Did you mean {near!r}?" if near else ""
    return f"the search space lacks it: it has {listed(names, [seed, near or seed])}.{hint}"


def _names_in(level: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values of a search space by flat name; a grid search counts as one value."""
    found: dict[str, Any] = {}
    for key, value in level.items():
        if isinstance(value, Mapping) and value and value.keys() != {"grid_search"}:
            found |= _names_in(value, f"{above}{key}/")
        else:
            found[f"{above}{key}"] = value
    return found
