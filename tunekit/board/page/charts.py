"""The report's charts, as Vega-Lite specifications."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tunekit.board.page.figures import Axis
from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Span
from tunekit.extras import extra

with extra("report"):
    import altair as alt

__all__ = [
    "AXIS",
    "IN_COLOUR",
    "MOST_DOTS",
    "bests_chart",
    "contour_chart",
    "curves_chart",
    "decisions_chart",
    "family_chart",
    "importance_chart",
    "parallel_chart",
    "progress_chart",
    "rungs_chart",
    "seeds_chart",
    "slice_chart",
    "timeline_chart",
    "unit_of",
]

# Okabe and Ito's palette, which people with any colour vision can tell apart.
_TOP = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
#: So many trials are in colour.
IN_COLOUR = len(_TOP)
_OTHERS = "#B9C0C7"
_SPANS = {
    "training": "#0072B2",
    "waiting for a score": "#E69F00",
    "validating": "#009E73",
    "validating, failed": "#D55E00",
    "validation queued": "#CFD5DA",
}
# So many values of an axis are marked one by one, and so many powers of ten.
_FEW, _POWERS = 5, 6
_DECISIONS = {"went on": "#0072B2", "paused": "#E69F00", "stopped": "#D55E00"}
_ENDINGS = {"complete": "#0072B2", "stopped": "#D55E00", "unfinished": "#E69F00"}
# How high a chart is, and a row of one, in pixels: of many rows, each is lower.
_HEIGHT, _ROW, _LOW_ROW, _MANY_ROWS = 320, 26, 20, 20
#: So wide is an axis of parallel coordinates at least, in pixels.
AXIS = 112
# Names of axes are broken into lines of so many characters, and those of choices, which are next to
# each other.
_LINE, _CHOICE_LINE, _CHOICE_LINES = 15, 11, 3
_LINE_HIGH = 14
# Around a chart with a scale of colours, for half a number at its end, in pixels.
_ROOM = {"left": 16, "top": 5, "right": 5, "bottom": 5}
# How numbers are written on a logarithmic axis, and on one whose few values are marked.
_POWER = (
    "datum.value && (abs(datum.value) < 0.001 || abs(datum.value) >= 1e6)"
    " ? format(datum.value, '~e') : format(datum.value, '~')"
)

#: With more points than that in a chart of curves, only the trials in colour have dots.
MOST_DOTS = 2_000

Spec = dict[str, Any]


def _finished(
    chart: Any,
    height: int = _HEIGHT,
    signals: Mapping[str, Any] | None = None,
    **datasets: Sequence[Mapping[str, Any]],
) -> Spec:
    """The specification of a chart, with the data that it names.

    Altair would check each value of data that a chart holds itself.

    Args:
        chart: The chart.
        height: Of what is inside its axes, in pixels.
        signals: What the page may change of it: names and first values.
        datasets: The data.
    """
    sized = chart.properties(
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    styled = (
        sized.configure(font="system-ui, sans-serif", background="white", aria=False)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=13,
            titleFontWeight="normal",
            titleColor="#333",
            gridColor="#ECEFF1",
            domainColor="#90989F",
            labelLimit=160,
        )
        .configure_legend(
            orient="top",
            direction="horizontal",
            offset=12,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=260,
        )
        .configure_view(stroke=None)
    )
    spec: Spec = styled.to_dict()
    if signals:
        spec["params"] = [{"name": name, "value": value} for name, value in signals.items()]
    return {**spec, "datasets": {name: list(rows) for name, rows in datasets.items()}}


def _rows_high(count: int) -> int:
    """Return how high a chart of so many rows is, in pixels."""
    return max(2, count) * (_ROW if count <= _MANY_ROWS else _LOW_ROW)


def _in_lines(text: str, wide: int = _LINE, most: int | None = None) -> list[str]:
    """Return a name in lines, broken where its words end.

    Args:
        text: The name.
        wide: So many characters fit into a line.
        most: So many lines fit; None: any number.

    Example:
        >>> _in_lines("optimizer/learning_rate"), _in_lines("augmentation_policy"), _in_lines("lr")
        (['optimizer/', 'learning_rate'], ['augmentation_', 'policy'], ['lr'])
        >>> _in_lines("mixup-alpha-0.2-and-cutmix", wide=9, most=2)
        ['mixup-', 'alpha…']
    """
    lines = [""]
    for word in re.findall(r"[^/_\-\s]*[/_\-\s]?", text):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > wide:
            lines.append("")
        lines[-1] += word
        if word.endswith("/"):  # a group of hyperparameters
            lines.append("")
    shown = [line.strip() for line in lines if line.strip()] or [text]
    if most is None or len(shown) <= most:
        return shown
    return [*shown[: most - 1], f"{shown[most - 1].rstrip('-_/')}…"]


def _marked(values: Iterable[float], *, log: bool) -> list[float] | None:
    """Return the numbers that an axis is marked with: all, if there are few, or powers of ten.

    Example:
        >>> _marked([32, 64, 128, 64], log=True)
        [32, 64, 128]
        >>> _marked([1e-5, 3e-3, 2e-4, 7e-2, 2e-5, 4e-5], log=True)
        [1e-05, 0.0001, 0.001, 0.01]
        >>> _marked([2.0, 3.0, 4.0, 5.0, 6.0, 7.0], log=True) is None
        True
    """
    few = sorted(set(values))
    if len(few) <= _FEW:
        return few
    if not log:
        return None
    first, last = math.ceil(math.log10(few[0]) - 1e-9), math.floor(math.log10(few[-1]) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / _POWERS))
    return [float(f"1e{n}") for n in range(first, last + 1, step)] if last > first else None


def _iterations(field: str, **more: Any) -> alt.X:
    axis = alt.Axis(tickMinStep=1)
    scale = alt.Scale(nice=False, zero=False, padding=8, **more)
    return alt.X(field, title="training iteration", axis=axis, scale=scale)


def curves_chart(
    points: Sequence[Mapping[str, Any]], ranked: Sequence[Ranked], metric: str, *, validated: bool
) -> Spec:
    """Values of a metric by training iteration: a line for each trial, the five best in colour.

    Estimated values have a bar for their interval, and the trials in colour a band. The axes have
    the domains of the signals ``zoom_x`` and ``zoom_y``, unless these are null.

    Args:
        points: What :func:`~tunekit.board.page.figures.curves` returns.
        ranked: The ranking.
        metric: The name of the metric.
        validated: Whether it is validation's: its points are shown, too.
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
    shown = [*labels.values(), "others"] if len(ranked) > len(labels) else [*labels.values()]
    colours = [*_TOP[: len(labels)], _OTHERS] if labels else [_TOP[0]]
    values = [point["value"] for point in points]
    log = not validated and min(values) > 0 and max(values) / min(values) > 100
    title = f"{metric} ({'validated' if validated else 'training'}{', log scale' if log else ''})"
    scale = alt.Scale(
        zero=False,
        type="log" if log else "linear",
        nice=not log,
        domainRaw=alt.ExprRef("zoom_y"),
    )
    x = _iterations("iteration:Q", domainRaw=alt.ExprRef("zoom_x"))
    powers = _marked(values, log=True) if log else None
    ticks = alt.Axis(values=powers, labelExpr=_POWER) if powers else alt.Axis()
    y = alt.Y("value:Q", title=title, scale=scale, axis=ticks)
    base = alt.Chart(alt.NamedData("points")).encode(
        x=x,
        y=y,
        color=alt.Color(
            "who:N",
            title="trial",
            scale=alt.Scale(domain=shown, range=colours[: len(shown)]),
            legend=alt.Legend(
                columns=alt.ExprRef("width > 640 ? 6 : 3"), symbolStrokeWidth=3, symbolOpacity=1
            )
            if labels
            else None,
        ),
        detail="line:N",
    )
    few, best = len(points) <= MOST_DOTS, "datum.who != 'others'"
    width = alt.condition("datum.who == 'others'", alt.value(1.2), alt.value(2.2))
    lines = base.mark_line(interpolate="linear", clip=True).encode(strokeWidth=width)
    dotted = base if few else base.transform_filter(best)
    dots = dotted.mark_circle(size=38 if validated else 12, opacity=1, clip=True)
    layers = [lines, dots]
    if any("low" in point for point in points):
        ends = {"y": alt.Y("low:Q", title=title, scale=scale), "y2": "high:Q"}
        known = base.transform_filter("isValid(datum.low)")
        bars = (known if few else known.transform_filter(best)).mark_rule(
            strokeOpacity=0.45, strokeWidth=1.5, clip=True
        )
        # A value that is exact has an interval without a width.
        band = (
            base.transform_filter(best)
            .transform_calculate(
                low="isValid(datum.low) ? datum.low : datum.value",
                high="isValid(datum.high) ? datum.high : datum.value",
            )
            .mark_area(opacity=0.16, clip=True)
        )
        layers = [band.encode(**ends), bars.encode(**ends), *layers]
    signals = {"zoom_x": None, "zoom_y": None}
    chart = _finished(alt.layer(*layers), signals=signals, points=rows)
    return {**chart, "usermeta": {"curves": metric}}


