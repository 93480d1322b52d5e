"""Several sweeps side by side: by which metric, how far each was at the same point, what differs.

Sweeps are compared at points that all of them have reached: what one of them found with more time
says nothing about the others. The score at such a point is the best of those that had arrived by
then, as in the literature on hyperparameter optimization (the incumbent).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.names import listed, meant
from tunekit.core.parameters import parameters_of
from tunekit.core.problems import Problems
from tunekit.core.timeline import better
from tunekit.core.values import same
from tunekit.core.words import setting

__all__ = [
    "Compared",
    "best_so_far",
    "common_points",
    "differing",
    "distinct_names",
    "driven_s",
    "goal_of",
    "regions",
    "settings_of",
    "value_at",
]

#: At so many points sweeps are compared.
POINTS = 4

# What a session's first line has that is no setting.
_NO_SETTINGS = (
    "after",
    "begins",
    "follows",
    "journal",
    "judged",
    "mode",
    "n",
    "space",
    "time",
    "version",
)
# Amounts that differ each time, and what a scheduler keeps or derives from the others.
_NOISE = frozenset(
    {"counter", "memory", "metric", "metric_op", "mode", "num_stopped", "object_store_memory"}
    | {"rungs"}
)


@dataclass(frozen=True)
class Compared:
    """What is asked of a sweep to find out by what it can be compared.

    Attributes:
        name: What it is called.
        metric: The metric that it is judged by, if there is one.
        mode: ``"min"`` or ``"max"``, if it is known.
        names: The metrics that its validations have produced.
    """

    name: str
    metric: str | None
    mode: str | None
    names: Sequence[str]


def goal_of(
    sweeps: Sequence[Compared], metric: str | None, mode: str | None, problems: Problems
) -> tuple[str, str]:
    """Return the metric and the mode by which sweeps are compared; problems get what is wrong.

    Args:
        sweeps: The sweeps.
        metric: The metric that was asked for; None if all are judged by one.
        mode: Likewise.
        problems: Where to put what is wrong.

    Example:
        >>> a, b = Compared("a", "accuracy", "max", ["accuracy"]), Compared("b", "loss", "min", [])
        >>> goal_of([a, a], None, None, Problems("compare"))
        ('accuracy', 'max')
        >>> problems = Problems("tunekit.compare")
        >>> goal = goal_of([a, b], None, None, problems)
        >>> problems.raise_any()
        Traceback (most recent call last):
        tunekit.errors.ConfigError: tunekit.compare: the sweeps are judged by different metrics: 'a'
        by 'accuracy', 'b' by 'loss'. Pass metric= and mode=. All of them have validated 'accuracy'.
    """
    if mode is not None:
        problems.choice("mode", mode, ["min", "max"])
    metrics = {one.metric for one in sweeps}
    scored = [set(one.names) for one in sweeps if one.names]
    common = sorted(set.intersection(*scored)) if scored else []
    if metric is None and (len(metrics) > 1 or metrics == {None}):
        told = ", ".join(
            f"{one.name!r} by {'no single one' if one.metric is None else repr(one.metric)}"
            for one in sweeps
        )
        has = f" All of them have validated {listed(common)}." if common else ""
        problems.add(
            f"the sweeps are judged by different metrics: {told}. Pass metric= and mode=.{has}"
        )
        return "", ""
    by = metric if metric is not None else next(iter(metrics), None)
    lacking = [one for one in sweeps if one.names and by not in one.names]
    if metric is not None and lacking:
        names = ", ".join(repr(one.name) for one in lacking)
        near = meant(metric, common)
        problems.add(
            f"metric={metric!r} has not been validated in {names}. "
            f"{f'Did you mean {near!r}? ' if near else ''}Pass one that all sweeps have: "
            f"{listed(common, [metric])}."
        )
    modes = {one.mode for one in sweeps if one.metric == by} - {None}
    if mode is None and len(modes) > 1:
        told = ", ".join(f"{one.name!r} by {one.mode!r}" for one in sweeps)
        problems.add(
            f"mode is missing: the sweeps are judged by {by!r}, and {told}. Pass mode='min' or "
            "mode='max'."
        )
    elif mode is None and not modes:
        problems.add(
            f"mode is missing, and no sweep is judged by {by!r}. Pass mode='min' or mode='max'."
        )
    return str(by), mode or next(iter(sorted(filter(None, modes))), "")


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return what sweeps are called: as few of the last parts of their paths as tell them apart.

    Example:
        >>> distinct_names(["/results/asha", "/results/pbt"])
        ['asha', 'pbt']
        >>> distinct_names(["/may/digits", "/june/digits", "/june/digits"])
        ['may/digits', 'june/digits', 'june/digits (2)']
    """
    parts = [path.rstrip("/").split("/") for path in paths]
    names: list[str] = []
    for most in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(own[-most:]) for own in parts]
        if len(set(names)) == len(set(paths)):
            break
    found = []
    for at, name in enumerate(names):
        again = names[:at].count(name)
        found.append(f"{name} ({again + 1})" if again else name)
    return found


