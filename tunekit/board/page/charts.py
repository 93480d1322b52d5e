"""The report's charts, as Vega-Lite specifications; each is drawn independently of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunekit.board.page import figures
from tunekit.board.page.figures import Findings
from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Span
from tunekit.extras import extra

with extra("report"):
    import altair as alt


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
# The height of a chart, and of a row in one, in pixels; many rows are lower.
_HEIGHT, _ROW, _LOW_ROW, _MANY_ROWS = 320, 26, 20, 20
_TEXT = {"labelFontSize": 12, "titleFontWeight": "normal"}
_CONFIG = {
    "font": "system-ui, sans-serif",
    "background": "white",
    "aria": False,
    "view": {"stroke": None},
    "axis": {**_TEXT, "titleFontSize": 13, "titleColor": "#333", "labelLimit": 160}
    | {"gridColor": "#ECEFF1", "domainColor": "#90989F"},
    "legend": {**_TEXT, "titleFontSize": 12, "labelLimit": 260}
    | {"orient": "top", "direction": "horizontal", "offset": 12},
}

#: The number of points in a chart of curves above which only the trials in colour have dots.
MOST_DOTS = 2_000

Spec = dict[str, Any]


def _base() -> alt.Chart:
    """Return a chart of the rows that :func:`_finished` adds."""
    return alt.Chart(alt.NamedData("points"))


def _finished(chart: Any, rows: Sequence[Mapping[str, Any]], height: int = _HEIGHT) -> Spec:
    """Return the specification of a chart with its data.

    The data are added last because Altair checks each value inside a chart.

    Args:
        chart: The chart.
        rows: The data.
        height: The height of the plot area, in pixels.
    """
    size = alt.AutoSizeParams(type="fit-x", contains="padding")
    spec: Spec = chart.properties(width="container", height=height, autosize=size).to_dict()
    return {**spec, "config": _CONFIG, "datasets": {"points": list(rows)}}


def _colours(field: str, title: str | None, palette: Mapping[str, str], **more: Any) -> alt.Color:
    """Return the colour of marks by the value of a field; ``palette`` has the values to show."""
    scale = alt.Scale(domain=list(palette), range=list(palette.values()))
    return alt.Color(f"{field}:N", title=title, scale=scale, **more)


def _found(
    field: str, palette: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the part of a palette whose values occur in a field of the rows."""
    values = {row[field] for row in rows}
    return {value: colour for value, colour in palette.items() if value in values}


def _rows_high(count: int) -> int:
    """Return the height of a chart with ``count`` rows, in pixels."""
    return max(2, count) * (_ROW if count <= _MANY_ROWS else _LOW_ROW)


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


def _iterations(**more: Any) -> alt.X:
    axis = alt.Axis(tickMinStep=1)
    scale = alt.Scale(nice=False, zero=False, padding=8, **more)
    return alt.X("iteration:Q", title="training iteration", axis=axis, scale=scale)