def seeds_chart(
    points: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]], metric: str
) -> Spec:
    """Return the scores of each configuration's seeds, with their mean and its interval.

    Args:
        points: One for each trial that is part of a mean: see
            :func:`~tunekit.board.page.figures.seed_points`.
        means: One for each configuration: likewise.
        metric: The name of the metric.
    """
    order = [row["configuration"] for row in means]
    endings = [name for name in _ENDINGS if any(p["ending"] == name for p in points)]
    y = alt.Y("configuration:N", sort=order, title=None)
    scale = alt.Scale(zero=False, padding=8)
    intervals = (
        alt.Chart(alt.NamedData("means"))
        .mark_rule(strokeWidth=7, opacity=0.35, color="#90989F", clip=True)
        .encode(x=alt.X("low:Q", title=f"{metric} (validated)", scale=scale), x2="high:Q", y=y)
    )
    ticks = (
        alt.Chart(alt.NamedData("means"))
        .mark_tick(thickness=2.5, size=18, color="#333")
        .encode(
            x=alt.X("mean:Q", scale=scale),
            y=y,
            tooltip=[
                "configuration:N",
                alt.Tooltip("mean:Q", format=".5g"),
                alt.Tooltip("low:Q", format=".5g"),
                alt.Tooltip("high:Q", format=".5g"),
                "seeds:Q",
            ],
        )
    )
    dots = (
        alt.Chart(alt.NamedData("points"))
        .mark_circle(size=55, opacity=0.75)
        .encode(
            x=alt.X("value:Q", scale=scale),
            y=y,
            color=alt.Color(
                "ending:N",
                title="the trial is",
                scale=alt.Scale(domain=endings, range=[_ENDINGS[name] for name in endings]),
            ),
            tooltip=["trial:N", "seed:N", alt.Tooltip("value:Q", title=metric, format=".5g")],
        )
    )
    chart = intervals + ticks + dots
    return _finished(chart, _rows_high(len(order)), points=points, means=means)


