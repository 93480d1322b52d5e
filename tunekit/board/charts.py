"""The report's charts: Vega-Lite specifications with the data of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tunekit.core.metrics import flatten, is_reserved
from tunekit.core.summaries import Span
from tunekit.core.values import finite_number
from tunekit.reading.curves import Spec, chart_of, colours_of, curves_chart, thinned_curves
from tunekit.reading.sweep import Sweep

_SPANS = {
    "training": "#0072B2",
    "waiting for a score": "#E69F00",
    "validating": "#009E73",
    "validating, failed": "#D55E00",
    "validation requested": "#CFD5DA",
}
# The height of a row in a chart, in pixels; rows are lower if there are many.
_ROW, _LOW_ROW, _MANY_ROWS = 26, 20, 20


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
    chart, kinds = chart_of("timeline", rows, height), {row["kind"] for row in rows}
    chart["encoding"]["x"]["title"] = f"{long} since the sweep began"
    chart["encoding"]["y"]["sort"] = order
    palette = {kind: colour for kind, colour in _SPANS.items() if kind in kinds}
    chart["encoding"]["color"]["scale"] = colours_of(palette)
    return chart


def _kind(span: Span) -> str:
    if span.kind == "waiting":
        return "waiting for a score"
    if span.kind == "requested":
        return "validation requested"
    return "validating, failed" if span.note in ("failed", "timed_out") else span.kind


# The charts of a sweep --------------------------------------------------------------------------

#: The number of trials in the timeline, best first, and of training metrics with a chart.
MOST_BARS, MOST_TRAINING = 40, 3

# The number of spans above which spans of validations are joined, as those of training are.
_MOST_SPANS = 3_000


def draw_charts(sweep: Sweep) -> dict[str, Spec]:
    """Return all charts that are not empty, by name."""
    ranked, metric, drawn = sweep.ranking(), sweep.metric, {}
    training = _training_metrics(sweep)[:MOST_TRAINING]
    validated = [metric] if metric and ranked and ranked[0].best is not None else []
    points = thinned_curves(sweep.timeline, ranked, [*validated, *training])
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
