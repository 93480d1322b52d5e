"""The report of a sweep: figures, charts and text in one HTML file."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem

from tunekit.core.metrics import plain
from tunekit.core.problems import Problems
from tunekit.core.values import writable
from tunekit.core.words import (
    comparison_in_words,
    confirmation_in_words,
    duration,
    mean_in_words,
    number,
)
from tunekit.extras import extra
from tunekit.page import charts, figures
from tunekit.page.importance import importance
from tunekit.simulation.alternatives import alternatives
from tunekit.storage import replace_file
from tunekit.sweep import Ranked, Sweep
from tunekit.version import VERSION

with extra("report"):
    import jinja2
    import vl_convert

__all__ = ["render", "write_page"]

#: So many trials' curves, bars and lines a chart shows, the best first.
MOST_CURVES, MOST_BARS, MOST_LINES, MOST_MEANS = 100, 40, 300, 20
_TABLE, _FAILURES = 20, 50
_NONE = "\N{EN DASH}"


def write_page(sweep: Sweep, path: str | Path | None = None) -> Path:
    """Write the report of a sweep: one HTML file, which needs no network and no other file.

    It has the ranking, also of configurations over their seeds if the seed is known; learning
    curves with the validated points; what training and validation did when; what waiting for scores
    cost, and what the sweep would have taken with other settings, by simulation, if it has at most
    1,000 reports; hyperparameters against scores, and their importance; ASHA's rungs, or PBT's
    family tree and schedule; what was validated later; failures; how the sweep was run; how to go
    on with it and use its best checkpoint.
    What a sweep has nothing of is left out. Long lists are cut, the best trials first, and say so.

    Args:
        sweep: The sweep; :func:`tunekit.load` reads one.
        path: The file; it is replaced if it exists. By default ``report.html`` in the experiment's
            folder, or, if that is not local, the experiment's name and ``-report.html`` here.

    Returns:
        The file.

    Raises:
        tunekit.ConfigError: If ``path`` is in no folder, or is one.
        OSError: If the file cannot be written, or the sweep's storage fails.

    Example:
        >>> import tempfile
        >>> file = write_page(Sweep([]), Path(tempfile.mkdtemp(), "report.html"))
        >>> "No trial has begun" in file.read_text()
        True
    """
    path = Path(path) if path is not None else _default_file(sweep)
    problems = Problems("write_page")
    if path.is_dir():
        problems.add(f"path={str(path)!r} is a folder. Pass the name of a file, such as r.html.")
    elif not path.parent.is_dir():
        problems.add(f"path={str(path)!r} is in no folder that exists. Make {path.parent} first.")
    problems.raise_any()
    replace_file(path, writable(render(sweep)).encode())
    return path


def _default_file(sweep: Sweep) -> Path:
    if isinstance(sweep.filesystem, LocalFileSystem):
        return Path(sweep.path, "report.html")
    return Path(f"{Path(sweep.path).name or 'sweep'}-report.html")


def render(sweep: Sweep) -> str:
    """The report of a sweep as HTML."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(
        number=_number,
        score=_score,
        share=_share,
        seconds=_seconds,
        moment=_moment,
        json=_json,
        mean=mean_in_words,
        compared=comparison_in_words,
        confirmed=confirmation_in_words,
    )
    template = resources.files("tunekit.page").joinpath("template.html").read_text("utf-8")
    return environment.from_string(template).render(script=_vega(), **contents(sweep))


def contents(sweep: Sweep) -> dict[str, Any]:
    """Everything that the report says, as data."""
    ranked = sweep.ranking()
    verdict, seeds = figures.verdict(sweep, ranked), figures.over_seeds(sweep)
    metric = sweep.metric or "score"
    axes = figures.axes([one for one in ranked if math.isfinite(one.best_value or 0.0)])
    scores = {
        one.trial_id: one.best_value
        for one in ranked
        if one.best_value is not None and math.isfinite(one.best_value)
    }
    score = figures.axis_of(metric, scores, may_be_log=False)
    summary, failures = sweep.summary(), figures.failures(sweep)
    settings = sweep.sessions[-1] if sweep.sessions else {}
    return {
        "name": Path(sweep.path).name or "sweep",
        "version": VERSION,
        "made": datetime.now(timezone.utc).timestamp(),
        "summary": summary,
        "metric": metric,
        "names": sweep.timeline.names,
        "mode": sweep.mode,
        "ranked": ranked,
        "names_of": {one.trial_id: one.name for one in ranked},
        "most": _TABLE,
        "columns": list(dict.fromkeys(name for one in ranked for name in one.hyperparameters)),
        "verdict": verdict,
        "over_seeds": seeds,
        "seed": sweep.seed,
        "trial_names": {one.trial_id: one.name for one in ranked},
        "schedule": [] if verdict is None else figures.schedule(sweep, verdict.winner),
        "charts": _charts(sweep, ranked, verdict, seeds, axes, score),
        "cut": {
            "curves": max(0, len(ranked) - MOST_CURVES),
            "bars": max(0, len(ranked) - MOST_BARS),
            "means": 0 if seeds is None else max(0, len(seeds.ranked) - MOST_MEANS),
        },
        "alternatives": alternatives(sweep),
        "later": figures.later(sweep),
        "failures": failures[:_FAILURES],
        "more_failures": max(0, len(failures) - _FAILURES),
        "sessions": sweep.sessions,
        "settings": settings,
        "best": sweep.best() if verdict is not None else None,
        "loads": _loads(sweep),
        "finds": _finds(sweep),
        "resumes": None if sweep.source is None else f"tunekit resume {shlex.quote(sweep.source)}",
    }


