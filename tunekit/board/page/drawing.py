"""Which charts a sweep has: each is drawn by one function, and independently of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunekit.board.page import charts, figures
from tunekit.core.ranking import Ranked
from tunekit.reading.sweep import Sweep

__all__ = [
    "CHARTS",
    "MOST_BARS",
    "MOST_CURVES",
    "MOST_MEANS",
    "MOST_POINTS",
    "OTHER_POINTS",
    "Findings",
    "draw",
]

#: So many trials' curves and bars, and configurations' means, a chart shows, the best first.
MOST_CURVES, MOST_BARS, MOST_MEANS = 100, 40, 20

#: A curve has no more points than that; those that are not in colour have so many together.
MOST_POINTS, OTHER_POINTS = 200, 5_000

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
    "decisions": _decisions,
}