def unit_of(longest_s: float) -> tuple[str, int]:
    """Return the unit in which times up to one are told, and its seconds.

    Example:
        >>> unit_of(100.0), unit_of(1000.0), unit_of(1e5)
        (('seconds', 1), ('minutes', 60), ('hours', 3600))
    """
    units = (("hours", 3600), ("minutes", 60), ("seconds", 1))
    return next((unit, s) for unit, s in units if longest_s >= 3 * s or s == 1)


def timeline_chart(spans: Sequence[Span], names: Mapping[str, str], began: float) -> Spec:
    """Return what each trial, and the validations of its checkpoints, did when."""
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
    # What is drawn later lies above: several checkpoints of a trial can be queued at once.
    rows.sort(key=lambda row: row["kind"] != "validation queued")
    kinds = [kind for kind in _SPANS if any(row["kind"] == kind for row in rows)]
    order = [names[trial] for trial in dict.fromkeys(span.trial_id for span in spans)]
    chart = (
        alt.Chart(alt.NamedData("spans"))
        .mark_bar()
        .encode(
            x=alt.X("begin:Q", title=f"{long} since the sweep began", scale=alt.Scale(nice=False)),
            x2="end:Q",
            y=alt.Y("trial:N", sort=order, title="trial"),
            yOffset=alt.YOffset("lane:N", sort=["trial", "validation"]),
            color=alt.Color(
                "kind:N",
                title=None,
                scale=alt.Scale(domain=kinds, range=[_SPANS[kind] for kind in kinds]),
                legend=alt.Legend(columns=alt.ExprRef("width > 640 ? 5 : 2")),
            ),
            tooltip=["trial:N", "kind:N", "iteration:Q", "took:N"],
        )
    )
    return _finished(chart, _rows_high(len(order)), spans=rows)


