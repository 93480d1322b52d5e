"""The report's charts: Vega-Lite specifications from ``charts.json``, with the data of a sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from tunekit.core.metrics import GENERATION, ITERATION, flatten, is_reserved
from tunekit.core.ranking import Ranked
from tunekit.core.summaries import Span
from tunekit.core.values import finite_number
from tunekit.reading.sweep import Sweep

# Okabe and Ito's palette, which is readable with any colour vision.
_TOP = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
# The number of trials in colour.
_IN_COLOUR = len(_TOP)
_OTHERS = "#B9C0C7"
_SPANS = {
    "training": "#0072B2",
    "waiting for a score": "#E69F00",
    "validating": "#009E73",
    "validating, failed": "#D55E00",
    "validation requested": "#CFD5DA",
}
# The number of powers of ten marked on an axis.
_POWERS = 6
# The height of a chart, and of a row in one, in pixels; rows are lower if there are many.
_HEIGHT, _ROW, _LOW_ROW, _MANY_ROWS = 320, 26, 20, 20
#: The number of points in a chart of curves above which only the trials in colour have dots.
MOST_DOTS = 2_000

Spec = dict[str, Any]


def _chart(name: str, rows: Sequence[Mapping[str, Any]], height: int) -> Spec:
    """Return the specification of a chart with its data.

    Args:
        name: Its name in the file.
        rows: The data.
        height: The height of the plot area, in pixels.
    """
    text = resources.files("tunekit.board").joinpath("charts.json").read_text("utf-8")
    specs = json.loads(text)
    own = {"height": height, "datasets": {"points": list(rows)}}
    return {**specs["shared"], **specs[name], **own}


def _colours(palette: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the colour scale of a palette, by the values that the colours stand for."""
    return {"domain": list(palette), "range": list(palette.values())}


def _powers(values: Sequence[float]) -> list[float]:
    """Return the powers of ten to mark on a logarithmic axis.

    By default, Vega makes room for many labels, hides most of them, and cuts off the legend.

    Example:
        >>> _powers([1e-5, 3e-3, 2e-4, 7e-2])
        [1e-05, 0.0001, 0.001, 0.01]
    """
    first = math.ceil(math.log10(min(values)) - 1e-9)
    last = math.floor(math.log10(max(values)) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / _POWERS))
    return [float(f"1e{n}") for n in range(first, last + 1, step)]


def curves_chart(
    points: Sequence[Mapping[str, Any]], ranked: Sequence[Ranked], metric: str, *, validated: bool
) -> Spec:
    """Plot a metric by training iteration: a line for each trial, the five best in colour.

    The axes have the domains of the signals ``zoom_x`` and ``zoom_y``, unless these are null.

    Args:
        points: As returned by :func:`curves`.
        ranked: The ranking.
        metric: The name of the metric.
        validated: Whether it is a validated metric, whose points are also shown.
    """
    labels = {one.trial_id: f"{one.rank}. {one.name}" for one in ranked[: len(_TOP)] if one.rank}
    names = {one.trial_id: one.name for one in ranked}
    place = {one.trial_id: n for n, one in enumerate(ranked)}
    rows = [
        {
            **point,
            "trial": names[point["trial"]],
            "who": labels.get(point["trial"], "others"),
            "line": f"{point['trial']} {point['generation']}",
        }
        for point in sorted(points, key=lambda p: (-place[p["trial"]], p["generation"]))
    ]
    palette = dict(zip(labels.values(), _TOP, strict=False))
    if len(ranked) > len(labels):
        palette["others"] = _OTHERS if labels else _TOP[0]
    values = [point["value"] for point in points]
    log = not validated and min(values) > 0 and max(values) / min(values) > 100
    chart = _chart("curves", rows, _HEIGHT)
    y, colour, dots = chart["encoding"]["y"], chart["encoding"]["color"], chart["layer"][1]
    y["title"] = f"{metric} ({'validated' if validated else 'training'}{', log scale' * log})"
    y["scale"] |= {"type": "log" if log else "linear", "nice": not log}
    if log:
        y["axis"] = {"values": _powers(values), "format": "~e"}
    colour["scale"] = _colours(palette)
    if not labels:
        colour["legend"] = None
    dots["mark"]["size"] = 38 if validated else 12
    if len(points) > MOST_DOTS:
        dots["transform"] = [{"filter": "datum.who != 'others'"}]
    return {**chart, "usermeta": {"curves": metric}}


def unit_of(longest_s: float) -> tuple[str, int]:
    """Return the unit for durations up to ``longest_s``, and its length in seconds.

    Example:
        >>> unit_of(100.0), unit_of(1000.0), unit_of(1e5)
        (('seconds', 1), ('minutes', 60), ('hours', 3600))
    """
    units = (("hours", 3600), ("minutes", 60), ("seconds", 1))
    return next((unit, s) for unit, s in units if longest_s >= 3 * s or s == 1)


