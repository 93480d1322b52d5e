"""Which charts a sweep has: each is drawn by one function, and independently of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tunekit.board.page import charts, figures
from tunekit.board.page.importance import importance
from tunekit.core.ranking import Ranked
from tunekit.reading.sweep import Sweep

__all__ = [
    "CHARTS",
    "MOST_BARS",
    "MOST_CURVES",
    "MOST_LINES",
    "MOST_MEANS",
    "MOST_PAIRED",
    "MOST_POINTS",
    "MOST_SLICES",
    "OTHER_POINTS",
    "Findings",
    "draw",
]

#: So many trials' curves, bars and lines a chart shows, the best first.
MOST_CURVES, MOST_BARS, MOST_LINES, MOST_MEANS = 100, 40, 300, 20

#: A curve has no more points than that; those that are not in colour have so many together.
MOST_POINTS, OTHER_POINTS = 200, 5_000

#: So many hyperparameters have a slice, and so many can be paired, the most important first.
MOST_SLICES, MOST_PAIRED = 12, 8

Charts = dict[str, charts.Spec]


@dataclass(frozen=True)
class Findings:
    """What a sweep has come to, as far as more than one part of the report needs it.

    Attributes:
        sweep: The sweep.
        ranked: Its ranking.
    """

    sweep: Sweep
    ranked: list[Ranked]

    @classmethod
    def of(cls, sweep: Sweep) -> Findings:
        """Return those of a sweep."""
        return cls(sweep, sweep.ranking())

    @property
    def metric(self) -> str:
        """Return the name of the metric that trials are ranked by."""
        return self.sweep.metric or "score"

    @cached_property
    def names(self) -> dict[str, str]:
        """Return what trials are called."""
        return {one.trial_id: one.name for one in self.ranked}

    @cached_property
    def verdict(self) -> figures.Verdict | None:
        """Return which trial is best; None if there is no score."""
        return figures.verdict(self.sweep, self.ranked)

    @cached_property
    def seeds(self) -> figures.OverSeeds | None:
        """Return the configurations over their seeds; None if no seed is known."""
        return figures.over_seeds(self.sweep)

    @cached_property
    def axes(self) -> list[figures.Axis]:
        """Return the hyperparameters of trials with a finite score, as axes."""
        return figures.axes(
            [one for one in self.ranked if math.isfinite(one.best_value or 0.0)], self.sweep.space
        )

    @cached_property
    def score(self) -> figures.Axis | None:
        """Return the best scores of the trials, as an axis."""
        scores = {
            one.trial_id: one.best_value
            for one in self.ranked
            if one.best_value is not None and math.isfinite(one.best_value)
        }
        return figures.axis_of(self.metric, scores, log=False)

    def by_importance(self, shares: Mapping[str, float]) -> list[figures.Axis]:
        """Return the hyperparameters as axes, the most important first."""
        return sorted(self.axes, key=lambda axis: -shares.get(axis.name, 0.0))

    @cached_property
    def shown(self) -> list[str]:
        """Return the trials that have a curve."""
        return [one.trial_id for one in self.ranked[:MOST_CURVES]]


def draw(found: Findings) -> Charts:
    """Return all charts that there is something to show in, by name."""
    return {name: chart for one in CHARTS.values() for name, chart in one(found).items()}


def _validated(found: Findings) -> Charts:
    metric = found.sweep.metric
    if metric is None or found.verdict is None:
        return {}
    points = _curves(found, metric)
    return {"validated": charts.curves_chart(points, found.ranked, metric, validated=True)}


def _curves(found: Findings, metric: str) -> list[dict[str, Any]]:
    """Return the points of all curves, each with no more than a chart can show."""
    shown = []
    fewer = max(MOST_POINTS // 10, OTHER_POINTS // max(1, len(found.shown)))
    first = {one.trial_id for one in found.ranked[: charts.IN_COLOUR]}
    for trial_id in found.shown:
        by_generation: dict[int, list[dict[str, Any]]] = {}
        for point in figures.curves(found.sweep, [trial_id], metric):
            by_generation.setdefault(point["generation"], []).append(point)
        most = MOST_POINTS if trial_id in first else min(MOST_POINTS, fewer)
        shown += [one for own in by_generation.values() for one in figures.thinned(own, most)]
    return shown


def _training(place: int) -> Callable[[Findings], Charts]:
    """Return what draws one of the first metrics that training reports."""

    def drawn(found: Findings) -> Charts:
        for name in figures.training_metrics(found.sweep)[place : place + 1]:
            points = _curves(found, name)
            if points:
                chart = charts.curves_chart(points, found.ranked, name, validated=False)
                return {f"training{place}": chart}
        return {}

    return drawn


def _seeds(found: Findings) -> Charts:
    sweep, seeds = found.sweep, found.seeds
    if seeds is None or sweep.metric is None:
        return {}
    points, means = figures.seed_points(seeds, str(sweep.seed), MOST_MEANS)
    return {"seeds": charts.seeds_chart(points, means, sweep.metric)} if means else {}


def _timeline(found: Findings) -> Charts:
    sweep = found.sweep
    spans = figures.timeline(sweep, [one.trial_id for one in found.ranked[:MOST_BARS]])
    if not spans:
        return {}
    return {"timeline": charts.timeline_chart(spans, found.names, sweep.timeline.first or 0.0)}


def _hyperparameters(found: Findings) -> Charts:
    sweep, axes, score = found.sweep, found.axes, found.score
    if not axes or score is None or sweep.metric is None or sweep.mode is None:
        return {}
    kept = {one.trial_id for one in found.ranked[:MOST_LINES]}
    positions = {trial: at for trial, at in score.positions.items() if trial in kept}
    few = replace(score, positions=positions)
    drawn = {"parallel": charts.parallel_chart(axes, few, sweep.metric, sweep.mode)}
    shares = importance(axes, score, sweep.mode)
    if shares:
        drawn["importance"] = charts.importance_chart(shares)
    first = found.by_importance(shares)
    winner = None if found.verdict is None else found.verdict.winner.trial_id
    for n, axis in enumerate(first[:MOST_SLICES]):
        drawn[f"slice{n}"] = charts.slice_chart(axis, score, sweep.metric, winner)
    if len(first) > 1:
        paired = first[:MOST_PAIRED]
        drawn["contour"] = charts.contour_chart(paired, score, sweep.metric, sweep.mode)
    return drawn


def _decisions(found: Findings) -> Charts:
    sweep = found.sweep
    exploits = figures.exploits(sweep)
    if exploits:
        line, branches = _line_of(sweep, found.verdict), figures.branches(sweep)
        return {"family": charts.family_chart(branches, exploits, found.names, line)}
    rungs, decided = figures.rungs(sweep), figures.decided(sweep)
    judged = sweep.judged or found.metric
    if rungs:
        return {"rungs": charts.rungs_chart(rungs, judged)}
    if any(point["outcome"] != "went on" for point in decided):
        return {"decisions": charts.decisions_chart(decided, judged)}
    return {}


def _line_of(sweep: Sweep, verdict: figures.Verdict | None) -> set[tuple[str, int]]:
    """The generations that led to the best checkpoint, with its own."""
    if verdict is None or verdict.winner.best is None:
        return set()
    trial_id, generation = verdict.winner.trial_id, verdict.winner.best.generation
    if verdict.confirmed is not None:
        generation = verdict.confirmed.winner.generation
    line = {(trial_id, generation)}
    for exploit in sweep.ancestry.line(trial_id, generation):
        line |= {
            (exploit.trial_id, exploit.generation),
            (exploit.donor_id, exploit.donor_generation),
        }
    return line


#: What draws charts: each returns those that there is something to show in, by name.
CHARTS: Mapping[str, Callable[[Findings], Charts]] = {
    "validated": _validated,
    **{f"training{place}": _training(place) for place in range(3)},
    "seeds": _seeds,
    "timeline": _timeline,
    "hyperparameters": _hyperparameters,
    "decisions": _decisions,
}