def _kind(span: Span) -> str:
    if span.kind == "waiting":
        return "waiting for a score"
    if span.kind == "queued":
        return "validation queued"
    return "validating, failed" if span.note in ("failed", "timed_out") else span.kind


def parallel_chart(axes: Sequence[Axis], score: Axis, metric: str, mode: str) -> Spec:
    """Each trial as a line across its hyperparameters and its score; the best is darkest."""
    every = [*axes, score]
    order = [axis.name for axis in every]
    lines_of = {name: _in_lines(name) for name in order}
    trials = sorted(score.positions, key=lambda trial: score.positions[trial])
    rows = [
        {
            "trial": trial,
            "number": number,
            "axis": axis.name,
            "at": axis.positions[trial],
            "value": _text(axis.values[trial]),
            "score": score.values[trial],
        }
        for trial in trials
        for number, axis in enumerate(every)
    ]
    ticks = [
        {"axis": axis.name, "at": at, "text": text} for axis in every for at, text in axis.ticks
    ]
    x = alt.X(
        "axis:N",
        sort=order,
        title=None,
        scale=alt.Scale(type="point", padding=0.5),
        axis=alt.Axis(
            labelAngle=0,
            orient="top",
            domain=False,
            ticks=False,
            labelFontSize=12,
            labelPadding=8 + _LINE_HIGH * (max(map(len, lines_of.values())) - 1),
            labelLineHeight=_LINE_HIGH,
            labelExpr="lines[datum.label]",
            labelLimit=AXIS - 8,
            labelOverlap=False,
        ),
    )
    y = alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[-0.04, 1.04]))
    lines = (
        alt.Chart(alt.NamedData("lines"))
        .mark_line(strokeWidth=1.8, opacity=0.85)
        .encode(
            x=x,
            y=y,
            detail="trial:N",
            order="number:Q",
            color=alt.Color(
                "score:Q",
                title=f"best validated {metric}",
                scale=alt.Scale(scheme="viridis", reverse=mode == "max"),
                legend=alt.Legend(gradientLength=220, format=".3~g"),
            ),
            tooltip=["trial:N", "axis:N", "value:N", alt.Tooltip("score:Q", format=".5g")],
        )
    )
    of_ticks: dict[str, Any] = {"align": "left", "dx": 5, "fontSize": 11}
    of_ticks["limit"] = alt.ExprRef(f"width / {len(order)} - 14")
    rules = alt.Chart(alt.NamedData("axes")).mark_rule(color="#90989F").encode(x=x, y=y, y2="to:Q")
    labels = (
        alt.Chart(alt.NamedData("ticks"))
        .mark_text(**of_ticks, color="#111", stroke="white", strokeWidth=0)
        .encode(x=x, y=y, text="text:N")
    )
    backs = labels.mark_text(**of_ticks, stroke="white", strokeWidth=4)
    ends = [{"axis": name, "at": 0, "to": 1} for name in order]
    chart = lines + rules + backs + labels
    signals = {"lines": lines_of}
    return _finished(
        chart.properties(padding=_ROOM), _HEIGHT, signals, lines=rows, axes=ends, ticks=ticks
    )


