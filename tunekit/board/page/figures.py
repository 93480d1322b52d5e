"""What the report shows, as plain data: each figure of it is one function here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.core.metric_names import FILLED_IN
from tunekit.core.metrics import flatten
from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Span
from tunekit.core.values import number
from tunekit.errors import MetricNotFoundError
from tunekit.reading.best import BestCheckpoint
from tunekit.reading.findings import OverSeeds, later_scores, names_in
from tunekit.reading.findings import over_seeds as configurations
from tunekit.reading.sweep import Sweep

__all__ = [
    "Verdict",
    "changed",
    "curves",
    "decided",
    "exploits",
    "later",
    "over_seeds",
    "rungs",
    "schedule",
    "thinned",
    "timeline",
    "training_metrics",
    "verdict",
]

# With more spans of time than that, those of validations are joined as those of training are.
_MOST_SPANS = 3_000
_OUTCOMES = {"STOP": "stopped", "PAUSE": "paused"}


@dataclass(frozen=True)
class Verdict:
    """Which trial is best.

    Attributes:
        best: What :meth:`tunekit.Sweep.best` returns.
        winner: Its trial.
        second: The next trial. None without one, and where something else than the sweep's own
            scores of single trials decides: a confirmation, or means over seeds.
        margin: By how much the winner is better.
    """

    best: BestCheckpoint
    winner: Ranked
    second: Ranked | None
    margin: float | None


def verdict(sweep: Sweep, ranked: Sequence[Ranked]) -> Verdict | None:
    """The best trial; None if there is no score yet."""
    if sweep.metric is None or sweep.mode is None:
        return None
    try:
        best = sweep.best()
    except MetricNotFoundError:
        return None
    winner = next(one for one in ranked if one.trial_id == best.trial_id)
    second = ranked[1] if len(ranked) > 1 and ranked[1].best_value is not None else None
    if second is None or best.confirmation is not None or best.configuration is not None:
        return Verdict(best, winner, None, None)
    assert second.best_value is not None
    return Verdict(best, winner, second, _finite(abs(best.score - second.best_value)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def over_seeds(sweep: Sweep) -> OverSeeds | None:
    """The configurations; None if no seed is known, or there is no score yet."""
    if not sweep.has_seeds or sweep.metric is None or sweep.mode is None:
        return None
    ranked = sweep.ranked_configurations()
    if ranked[0].estimate is None:
        return None
    return configurations(ranked)


def training_metrics(sweep: Sweep, most: int = 3) -> list[str]:
    """The first numbers that training reports, by flat name."""
    validated = set(sweep.timeline.names)
    found: dict[str, None] = {}
    for trial_id in sweep.timeline.trials:
        row = next(iter(sweep.timeline.rows(trial_id)), {})
        for name, value in flatten(row).items():
            is_number = number(value) is not None and not isinstance(value, bool)
            if is_number and name not in FILLED_IN and name not in validated:
                found[name] = None
    return list(found)[:most]


def curves(sweep: Sweep, trial_ids: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """The values of a metric, training's or validation's, by trial, generation and iteration.

    A value that was estimated has the ends of its interval, ``low`` and ``high``, too.
    """
    points = []
    for trial_id in trial_ids:
        for row in sweep.timeline.rows(trial_id):
            known = flatten(row)
            own, low, high = (number(known.get(f"{metric}{end}")) for end in ("", "_low", "_high"))
            if own is None or not math.isfinite(own):
                continue
            point = {
                "trial": trial_id,
                "generation": row["generation"],
                "iteration": row["training_iteration"],
                "value": own,
            }
            if low is not None and high is not None and low <= own <= high:
                point |= {"low": low, "high": high}
            points.append(point)
    return points


def thinned(points: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the points of one curve, but no more than so many: of each stretch the extreme ones.

    Example:
        >>> curve = [{"value": value} for value in (5, 1, 2, 9, 3, 4, 4, 4)]
        >>> [point["value"] for point in thinned(curve, 4)]
        [1, 9, 3, 4]
        >>> thinned(curve, 8) == curve
        True
    """
    if len(points) <= most:
        return list(points)
    kept: set[int] = set()
    parts = max(1, most // 2)
    for part in range(parts):
        stretch = range(len(points) * part // parts, len(points) * (part + 1) // parts)
        kept.add(min(stretch, key=lambda n: points[n]["value"]))
        kept.add(max(stretch, key=lambda n: points[n]["value"]))
    return [points[n] for n in sorted(kept)]


def timeline(sweep: Sweep, trial_ids: Sequence[str]) -> list[Span]:
    """Return what trials and validations did when.

    Spans of training that follow at once are joined; if there are very many spans, those of
    validations, too, as long as what is between them is too short to be seen.
    """
    wanted = set(trial_ids)
    began, last = sweep.timeline.first or 0.0, sweep.timeline.last or 0.0
    gap = (last - began) / 500
    found: list[Span] = []
    newest: dict[tuple[str, str], int] = {}
    spans = [span for span in sweep.timeline.spans() if span.trial_id in wanted]
    kinds = {"training"} if len(spans) <= _MOST_SPANS else {"training", "validating", "requested"}
    for span in spans:
        where = (span.trial_id, span.kind)
        before = newest.get(where)
        if span.kind in kinds and before is not None:
            former = found[before]
            alike = (span.generation, span.note) == (former.generation, former.note)
            if span.begin - former.end <= gap and alike:
                end = max(former.end, span.end)
                joined = (former.begin, end, span.generation, span.iteration, span.note)
                found[before] = Span(span.trial_id, span.kind, *joined)
                continue
        newest[where] = len(found)
        found.append(span)
    return found


def decided(sweep: Sweep) -> list[dict[str, Any]]:
    """The scheduler's decisions on scores: one point each, the iteration that was judged."""
    return [
        {
            "trial": row["trial_id"],
            "generation": row["generation"],
            "iteration": row["iteration"],
            "score": row["score"],
            "outcome": _OUTCOMES.get(row["decision"], "continued"),
            "late": row["late_iterations"],
        }
        for row in sweep.timeline.decisions
        if row["score"] is not None and math.isfinite(row["score"]) and row["on"] != "again"
    ]


def rungs(sweep: Sweep) -> list[dict[str, Any]]:
    """Return what became of each trial at each of ASHA's rungs: its first decision at it, or after
    it.

    One that was paused there and resumed went on. Empty for other schedulers, and if trials are in
    several brackets.
    """
    settings = sweep.newest_session.get("scheduler")
    milestones = list((settings or {}).get("rungs") or [])
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for point in decided(sweep):
        below = [milestone for milestone in milestones if milestone <= point["iteration"]]
        if not below:
            continue
        known = found.setdefault((point["trial"], below[-1]), {**point, "rung": below[-1]})
        if known["outcome"] == "paused":
            place = (known["trial"], known["generation"], known["iteration"])
            # One that was not resumed is stopped without another score.
            resumed = place in sweep.timeline.resumed
            known["outcome"] = "continued" if resumed else point["outcome"]
    return list(found.values())


def exploits(sweep: Sweep) -> list[dict[str, Any]]:
    """The exploits: from which trial to which, and at which iteration."""
    return [
        {
            "trial": exploit.trial_id,
            "generation": exploit.generation,
            "donor": exploit.donor_id,
            "iteration": exploit.iteration,
            "reached": exploit.reached,
            "score": None if exploit.score is None else _finite(exploit.score),
        }
        for exploit in sweep.timeline.ancestry
    ]


def schedule(sweep: Sweep, best: BestCheckpoint) -> list[dict[str, Any]]:
    """The hyperparameters that the best checkpoint was trained with, as they changed."""
    changes = sweep.timeline.ancestry.schedule(best.trial_id, best.generation)
    rows = {at: {"from iteration": at, **flatten(config)} for at, config in changes}
    return list(rows.values())


def changed(schedule: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hyperparameters that differ between the rows of a schedule.

    Example:
        >>> first = {"from iteration": 0, "lr": 0.1, "width": 8}
        >>> changed([first, {"from iteration": 4, "lr": 0.2, "width": 8}])
        ['lr']
    """
    names = dict.fromkeys(name for row in schedule for name in row if name != "from iteration")
    return [name for name in names if len({repr(row.get(name)) for row in schedule}) > 1]


def later(sweep: Sweep, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was validated later: for each name the function, metrics and checkpoints."""
    found = []
    for name, known in summary["later"].items():
        rows = later_scores(sweep.timeline, name, sweep.metric, sweep.mode)
        scored = [row for row in rows if row["status"] == "validated"]
        found.append(
            {
                "name": name,
                "function": known["function"],
                "names": names_in(scored),
                "rows": scored,
                "unscored": len(rows) - len(scored),
            }
        )
    return found
