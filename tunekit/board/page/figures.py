"""The data of the report's figures: one function for each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunekit._ray.storage import joined
from tunekit.core.metric_names import FILLED_IN
from tunekit.core.metrics import flatten, plain
from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Span
from tunekit.core.values import number
from tunekit.errors import MetricNotFoundError
from tunekit.reading.findings import BestCheckpoint
from tunekit.reading.sweep import Sweep

# The number of spans above which spans of validations are joined, as those of training are.
_MOST_SPANS = 3_000
# The number of rows of validations in all panels together, and the least and the most in each.
_ROWS, _FEWEST, _MOST = 5_000, 5, 200


@dataclass(frozen=True)
class Findings:
    """The results of a sweep that more than one part of the report needs.

    Attributes:
        sweep: The sweep.
    """

    sweep: Sweep

    @cached_property
    def ranked(self) -> list[Ranked]:
        """Return its trials, best first."""
        return self.sweep.ranking()

    @property
    def metric(self) -> str:
        """Return the name of the metric that trials are ranked by."""
        return self.sweep.metric or "score"

    @cached_property
    def names(self) -> dict[str, str]:
        """Return each trial's short name, by ID."""
        return {one.trial_id: one.name for one in self.ranked}

    @cached_property
    def best(self) -> BestCheckpoint | None:
        """Return the best checkpoint, of the first trial in the ranking; None without a score."""
        if self.sweep.metric is None or self.sweep.mode is None:
            return None
        with suppress(MetricNotFoundError):
            return self.sweep.best()
        return None


def training_metrics(sweep: Sweep) -> list[str]:
    """Return the first numeric metrics that training reports, by flat name."""
    validated = set(sweep.timeline.names)
    found: dict[str, None] = {}
    for trial_id in sweep.timeline.trials:
        row = next(iter(sweep.timeline.rows(trial_id)), {})
        for name, value in flatten(row).items():
            is_number = number(value) is not None and not isinstance(value, bool)
            if is_number and name not in FILLED_IN and name not in validated:
                found[name] = None
    return list(found)


def curves(sweep: Sweep, trial_ids: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """Return the values of a metric, reported or validated, by trial, generation and iteration."""
    points = []
    for trial_id in trial_ids:
        for row in sweep.timeline.rows(trial_id):
            own = number(flatten(row).get(metric))
            if own is None:
                continue
            point = {
                "trial": trial_id,
                "generation": row["generation"],
                "iteration": row["training_iteration"],
                "value": own,
            }
            points.append(point)
    return points


def thinned(points: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` points of a curve: the extremes of each stretch.

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
    """Return the spans of training and validation of the given trials.

    Consecutive spans of training are joined; if there are very many spans, spans of validations are
    joined, too, where the gap between them is too short to be seen.
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


# A trial in full --------------------------------------------------------------------------------


def panels(
    found: Findings, errors: Mapping[str, str], trial_ids: Iterable[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the details of trials: their configurations, checkpoints and errors.

    Args:
        found: The results of the sweep.
        errors: The failures that Tune recorded, by trial.
        trial_ids: The trials to include; by default all.
    """
    ranked = {one.trial_id: one for one in found.ranked}
    wanted = list(ranked) if trial_ids is None else [one for one in trial_ids if one in ranked]
    rows: dict[str, list[Mapping[str, Any]]] = {trial_id: [] for trial_id in wanted}
    for row in found.sweep.timeline.validations:
        if row["trial_id"] in rows:
            rows[row["trial_id"]].append(row)
    most = max(_FEWEST, min(_MOST, _ROWS // max(1, len(wanted))))
    return {
        trial_id: _panel(found, ranked[trial_id], rows[trial_id], errors.get(trial_id), most)
        for trial_id in wanted
    }


def _panel(
    found: Findings, one: Ranked, rows: Sequence[Mapping[str, Any]], error: str | None, most: int
) -> dict[str, Any]:
    sweep, trial = found.sweep, one.trial
    best = None if one.best is None else (*one.best.place, one.best.run)
    scores = sweep.timeline.scores(one.trial_id)
    values = {(*scored.place, scored.run): scored.value(found.metric) for scored in scores}
    newest = sorted(rows, key=lambda row: (row["generation"], row["iteration"], row["run"]))[::-1]
    shown = []
    for n, row in enumerate(newest):
        place = (row["generation"], row["iteration"], row["run"])
        if n < most or place == best:
            own = {
                "score": values.get(place),
                "is_best": place == best,
                "loads": _loads(sweep, row["checkpoint"]),
            }
            shown.append({**row, **own})
    return {
        "one": one,
        "status": one.trial.shown_status,
        "generation": 0 if one.best is None else one.best.generation,
        "generations": any(row["generation"] for row in shown),
        "config_json": json.dumps(plain(one.config), default=str),
        "rows": shown,
        "left_out": len(newest) - len(shown),
        "loads": None if one.best is None else _loads(sweep, one.best.checkpoint),
        "folder": _path(sweep, f"{sweep.path or '.'}/{trial.folder}"),
        "error": error,
    }


def _path(sweep: Sweep, path: str) -> str:
    """Return the path or URI by which another process finds a file of the sweep."""
    if sweep.source is not None and path.startswith(f"{sweep.path}/"):
        return joined(sweep.source, path[len(sweep.path) + 1 :])
    return path


def _loads(sweep: Sweep, path: str) -> str:
    """Return the Python code that loads a checkpoint."""
    own = "" if sweep.source is not None else ", filesystem"
    return f"ray.tune.Checkpoint({_path(sweep, path)!r}{own})"
