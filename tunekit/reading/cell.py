"""Show a sweep in a notebook's cell: its state, its ranking and its learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tunekit.core.ranking import Ranked
from tunekit.core.timeline import Timeline
from tunekit.errors import MissingExtraError, extra
from tunekit.messages.formatting import (
    differing_names,
    format_duration,
    format_score,
    format_setting,
    printable,
)
from tunekit.reading.curves import curves_chart, thinned_curves

#: How many trials and hyperparameters the table shows.
_TRIALS, _SETTINGS = 8, 6
_WIDTH, _HEIGHT = 560, 200


def render(summary: Mapping[str, Any], ranked: Sequence[Ranked], timeline: Timeline) -> str:
    """Return a sweep as HTML that needs no script.

    Args:
        summary: As returned by :meth:`tunekit.Sweep.summary`.
        ranked: The ranking.
        timeline: The history of the sweep.
    """
    parts = [f"<p>{_headline(summary)}</p>", _table(summary["metric"], ranked)]
    metric = summary["metric"]
    if metric and ranked and ranked[0].best is not None:
        parts.append(_curves(timeline, ranked, metric))
    return f"<div>{''.join(parts)}</div>"


def _headline(summary: Mapping[str, Any]) -> str:
    name = summary["path"].rstrip("/").rpartition("/")[2]
    trials, validations = (sum(summary[kind].values()) for kind in ("trials", "validations"))
    spent = format_duration((summary["last"] or 0.0) - (summary["began"] or 0.0))
    known = f"{summary['state']}, {trials} trials, {validations} validations, {spent}"
    return f"<b>{_text(name)}</b>: {_text(known)}"


def _table(metric: str | None, ranked: Sequence[Ranked]) -> str:
    """Return the best trials, with the hyperparameters that differ."""
    varied = differing_names([one.hyperparameters for one in ranked])[:_SETTINGS]
    head = ["", "trial", "status", "iteration", metric or "score", "at", *varied]
    rows = []
    for one in ranked[:_TRIALS]:
        settings = [format_setting(one.hyperparameters.get(name)) for name in varied]
        at = "" if one.best is None else one.best.iteration
        score, status = format_score(one.best_value), one.trial.shown_status
        cells = [one.rank or "", one.name, status, one.trial.iteration, score, at, *settings]
        rows.append("".join(f"<td>{_text(cell)}</td>" for cell in cells))
    if len(ranked) > _TRIALS:
        rows.append(f"<td></td><td colspan='{len(head) - 1}'>{len(ranked) - _TRIALS} more</td>")
    heads = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _curves(timeline: Timeline, ranked: Sequence[Ranked], metric: str) -> str:
    """Return the report's learning curves, small, as SVG; a hint without the package for it."""
    try:
        with extra("report"):
            import vl_convert
    except MissingExtraError as error:
        return f"<p>{_text(error)}</p>"
    points = thinned_curves(timeline, ranked, [metric])[metric]
    chart = curves_chart(points, ranked, metric, validated=True)
    return str(vl_convert.vegalite_to_svg({**chart, "width": _WIDTH, "height": _HEIGHT}))


def _text(value: Any) -> str:
    return escape(printable(str(value)))
