"""The ranking of a sweep's trials, each by its best validated checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunekit.core.metrics import flatten
from tunekit.core.pareto import Point, pareto_front
from tunekit.core.summaries import ScoredCheckpoint, TrialSummary
from tunekit.core.timeline import Timeline


@dataclass(frozen=True)
class Ranked:
    """A trial's place in the ranking of a sweep.

    Attributes:
        rank: 1 for the best; None without a score.
        trial_id: The trial.
        name: Its short name, for charts.
        trial: Its summary.
        best: Its best validated checkpoint; None if it has none. ``best_value``: its score.
        last: Its newest validated checkpoint; ``last_value``: its score.
        config: Its hyperparameters, as of its best checkpoint.
    """

    rank: int | None
    trial_id: str
    name: str
    trial: TrialSummary
    best: ScoredCheckpoint | None
    best_value: float | None
    last: ScoredCheckpoint | None
    last_value: float | None
    config: Mapping[str, Any]

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters by flat name."""
        return flatten(self.config)


def ranking_of(timeline: Timeline, metric: str | None, mode: str | None) -> list[Ranked]:
    """Return the trials ordered by their best validated score; those without one come last.

    Args:
        timeline: The sweep's timeline.
        metric: The validated metric to rank by, by flat name; None: trials are not ranked.
        mode: ``"min"`` or ``"max"``; None: trials are not ranked.

    Example:
        >>> from tunekit.core.events import TrialAdded
        >>> timeline = Timeline([TrialAdded(time=0.0, trial_id="a", config={"lr": 0.1})])
        >>> [one] = ranking_of(timeline, "loss", "min")
        >>> one.rank, one.trial_id, one.best, one.config
        (None, 'a', None, {'lr': 0.1})
    """
    names = short_names(list(timeline.trials))
    best = {one: timeline.score(one, metric, mode) if mode else None for one in timeline.trials}

    def sort_key(trial_id: str) -> tuple[float, float]:
        found = best[trial_id]
        return (math.inf, math.inf) if found is None else found.sort_key(str(metric), str(mode))

    ranked = []
    for place, trial_id in enumerate(sorted(timeline.trials, key=sort_key), start=1):
        own, last = best[trial_id], timeline.score(trial_id, metric, None)
        ranked.append(
            Ranked(
                rank=None if own is None else place,
                trial_id=trial_id,
                name=names[trial_id],
                trial=timeline.trials[trial_id],
                best=own,
                best_value=None if own is None else own.value(str(metric)),
                last=last,
                last_value=None if last is None else last.value(str(metric)),
                config=timeline.config_of(trial_id, None if own is None else own.generation),
            )
        )
    return ranked


def short_names(trial_ids: Sequence[str]) -> dict[str, str]:
    """Return short names of trials for charts: the parts of their IDs that differ.

    Example:
        >>> short_names(["4f1c_00000", "4f1c_00001"])
        {'4f1c_00000': '00000', '4f1c_00001': '00001'}
        >>> short_names(["a_0", "b_0"])
        {'a_0': 'a_0', 'b_0': 'b_0'}
    """
    ends = {trial_id: trial_id.rsplit("_", 1)[-1] for trial_id in trial_ids}
    distinct = len(set(ends.values())) == len(ends)
    return ends if distinct else {trial_id: trial_id for trial_id in trial_ids}


def front_of(
    timeline: Timeline, objectives: Mapping[str, str]
) -> list[tuple[str, ScoredCheckpoint]]:
    """Return the trials and checkpoints of the Pareto front, the best by the first metric first.

    These are the feasible checkpoints (or, if there are none, those with the least violation) that
    no other of them dominates. Of checkpoints with equal values, the first counts.

    Args:
        timeline: The sweep's timeline.
        objectives: The modes of the validated metrics, by flat name.

    Example:
        >>> front_of(Timeline(()), {"accuracy": "max", "latency_ms": "min"})
        []
    """
    scores: list[tuple[Point, tuple[str, ScoredCheckpoint]]] = []
    for trial_id in timeline.trials:
        for scored in timeline.scores(trial_id):
            values = [scored.value(name) for name in objectives]
            signs = [1.0 if mode == "max" else -1.0 for mode in objectives.values()]
            point = tuple(s * v for s, v in zip(signs, values, strict=True) if v is not None)
            if len(point) == len(objectives):
                scores.append((point, (trial_id, scored)))
    least = min((scored.violation for _, (_, scored) in scores), default=0.0)
    # Backwards, so that the first one of equal points stays.
    found = {point: one for point, one in reversed(scores) if one[1].violation == least}
    points = list(found)
    best = sorted((points[place] for place in pareto_front(points)), reverse=True)
    return [found[point] for point in best]
