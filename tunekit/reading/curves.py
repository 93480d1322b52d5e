"""Learning curves: the points of a sweep's metrics, and the Vega-Lite chart that plots them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from tunekit.core.metrics import GENERATION, ITERATION, flatten
from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Timeline
from tunekit.core.values import finite_number

# Okabe and Ito's palette, which is readable with any colour vision.
_TOP = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
# The number of trials in colour.
_IN_COLOUR = len(_TOP)
_OTHERS = "#B9C0C7"
# The number of powers of ten marked on an axis.
_POWERS = 6
# The height of the plot area, in pixels.
_HEIGHT = 320
#: The number of points in a chart of curves above which only the trials in colour have dots.
MOST_DOTS = 2_000
#: The number of trials in a chart, best first.
MOST_CURVES = 100
#: The maximum number of points in a curve, and in all curves that are not in colour.
MOST_POINTS, OTHER_POINTS = 200, 5_000

Spec = dict[str, Any]
# Of each metric, by flat name.
Points = dict[str, list[dict[str, Any]]]


def chart_of(name: str, rows: Sequence[Mapping[str, Any]], height: int) -> Spec:
    """Return the specification of a chart with its data.

    Args:
        name: Its name in the file.
        rows: The data.
        height: The height of the plot area, in pixels.
    """
    text = resources.files("tunekit.reading").joinpath("charts.json").read_text("utf-8")
    specs = json.loads(text)
    own = {"height": height, "datasets": {"points": list(rows)}}
    return {**specs["shared"], **specs[name], **own}


def colours_of(palette: Mapping[str, str]) -> dict[str, list[str]]:
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
    chart = chart_of("curves", rows, _HEIGHT)
    y, colour, dots = chart["encoding"]["y"], chart["encoding"]["color"], chart["layer"][1]
    y["title"] = f"{metric} ({'validated' if validated else 'training'}{', log scale' * log})"
    y["scale"] |= {"type": "log" if log else "linear", "nice": not log}
    if log:
        y["axis"] = {"values": _powers(values), "format": "~e"}
    colour["scale"] = colours_of(palette)
    if not labels:
        colour["legend"] = None
    dots["mark"]["size"] = 38 if validated else 12
    if len(points) > MOST_DOTS:
        dots["transform"] = [{"filter": "datum.who != 'others'"}]
    return {**chart, "usermeta": {"curves": metric}}


def curves(timeline: Timeline, trial_id: str, names: Sequence[str]) -> Points:
    """Return a trial's values of metrics, reported or validated, by generation and iteration."""
    found: Points = {name: [] for name in names}
    for row in map(flatten, timeline.rows(trial_id)):
        place = {"generation": row[GENERATION], "iteration": row[ITERATION]}
        for name, points in found.items():
            value = finite_number(row.get(name))
            if value is not None:
                points.append({"trial": trial_id, **place, "value": value})
    return found


def thinned_curves(timeline: Timeline, ranked: Sequence[Ranked], names: Sequence[str]) -> Points:
    """Return the points of all curves by metric, reduced to what a chart can show."""
    found: Points = {name: [] for name in names}
    shown = ranked[:MOST_CURVES]
    fewer = max(MOST_POINTS // 10, OTHER_POINTS // max(1, len(shown)))
    for n, one in enumerate(shown):
        most = MOST_POINTS if n < _IN_COLOUR else min(MOST_POINTS, fewer)
        for name, points in curves(timeline, one.trial_id, names).items():
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