def _loads(sweep: Sweep) -> str:
    """The Python that loads the sweep."""
    seed = "" if sweep.seed_as_started else f", seed={sweep.seed!r}"
    if sweep.source is not None:
        return f"tunekit.load({sweep.source!r}{seed})"
    return f"tunekit.load({sweep.path!r}, storage_filesystem=filesystem{seed})"


def _finds(sweep: Sweep) -> str:
    """The Python that finds its best checkpoint, as the report has it."""
    return ".best()" if sweep.as_judged else f".best({sweep.metric!r}, {sweep.mode!r})"


def _charts(
    sweep: Sweep,
    ranked: list[Ranked],
    verdict: figures.Verdict | None,
    seeds: figures.OverSeeds | None,
    axes: list[figures.Axis],
    score: figures.Axis | None,
) -> dict[str, Any]:
    """The charts that there is something to show in, by name."""
    found: dict[str, Any] = {}
    names = {one.trial_id: one.name for one in ranked}
    metric = sweep.metric
    shown = [one.trial_id for one in ranked[:MOST_CURVES]]
    if metric is not None and verdict is not None:
        points = figures.curves(sweep, shown, metric)
        found["validated"] = charts.curves_chart(points, ranked, metric, validated=True)
    for n, name in enumerate(figures.training_metrics(sweep)):
        points = figures.curves(sweep, shown, name)
        if points:
            found[f"training{n}"] = charts.curves_chart(points, ranked, name, validated=False)
    if seeds is not None and metric is not None:
        points, means = figures.seed_points(seeds, str(sweep.seed), MOST_MEANS)
        if means:
            found["seeds"] = charts.seeds_chart(points, means, metric)
    spans = figures.timeline(sweep, [one.trial_id for one in ranked[:MOST_BARS]])
    if spans:
        found["timeline"] = charts.timeline_chart(spans, names, sweep.timeline.first or 0.0)
    if axes and score is not None and metric is not None and sweep.mode is not None:
        kept = {one.trial_id for one in ranked[:MOST_LINES]}
        found["parallel"] = charts.parallel_chart(axes, _only(score, kept), metric, sweep.mode)
        shares = importance(axes, score, sweep.mode)
        if shares:
            found["importance"] = charts.importance_chart(shares)
    exploits = figures.exploits(sweep)
    if exploits:
        line = _line_of(sweep, verdict)
        branches = figures.branches(sweep)
        found["family"] = charts.family_chart(branches, exploits, names, line)
    else:
        rungs, decided = figures.rungs(sweep), figures.decided(sweep)
        judged = sweep.judged or metric or "score"
        if rungs:
            found["rungs"] = charts.rungs_chart(rungs, judged)
        elif any(point["outcome"] != "went on" for point in decided):
            found["decisions"] = charts.decisions_chart(decided, judged)
    return found


def _only(axis: figures.Axis, trials: set[str]) -> figures.Axis:
    positions = {trial: at for trial, at in axis.positions.items() if trial in trials}
    return figures.Axis(axis.name, axis.kind, axis.ticks, positions, axis.values)


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


@lru_cache(maxsize=1)
def _vega() -> str:
    """Return what draws the charts: Vega, Vega-Lite and Vega-Embed, as a script."""
    script = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub has no default
    return str(script).replace("</script", "<\\/script")


def _json(value: Mapping[str, Any]) -> str:
    """JSON that may stand in a script of a page."""
    text = json.dumps(plain(value), default=str, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _number(value: Any) -> str:
    if value is None:
        return _NONE
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _score(value: float | None) -> str:
    return number(value, _NONE)


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    """A duration for readers.

    Example:
        >>> _seconds(4.25), _seconds(75), _seconds(7300)
        ('4.2 s', '75 s', '2 h 1 min')
    """
    if value is None:
        return _NONE
    return f"{value:.1f} s" if value < 60 else duration(value)


def _moment(value: float | None) -> str:
    if value is None:
        return _NONE
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