def bests_chart(rows: Sequence[Mapping[str, Any]], metric: str) -> Spec:
    """Return the best scores of several sweeps, with their intervals if they have any.

    Args:
        rows: One for each sweep: ``sweep``, ``best``, ``low``, ``high`` and ``trial``.
        metric: What the scores are called.
    """
    order = [row["sweep"] for row in rows]
    scale = alt.Scale(zero=False, padding=12)
    y = alt.Y("sweep:N", sort=order, title=None)
    base = alt.Chart(alt.NamedData("sweeps"))
    intervals = base.transform_filter("isValid(datum.low)").mark_rule(
        strokeWidth=3, color="#90989F"
    )
    dots = base.mark_circle(size=110, opacity=1).encode(
        x=alt.X(
            "best:Q", title=f"best {metric} (validated)", scale=scale, axis=alt.Axis(tickCount=6)
        ),
        y=y,
        color=_sweep(order, legend=False),
        tooltip=["sweep:N", "trial:N", *(alt.Tooltip(f"{n}:Q", format=".5g") for n in _ENDS)],
    )
    chart = intervals.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y) + dots
    roomy = chart.properties(padding={**_ROOM, "left": 5, "right": 20})
    return _finished(roomy, _rows_high(len(order)), sweeps=rows)


_ENDS = ("best", "low", "high")


def progress_chart(rows: Sequence[Mapping[str, Any]], field: str, title: str, metric: str) -> Spec:
    """Return the best score of each sweep so far, as steps.

    Args:
        rows: The improvements: ``sweep``, the field and ``best``.
        field: What the sweeps are compared by.
        title: What that is called.
        metric: What the scores are called.
    """
    order = list(dict.fromkeys(row["sweep"] for row in rows))
    chart = (
        alt.Chart(alt.NamedData("improvements"))
        .mark_line(interpolate="step-after", strokeWidth=2.2, point=alt.OverlayMarkDef(size=30))
        .encode(
            x=alt.X(f"{field}:Q", title=title, scale=alt.Scale(nice=False, zero=False, padding=8)),
            y=alt.Y("best:Q", title=f"best {metric} so far", scale=alt.Scale(zero=False)),
            color=_sweep(order),
            tooltip=["sweep:N", alt.Tooltip(f"{field}:Q", title=title, format=".5g"), "best:Q"],
        )
    )
    return _finished(chart, improvements=rows)


def _sweep(order: Sequence[str], *, legend: bool = True) -> alt.Color:
    scale = alt.Scale(domain=list(order), range=[_TOP[n % len(_TOP)] for n in range(len(order))])
    # As many in a line as fit: a character takes some 7 pixels, a symbol and the room around it 40.
    abreast = sum(40 + 7 * min(len(name), 36) for name in list(order)[:3])
    columns = alt.ExprRef(f"width > {abreast} ? 3 : 1")
    own = alt.Legend(columns=columns, symbolStrokeWidth=3) if legend else None
    return alt.Color("sweep:N", title="sweep", scale=scale, legend=own)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def slice_chart(axis: Axis, score: Axis, metric: str, winner: str | None) -> Spec:
    """Return the scores of trials by one hyperparameter.

    Args:
        axis: The hyperparameter.
        score: The scores.
        metric: What they are called.
        winner: The best trial, which is drawn larger.
    """
    choice = axis.kind == "choice"
    rows = [
        {
            "trial": trial,
            "value": _text(value) if choice else value,
            "score": score.values[trial],
            "best": trial == winner,
        }
        for trial, value in axis.values.items()
        if trial in score.values
    ]
    rows.sort(key=lambda row: row["best"])
    scale = alt.Scale(
        type="log" if axis.kind == "log" else "linear", zero=False, nice=False, padding=8
    )
    title = f"{axis.name} (log scale)" if axis.kind == "log" else axis.name
    signals: dict[str, Any] = {}
    if choice:
        options = {row["value"] for row in rows}
        signals["lines"] = {
            option: _in_lines(option, _CHOICE_LINE, _CHOICE_LINES) for option in options
        }
        ticks = alt.Axis(
            labelAngle=0,
            labelExpr="lines[datum.label]",
            labelLimit=alt.ExprRef(f"max(40, width / {len(options)} - 4)"),
            labelOverlap=len(options) > _FEW,
        )
        x = alt.X("value:N", title=title, axis=ticks)
    else:
        marked = _marked([row["value"] for row in rows], log=axis.kind == "log")
        ticks = alt.Axis(tickCount=4, labelExpr=_POWER, labelFlush=True, labelOverlap=True)
        x = alt.X("value:Q", title=title, scale=scale, axis=ticks)
        if marked is not None:
            ticks.values = marked
    chart = (
        alt.Chart(alt.NamedData("trials"))
        .mark_circle()
        .encode(
            x=x,
            y=alt.Y("score:Q", title=metric, scale=alt.Scale(zero=False, nice=False, padding=14)),
            color=alt.condition("datum.best", alt.value(_TOP[1]), alt.value(_TOP[0])),
            size=alt.condition("datum.best", alt.value(110), alt.value(32)),
            opacity=alt.condition("datum.best", alt.value(1), alt.value(0.55)),
            tooltip=[
                "trial:N",
                alt.Tooltip("value:N" if choice else "value:Q", title=axis.name),
                alt.Tooltip("score:Q", title=metric, format=".5g"),
            ],
        )
    )
    return _finished(chart, 180, signals, trials=rows)