def curves_chart(
    points: Sequence[Mapping[str, Any]], ranked: Sequence[Ranked], metric: str, *, validated: bool
) -> Spec:
    """Plot a metric by training iteration: a line for each trial, the five best in colour.

    The axes have the domains of the signals
    ``zoom_x`` and ``zoom_y``, unless these are null.

    Args:
        points: As returned by :func:`~tunekit.board.page.figures.curves`.
        ranked: The ranking.
        metric: The name of the metric.
        validated: Whether it is a validated metric, whose points are shown, too.
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
    title = f"{metric} ({'validated' if validated else 'training'}{', log scale' if log else ''})"
    scale = alt.Scale(
        zero=False,
        type="log" if log else "linear",
        nice=not log,
        domainRaw=alt.ExprRef("zoom_y"),
    )
    x = _iterations(domainRaw=alt.ExprRef("zoom_x"))
    axis = alt.Axis(values=_powers(values), format="~e") if log else alt.Axis()
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis)
    columns = alt.ExprRef("width > 640 ? 6 : 3")
    legend = alt.Legend(columns=columns, symbolStrokeWidth=3, symbolOpacity=1) if labels else None
    colour = _colours("who", "trial", palette, legend=legend)
    base = _base().encode(x=x, y=y, color=colour, detail="line:N")
    few, best = len(points) <= MOST_DOTS, "datum.who != 'others'"
    width = alt.condition("datum.who == 'others'", alt.value(1.2), alt.value(2.2))
    lines = base.mark_line(interpolate="linear", clip=True).encode(strokeWidth=width)
    dotted = base if few else base.transform_filter(best)
    dots = dotted.mark_circle(size=38 if validated else 12, opacity=1, clip=True)
    signals = [{"name": name, "value": None} for name in ("zoom_x", "zoom_y")]
    chart = _finished(alt.layer(lines, dots), rows)
    return {**chart, "params": signals, "usermeta": {"curves": metric}}


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
    legend = alt.Legend(columns=alt.ExprRef("width > 640 ? 5 : 2"))
    chart = (
        _base()
        .mark_bar()
        .encode(
            x=alt.X("begin:Q", title=f"{long} since the sweep began", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y("trial:N", sort=order, title="trial"),
            yOffset=alt.YOffset("lane:N", sort=["trial", "validation"]),
            color=_colours("kind", None, _found("kind", _SPANS, rows), legend=legend),
            tooltip=["trial:N", "kind:N", "iteration:Q", "took:N"],
        )
    )
    return _finished(chart, rows, _rows_high(len(order)))


def _kind(span: Span) -> str:
    if span.kind == "waiting":
        return "waiting for a score"
    if span.kind == "requested":
        return "validation requested"
    return "validating, failed" if span.note in ("failed", "timed_out") else span.kind


# The charts of a sweep --------------------------------------------------------------------------

#: The number of trials that a chart shows, best first.
MOST_CURVES, MOST_BARS = 100, 40

#: The maximum number of points in a curve, and in all curves that are not in colour.
MOST_POINTS, OTHER_POINTS = 200, 5_000


def draw(found: Findings) -> dict[str, Spec]:
    """Return all charts that are not empty, by name."""
    drawn = {name: one(found) for name, one in CHARTS.items()}
    return {name: spec for name, spec in drawn.items() if spec is not None}


def _validated(found: Findings) -> Spec | None:
    metric = found.sweep.metric
    if metric is None or found.best is None:
        return None
    return curves_chart(_curves(found, metric), found.ranked, metric, validated=True)


def _curves(found: Findings, metric: str) -> list[dict[str, Any]]:
    """Return the points of all curves, thinned to what a chart can show."""
    points = []
    shown = [one.trial_id for one in found.ranked[:MOST_CURVES]]
    fewer = max(MOST_POINTS // 10, OTHER_POINTS // max(1, len(shown)))
    for n, trial_id in enumerate(shown):
        by_generation: dict[int, list[dict[str, Any]]] = {}
        for point in figures.curves(found.sweep, [trial_id], metric):
            by_generation.setdefault(point["generation"], []).append(point)
        most = MOST_POINTS if n < _IN_COLOUR else min(MOST_POINTS, fewer)
        points += [one for own in by_generation.values() for one in figures.thinned(own, most)]
    return points


def _training(place: int) -> Callable[[Findings], Spec | None]:
    """Return the function that draws one of the first metrics that training reports."""

    def drawn(found: Findings) -> Spec | None:
        for name in figures.training_metrics(found.sweep)[place : place + 1]:
            points = _curves(found, name)
            if points:
                return curves_chart(points, found.ranked, name, validated=False)
        return None

    return drawn


def _timeline(found: Findings) -> Spec | None:
    sweep = found.sweep
    spans = figures.timeline(sweep, [one.trial_id for one in found.ranked[:MOST_BARS]])
    if not spans:
        return None
    return timeline_chart(spans, found.names, sweep.timeline.first or 0.0)


#: The functions that draw the charts, by name: each returns None if the chart is empty.
CHARTS: Mapping[str, Callable[[Findings], Spec | None]] = {
    "validated": _validated,
    **{f"training{place}": _training(place) for place in range(3)},
    "timeline": _timeline,
}