def timeline_chart(spans: Sequence[Span], names: Mapping[str, str], began: float) -> Spec:
    """Plot the training and the validations of each trial over time."""
    long, seconds = unit_of(max(span.end for span in spans) - began)
    rows = [
        {
            "trial": names[span.trial_id],
            "lane": "trial" if span.kind in ("training", "waiting") else "validation",
            "kind": _kind(span),
            "begin": (span.begin - began) / seconds,
            "end": (span.end - began) / seconds,
            "took": f"{span.end - span.begin:.2f} s",
            "iteration": span.iteration,
        }
        for span in spans
    ]
    # Later marks are drawn on top: several validations of a trial can be requested at once.
    rows.sort(key=lambda row: row["kind"] != "validation requested")
    order = [names[trial] for trial in dict.fromkeys(span.trial_id for span in spans)]
    height = max(2, len(order)) * (_ROW if len(order) <= _MANY_ROWS else _LOW_ROW)
    chart, kinds = _chart("timeline", rows, height), {row["kind"] for row in rows}
    chart["encoding"]["x"]["title"] = f"{long} since the sweep began"
    chart["encoding"]["y"]["sort"] = order
    palette = {kind: colour for kind, colour in _SPANS.items() if kind in kinds}
    chart["encoding"]["color"]["scale"] = _colours(palette)
    return chart


def _kind(span: Span) -> str:
    if span.kind == "waiting":
        return "waiting for a score"
    if span.kind == "requested":
        return "validation requested"
    return "validating, failed" if span.note in ("failed", "timed_out") else span.kind


# The charts of a sweep --------------------------------------------------------------------------

#: The number of trials in a chart, best first, and the number of training metrics with a chart.
MOST_CURVES, MOST_BARS, MOST_TRAINING = 100, 40, 3

#: The maximum number of points in a curve, and in all curves that are not in colour.
MOST_POINTS, OTHER_POINTS = 200, 5_000

# The number of spans above which spans of validations are joined, as those of training are.
_MOST_SPANS = 3_000


def draw_charts(sweep: Sweep) -> dict[str, Spec]:
    """Return all charts that are not empty, by name."""
    ranked, metric, drawn = sweep.ranking(), sweep.metric, {}
    training = _training_metrics(sweep)[:MOST_TRAINING]
    validated = [metric] if metric and ranked and ranked[0].best is not None else []
    points = _thinned_curves(sweep, [*validated, *training])
    for name in validated:
        drawn["validated"] = curves_chart(points[name], ranked, name, validated=True)
    for n, name in enumerate(training):
        if points[name]:
            drawn[f"training{n}"] = curves_chart(points[name], ranked, name, validated=False)
    spans = spans_of(sweep, {one.trial_id for one in ranked[:MOST_BARS]})
    if spans:
        names = {one.trial_id: one.name for one in ranked}
        drawn["timeline"] = timeline_chart(spans, names, sweep.timeline.first or 0.0)
    return drawn


def _training_metrics(sweep: Sweep) -> list[str]:
    """Return the numeric metrics in the first reports of trials, by flat name."""
    validated = set(sweep.timeline.names)
    found: dict[str, None] = {}
    for trial_id in sweep.timeline.trials:
        row = next(iter(sweep.timeline.rows(trial_id)), {})
        for name, value in flatten(row).items():
            is_number = finite_number(value) is not None and not isinstance(value, bool)
            if is_number and not is_reserved(name) and name not in validated:
                found[name] = None
    return list(found)


def curves(sweep: Sweep, trial_id: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return a trial's values of metrics, reported or validated, by generation and iteration."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for row in map(flatten, sweep.timeline.rows(trial_id)):
        place = {"generation": row[GENERATION], "iteration": row[ITERATION]}
        for name, points in found.items():
            value = finite_number(row.get(name))
            if value is not None:
                points.append({"trial": trial_id, **place, "value": value})
    return found


def _thinned_curves(sweep: Sweep, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the points of all curves by metric, reduced to what a chart can show."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    shown = sweep.ranking()[:MOST_CURVES]
    fewer = max(MOST_POINTS // 10, OTHER_POINTS // max(1, len(shown)))
    for n, one in enumerate(shown):
        most = MOST_POINTS if n < _IN_COLOUR else min(MOST_POINTS, fewer)
        for name, points in curves(sweep, one.trial_id, names).items():
            for _, part in groupby(points, key=lambda point: point["generation"]):
                found[name] += thinned(list(part), most)
    return found


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


def spans_of(sweep: Sweep, trial_ids: Collection[str]) -> list[Span]:
    """Return the spans of training and validation of the given trials.

    Consecutive spans of training are joined; if there are very many spans, so are spans of
    validations with gaps too short to be seen.
    """
    began, last = sweep.timeline.first or 0.0, sweep.timeline.last or 0.0
    gap = (last - began) / 500
    found: list[Span] = []
    newest: dict[tuple[str, str], int] = {}
    spans = [span for span in sweep.timeline.spans() if span.trial_id in trial_ids]
    kinds = {"training"} if len(spans) <= _MOST_SPANS else {"training", "validating", "requested"}
    for span in spans:
        where = (span.trial_id, span.kind)
        before = newest.get(where)
        if span.kind in kinds and before is not None:
            former = found[before]
            same = (span.generation, span.note) == (former.generation, former.note)
            if span.begin - former.end <= gap and same:
                end = max(former.end, span.end)
                joined = (former.begin, end, span.generation, span.iteration, span.note)
                found[before] = Span(span.trial_id, span.kind, *joined)
                continue
        newest[where] = len(found)
        found.append(span)
    return found