def contour_chart(axes: Sequence[Axis], score: Axis, metric: str, mode: str) -> Spec:
    """Return the best scores by two hyperparameters: cells where trials are, and the trials.

    Nothing is interpolated: where no trial was, there is no cell. Which two of the hyperparameters
    are shown is said by the signals ``x_axis`` and ``y_axis``, as places in ``axes``.

    Args:
        axes: The hyperparameters, two or more.
        score: The scores.
        metric: What they are called.
        mode: ``"min"`` or ``"max"``.
    """
    rows = []
    for trial, value in score.values.items():
        row: dict[str, Any] = {"trial": trial, "score": value}
        for n, axis in enumerate(axes):
            at, low, high = _in_cell(axis, trial)
            row |= {f"at{n}": at, f"low{n}": low, f"high{n}": high}
            row[f"is{n}"] = _text(axis.values[trial])
        rows.append(row)
    ticks = [
        {"axis": n, "at": _centred(axis, at), "text": text}
        for n, axis in enumerate(axes)
        for at, text in axis.ticks
    ]
    of = {name: f"datum['{name}' + {{}}_axis]" for name in ("at", "low", "high", "is")}
    trials = alt.Chart(alt.NamedData("trials")).transform_calculate(
        **{f"{name}_{end}": text.format(end) for name, text in of.items() for end in ("x", "y")}
    )
    ends: list[Any] = ["low_x", "high_x", "low_y", "high_y"]
    x_scale, y_scale = alt.Scale(domain=[-0.16, 1]), alt.Scale(domain=[-0.1, 1])
    x, y = (
        (lambda name: alt.X(name, axis=None, scale=x_scale)),
        (lambda name: alt.Y(name, axis=None, scale=y_scale)),
    )
    best = "max" if mode == "max" else "min"
    cells = (
        trials.transform_aggregate(best=f"{best}(score)", trials="count()", groupby=ends)
        .mark_rect(stroke="white", strokeWidth=1)
        .encode(
            x=x("low_x:Q"),
            x2="high_x:Q",
            y=y("low_y:Q"),
            y2="high_y:Q",
            color=alt.Color(
                "best:Q",
                title=f"best {metric} in the cell",
                scale=alt.Scale(scheme="viridis", reverse=mode == "max"),
                legend=alt.Legend(gradientLength=220, format=".3~g"),
            ),
            tooltip=[alt.Tooltip("best:Q", title=f"best {metric}", format=".5g"), "trials:Q"],
        )
    )
    dots = trials.mark_circle(
        size=26, fill="#111", stroke="white", strokeWidth=1, opacity=1
    ).encode(
        x=x("at_x:Q"),
        y=y("at_y:Q"),
        tooltip=[
            "trial:N",
            alt.Tooltip("is_x:N", title="across"),
            alt.Tooltip("is_y:N", title="up"),
            alt.Tooltip("score:Q", title=metric, format=".5g"),
        ],
    )
    named = alt.Chart(alt.NamedData("ticks"))
    across = (
        named.transform_filter("datum.axis == x_axis")
        .mark_text(fontSize=12, fill="#111", y=alt.ExprRef("height - 12"))
        .encode(x=x("at:Q"), text="text:N")
    )
    up = (
        named.transform_filter("datum.axis == y_axis")
        .mark_text(fontSize=12, fill="#111", align="left", x=2, limit=70)
        .encode(y=y("at:Q"), text="text:N")
    )
    logs = [axis.kind == "log" and _places(axis) is None for axis in axes]
    names = [
        axis.name + (" (log scale)" if log else "") for axis, log in zip(axes, logs, strict=True)
    ]
    text = alt.ExprRef("['Up: ' + names[y_axis], 'Across: ' + names[x_axis]]")
    title = alt.TitleParams(
        text=text,
        anchor="start",
        frame="group",
        fontSize=13,
        fontWeight="normal",
        limit=alt.ExprRef("width"),
    )
    chart = alt.layer(cells, dots, across, up).properties(title=title, padding=_ROOM)
    signals = {"names": names, "x_axis": 0, "y_axis": 1}
    return _finished(chart, _HEIGHT, signals, trials=rows, ticks=ticks)