# How far ---------------------------------------------------------------------------------------


def best_so_far(scores: Iterable[tuple[float, float]], mode: str) -> list[tuple[float, float]]:
    """Return where the best score improved.

    Args:
        scores: ``(at, score)``: when each arrived, in any unit.
        mode: ``"min"`` or ``"max"``.

    Example:
        >>> best_so_far([(1, 0.5), (3, 0.4), (2, 0.7), (4, 0.8)], "max")
        [(1, 0.5), (2, 0.7), (4, 0.8)]
    """
    found: list[tuple[float, float]] = []
    for at, score in sorted(scores, key=lambda one: one[0]):
        if not found or better(mode, score, found[-1][1]):
            found.append((at, score))
    return found


def value_at(improvements: Sequence[tuple[float, float]], at: float) -> float:
    """Return the best score at a point; NaN before the first.

    Example:
        >>> value_at([(1, 0.5), (4, 0.8)], 3), value_at([(1, 0.5)], 0.5)
        (0.5, nan)
    """
    before = bisect.bisect_right([when for when, _ in improvements], at)
    return improvements[before - 1][1] if before else math.nan


def common_points(ends: Iterable[float], count: int = POINTS) -> list[float]:
    """Return the points at which sweeps are compared: equal parts of the shortest one.

    Args:
        ends: How far each has come, in any unit; those without a score are left out.
        count: How many points.

    Example:
        >>> common_points([80.0, 200.0])
        [20.0, 40.0, 60.0, 80.0]
        >>> common_points([])
        []
    """
    shortest = min(ends, default=0.0)
    return [shortest * n / count for n in range(1, count + 1)] if shortest > 0 else []


def driven_s(time: float, began: float, breaks: Iterable[tuple[float, float]]) -> float:
    """Return for how long a sweep had been driven by a time: without breaks between its sessions.

    Args:
        time: In seconds since the epoch.
        began: When the sweep began, likewise.
        breaks: From when until when nobody drove it, likewise.

    Example:
        >>> driven_s(100.0, 0.0, [(10.0, 60.0)]), driven_s(30.0, 0.0, [(10.0, 60.0)])
        (50.0, 10.0)
    """
    lost = sum(max(0.0, min(until, time) - since) for since, until in breaks)
    return max(0.0, time - began - lost)


# What differs ----------------------------------------------------------------------------------


def settings_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a session was run, by flat name: what its journal says, without its moment.

    Example:
        >>> settings_of({"time": 1.0, "ray": "2.60", "scheduler": {
        ...     "type": "ASHA", "settings": {"max_t": 9}, "rungs": [1, 3]}})
        {'ray': '2.60', 'scheduler': 'ASHA', 'scheduler/max_t': 9}
    """
    known = {name: value for name, value in session.items() if name not in _NO_SETTINGS}
    found = {}
    for name, value in flatten(known).items():
        if name.rsplit("/", 1)[-1] not in _NOISE and value not in (None, {}):
            found[name.replace("/settings/", "/").removesuffix("/type")] = value
    return found


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings in which sweeps differ: one value for each sweep, None if it has none.

    Example:
        >>> differing([{"max_t": 9, "seed": 1}, {"max_t": 27, "seed": 1}, {"seed": 1}])
        {'max_t': [9, 27, None]}
    """
    names = dict.fromkeys(name for one in settings for name in one)
    found = {}
    for name in names:
        values = [one.get(name) for one in settings]
        if not all(same(value, values[0]) for value in values):
            found[name] = values
    return found


def regions(
    sweeps: Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Mapping[str, Any]]]],
) -> dict[str, list[str]]:
    """Return where each sweep has searched: by hyperparameter, one text for each sweep.

    Those that had the same value in all trials of all sweeps are left out.

    Args:
        sweeps: Of each, the hyperparameters of its trials by flat name, and its recorded space, as
            for :func:`~tunekit.core.parameters.parameters_of`.

    Example:
        >>> wide = [{"lr": 0.01, "epochs": 9}, {"lr": 0.1, "epochs": 9}]
        >>> regions([(wide, {}), ([{"lr": 0.1, "epochs": 27}], {})])
        {'lr': ['0.01 to 0.1', '0.1'], 'epochs': ['9', '27']}
    """
    told = []
    for configs, space in sweeps:
        searched = parameters_of(configs, space) if len(configs) > 1 or space else {}
        own = {name: str(one) for name, one in searched.items()}
        for config in configs:
            for name, value in config.items():
                own.setdefault(name, setting(value))
        told.append((own, set(searched)))
    names = dict.fromkeys(name for own, _ in told for name in own)
    found = {}
    for name in names:
        values = [own.get(name, "") for own, _ in told]
        if len(set(values)) > 1 or any(name in searched for _, searched in told):
            found[name] = values
    return found