# So many cells a number's axis is cut into.
_CELLS = 8


def _places(axis: Axis) -> list[float] | None:
    """Return where the values of an axis are, in order, if each of them is marked: choices, and
    numbers of which there are few."""
    places = [at for at, _ in axis.ticks]
    return places if set(axis.positions.values()) <= set(places) else None


def _centred(axis: Axis, at: float) -> float:
    """Return where something is on an axis whose values have a cell each if there are few."""
    places = _places(axis)
    return at if places is None else (places.index(at) + 0.5) / len(places)


def _in_cell(axis: Axis, trial: str) -> tuple[float, float, float]:
    """Return where a trial is on an axis, and from where to where its cell goes."""
    at = _centred(axis, axis.positions[trial])
    count = _CELLS if _places(axis) is None else len(axis.ticks)
    cell = min(int(at * count), count - 1)
    return round(at, 4), round(cell / count, 4), round((cell + 1) / count, 4)


def importance_chart(importance: Mapping[str, float]) -> Spec:
    """Return how much each hyperparameter matters, as shares of one."""
    rows = [{"name": name, "share": share} for name, share in importance.items()]
    chart = (
        alt.Chart(alt.NamedData("shares"))
        .mark_bar(color=_TOP[0])
        .encode(
            x=alt.X("share:Q", title="share of importance", axis=alt.Axis(format="%", tickCount=5)),
            y=alt.Y("name:N", sort="-x", title=None),
            tooltip=["name:N", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    return _finished(chart, _ROW * len(rows), shares=rows)


def rungs_chart(points: Sequence[Mapping[str, Any]], metric: str) -> Spec:
    """The scores at each rung, of trials that went on and of those that paused, or were stopped,
    there."""
    outcomes = [name for name in _DECISIONS if any(p["outcome"] == name for p in points)]
    chart = (
        alt.Chart(alt.NamedData("points"))
        .mark_circle(size=70, opacity=0.75)
        .encode(
            x=alt.X("rung:O", title="rung (training iteration)", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("outcome:N", sort=outcomes),
            y=alt.Y("score:Q", title=f"{metric} (validated)", scale=alt.Scale(zero=False)),
            color=_outcome(outcomes),
            tooltip=[
                "trial:N",
                "rung:O",
                "iteration:Q",
                alt.Tooltip("score:Q", title=metric, format=".5g"),
                "outcome:N",
                alt.Tooltip("late:Q", title="iterations late"),
            ],
        )
    )
    return _finished(chart, points=points)


def decisions_chart(points: Sequence[Mapping[str, Any]], metric: str) -> Spec:
    """Return what the scheduler decided on each score."""
    outcomes = [name for name in _DECISIONS if any(p["outcome"] == name for p in points)]
    chart = (
        alt.Chart(alt.NamedData("points"))
        .mark_circle(size=55, opacity=0.8)
        .encode(
            x=_iterations("iteration:Q"),
            y=alt.Y("score:Q", title=f"{metric} (validated)", scale=alt.Scale(zero=False)),
            color=_outcome(outcomes),
            tooltip=["trial:N", "iteration:Q", alt.Tooltip("score:Q", format=".5g"), "outcome:N"],
        )
    )
    return _finished(chart, points=points)


def _outcome(outcomes: Sequence[str]) -> alt.Color:
    colours = [_DECISIONS[name] for name in outcomes]
    return alt.Color(
        "outcome:N", title="the trial", scale=alt.Scale(domain=list(outcomes), range=colours)
    )


def family_chart(
    branches: Sequence[Mapping[str, Any]],
    exploits: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    line: set[tuple[str, int]],
) -> Spec:
    """A population: each trial's generations, and from whom a new one came.

    Args:
        branches: What :func:`~tunekit.board.page.figures.branches` returns.
        exploits: What :func:`~tunekit.board.page.figures.exploits` returns.
        names: What trials are called.
        line: The generations that led to the best checkpoint.
    """
    of = {True: "led to the best checkpoint", False: "did not"}
    rows = [
        {
            **branch,
            "trial": names[branch["trial"]],
            "role": of[(branch["trial"], branch["generation"]) in line],
        }
        for branch in branches
    ]
    moves = [
        {
            **exploit,
            "trial": names[exploit["trial"]],
            "donor": names[exploit["donor"]],
            "role": of[(exploit["trial"], exploit["generation"]) in line],
        }
        for exploit in exploits
    ]
    _abreast(moves)
    order = [names[trial] for trial in dict.fromkeys(branch["trial"] for branch in branches)]
    colour = alt.Color(
        "role:N",
        title=None,
        scale=alt.Scale(domain=list(of.values()), range=[_TOP[0], _OTHERS]),
        legend=alt.Legend(columns=2),
    )
    y = alt.Y("trial:N", sort=order, title="trial")
    lanes = (
        alt.Chart(alt.NamedData("branches"))
        .mark_bar(height=9, cornerRadius=3)
        .encode(
            x=_iterations("begin:Q"),
            x2="end:Q",
            y=y,
            color=colour,
            tooltip=["trial:N", "generation:Q", "begin:Q", "end:Q"],
        )
    )
    arrows = (
        alt.Chart(alt.NamedData("exploits"))
        .mark_rule(strokeWidth=1.6)
        .encode(x=_iterations("at:Q"), y=alt.Y("donor:N", sort=order), y2="trial:N", color=colour)
    )
    heads = (
        alt.Chart(alt.NamedData("exploits"))
        .mark_circle(size=90, opacity=1, stroke="white", strokeWidth=1.5)
        .encode(
            x=_iterations("at:Q"),
            y=y,
            color=colour,
            tooltip=[
                "trial:N",
                "generation:Q",
                alt.Tooltip("donor:N", title="cloned from"),
                "iteration:Q",
                alt.Tooltip("score:Q", title="score of the donor", format=".5g"),
            ],
        )
    )
    chart = lanes + arrows + heads
    return _finished(chart, _rows_high(len(order)), branches=rows, exploits=moves)


def _abreast(moves: Sequence[dict[str, Any]]) -> None:
    """Say where each exploit is drawn (``at``): those of the same iteration beside each other.

    Example:
        >>> moves = [{"iteration": 4}, {"iteration": 4}, {"iteration": 4}, {"iteration": 8}]
        >>> _abreast(moves)
        >>> [move["at"] for move in moves]
        [3.92, 4.0, 4.08, 8.0]
    """
    iterations = sorted({move["iteration"] for move in moves})
    gap = min((b - a for a, b in itertools.pairwise(iterations)), default=iterations[-1])
    many = Counter(move["iteration"] for move in moves)
    step = min(iterations[-1] / 100, gap / 2 / max(many.values()))
    drawn: dict[int, int] = defaultdict(int)
    for move in moves:
        iteration = move["iteration"]
        move["at"] = round(iteration + (drawn[iteration] - (many[iteration] - 1) / 2) * step, 4)
        drawn[iteration] += 1
