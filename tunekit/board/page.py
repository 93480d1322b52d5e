"""The report of a sweep: figures, charts and text in one HTML file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem

from tunekit.board import charts
from tunekit.core.failures import failure_kind
from tunekit.core.metrics import finite_json
from tunekit.core.ranking import Ranked
from tunekit.core.values import encodable, finite_number
from tunekit.errors import extra
from tunekit.journal.paths import joined
from tunekit.journal.storage import replace_file, write_file
from tunekit.messages.formatting import format_duration, format_score
from tunekit.messages.problems import Problems
from tunekit.reading import curves
from tunekit.reading.findings import causes_of, failures_of, how_to_continue, later_scores
from tunekit.reading.sweep import Sweep
from tunekit.version import VERSION

with extra("report"):
    import jinja2
    import vl_convert


#: The sections of the page, in order.
SECTIONS = ("summary", "front", "ranking", "curves", "timeline", "later", "failures", "run", "next")
_TABLE, _CAUSES = 20, 50
# The number of rows of validations in all panels together, and the minimum and maximum in each.
_ROWS, _FEWEST, _MOST = 5_000, 5, 200
_NONE = "\N{EN DASH}"


def write_page(sweep: Sweep, path: str | Path | None = None) -> Path:
    """Write the report of a sweep: one HTML file, which needs no network and no other file.

    It has the ranking, which can be sorted, filtered and exported; each trial's configuration,
    validated checkpoints and error; learning curves with the validated points; a timeline of
    training and validation; later validations; failures; the sweep's settings; and how to continue
    the sweep and use its best checkpoint. Empty parts are left out. Long lists show only the best
    trials, with a note.

    Args:
        sweep: The sweep, as returned by :func:`tunekit.load`.
        path: The file; it is replaced if it exists, and so is the target of a link. A device or a
            pipe, such as ``/dev/stdout``, is written to. By default ``report.html`` in the
            experiment's folder, or, if that is not local, the experiment's name and
            ``-report.html`` here.

    Returns:
        The file.

    Raises:
        tunekit.errors.ConfigError: If ``path`` is not a path, is a folder, or is in one that does
            not exist.
        OSError: If the file cannot be written, or the sweep's storage fails.

    Example:
        >>> import tempfile
        >>> file = write_page(Sweep([]), Path(tempfile.mkdtemp(), "report.html"))
        >>> "No trial has begun" in file.read_text()
        True
    """
    problems, fix = Problems("write_page"), "Pass a file, such as report.html."
    problems.instance("sweep", sweep, Sweep, "Pass tunekit.load(path).")
    problems.optional("path", path, (str, os.PathLike), fix)
    problems.raise_any()
    # Somebody else may have put a link into the experiment's folder.
    write = write_file if path else replace_file
    path = path or _default_file(sweep)
    try:
        os.access(file := Path(os.fsdecode(path)), os.F_OK)  # checks the name
        if file.is_dir():
            problems.add(f"path={str(path)!r} is a folder. {fix}")
        elif not file.parent.is_dir():
            problems.add(f"path={str(path)!r} is in a folder that does not exist. Create it first.")
    except (TypeError, ValueError) as error:
        problems.add(f"path={str(path)!r} cannot be the name of a file: {error}. {fix}")
    problems.raise_any()
    text = encodable(render_report(sweep)).encode()
    try:
        write(file, text)
    except OSError as error:  # which names the draft
        raise OSError(error.errno, error.strerror, str(file)) from error
    return file


def _default_file(sweep: Sweep) -> Path:
    if isinstance(sweep.filesystem, LocalFileSystem):
        return Path(sweep.path, "report.html")
    return Path(f"{Path(sweep.path).name or 'sweep'}-report.html")


def render_report(sweep: Sweep) -> str:
    """Return the report of a sweep as HTML."""
    drawn = charts.draw_charts(sweep)
    data = report_data(sweep, drawn)
    panels, sections = render_panels(sweep, data["errors"]), render_sections(data)
    return render_page(data["name"], sections, script=vega_script(), panels=panels, drawn=drawn)


def report_data(sweep: Sweep, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of the report as data.

    Args:
        sweep: The sweep.
        drawn: Its charts by name.
    """
    ranked, summary, errors = sweep.ranking(), sweep.summary(), sweep.trial_errors()
    causes = causes_of(failures_of(sweep.timeline, errors))
    settings = [item for one in ranked for item in one.hyperparameters.items()]
    return {
        "name": Path(sweep.path).name or "sweep",
        "summary": summary,
        "metric": _metric_of(sweep),
        "names": sweep.timeline.names,
        "mode": sweep.mode,
        "ranked": ranked,
        "most": _TABLE,
        "columns": list(dict.fromkeys(name for name, _ in settings)),
        "texts": {name for name, value in settings if not _is_number(value)},
        "trial_names": {one.trial_id: one.name for one in ranked},
        "charts": drawn,
        "cut": {
            "curves": max(0, len(ranked) - curves.MOST_CURVES),
            "dots": curves.MOST_DOTS,
            "points": curves.MOST_POINTS,
            "others": curves.OTHER_POINTS,
            "bars": max(0, len(ranked) - charts.MOST_BARS),
        },
        "later": [
            later_scores(sweep.timeline, name, sweep.metric, sweep.mode)
            for name in summary["later"]
        ],
        "errors": errors,
        "causes": [
            {
                "kind": failure_kind(cause[0]["reason"] or cause[0]["status"]),
                "reason": cause[0]["reason"] or "no reason is known",
                "details": next((row["details"] for row in cause if row["details"]), None),
                "failures": cause,
            }
            for cause in causes[:_CAUSES]
        ],
        "more_causes": max(0, len(causes) - _CAUSES),
        "sessions": sweep.sessions,
        "settings": sweep.newest_session,
        "best": summary["best"],
        "loads": _loads(sweep),
        "finds": f".best({sweep.metric!r}, {sweep.mode!r})",
        "resumes": None
        if sweep.source is None
        else how_to_continue(sweep.newest_session, shlex.quote(sweep.source)),
    }


def _metric_of(sweep: Sweep) -> str:
    return sweep.metric or "score"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, type(None))) and not isinstance(value, bool)


def render_sections(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the sections of the page as HTML, in order, by name.

    Args:
        data: As returned by :func:`report_data`.
    """
    made = _environment().get_template("sections.html").make_module(dict(data))
    order = list(SECTIONS)
    if data["causes"] and data["best"] is None:  # there is nothing else to show
        order.remove("failures")
        order.insert(1, "failures")
    every = {name: str(getattr(made, f"section_{name}")()).strip() for name in order}
    return {name: text for name, text in every.items() if text}


def render_index(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the list of several sweeps, as HTML.

    Args:
        rows: As returned by :meth:`tunekit.reading.catalogue.Catalogue.outlines`.
    """
    made: Any = _environment().get_template("index.html").make_module({"rows": rows})
    return str(made.section_sweeps()).strip()


def render_panels(
    sweep: Sweep, errors: Mapping[str, str], trial_ids: Iterable[str] | None = None
) -> dict[str, str]:
    """Return the configurations, checkpoints and errors of trials as HTML, by trial.

    Args:
        sweep: The sweep.
        errors: The failures that Tune recorded, by trial.
        trial_ids: The trials to include; by default all.
    """
    known = {"metric": _metric_of(sweep)}
    made: Any = _environment().get_template("sections.html").make_module(known)
    ranked = {one.trial_id: one for one in sweep.ranking()}
    trial_ids = list(ranked if trial_ids is None else trial_ids)
    rows: dict[str, list[Mapping[str, Any]]] = {trial_id: [] for trial_id in trial_ids}
    for row in sweep.timeline.validations:
        if row["trial_id"] in rows:
            rows[row["trial_id"]].append(row)
    most = max(_FEWEST, min(_MOST, _ROWS // max(1, len(trial_ids))))
    found = {}
    for trial_id in trial_ids:
        of = _panel(sweep, ranked[trial_id], rows[trial_id], errors.get(trial_id), most)
        found[trial_id] = str(made.panel(of)).strip()
    return found


def _panel(
    sweep: Sweep, one: Ranked, rows: Sequence[Mapping[str, Any]], error: str | None, most: int
) -> dict[str, Any]:
    best = None if one.best is None else (*one.best.place, one.best.run)
    scores, metric = sweep.timeline.scores(one.trial_id), _metric_of(sweep)
    values = {(*scored.place, scored.run): scored.value(metric) for scored in scores}
    newest = sorted(rows, key=lambda row: (row["generation"], row["iteration"], row["run"]))[::-1]
    shown = []
    for n, row in enumerate(newest):
        place = (row["generation"], row["iteration"], row["run"])
        if n < most or place == best:
            own = {"score": values.get(place), "is_best": place == best}
            shown.append({**row, **own, "loads": _loads_one(sweep, row["checkpoint"])})
    return {
        "one": one,
        "status": one.trial.shown_status,
        "generation": 0 if one.best is None else one.best.generation,
        "generations": any(row["generation"] for row in shown),
        "config_json": json.dumps(finite_json(one.config), default=str),
        "rows": shown,
        "left_out": len(newest) - len(shown),
        "loads": None if one.best is None else _loads_one(sweep, one.best.checkpoint),
        "folder": _path(sweep, f"{sweep.path or '.'}/{one.trial.folder}"),
        "error": error,
    }


def _path(sweep: Sweep, path: str) -> str:
    """Return the path or URI by which another process finds one of the sweep's files."""
    if sweep.source is not None and path.startswith(f"{sweep.path}/"):
        return joined(sweep.source, path[len(sweep.path) + 1 :])
    return path


def _loads_one(sweep: Sweep, path: str) -> str:
    """Return the Python code that loads a checkpoint."""
    own = "" if sweep.source is not None else ", filesystem"
    return f"ray.tune.Checkpoint({_path(sweep, path)!r}{own})"


def render_page(
    name: str,
    sections: Mapping[str, str],
    *,
    script: str = "",
    panels: Mapping[str, str] | None = None,
    drawn: Mapping[str, Any] | None = None,
    live: Mapping[str, Any] | None = None,
) -> str:
    """Return a page as HTML.

    Args:
        name: The subject of the page.
        sections: Its sections as HTML, by name.
        script: The script that draws charts, if the page has to be self-contained.
        panels: The details of trials as HTML, by trial.
        drawn: The charts, by name.
        live: For a page that a server updates: the ``nonce`` of its scripts; its ``version``; the
            addresses of ``news``, ``chart``, ``trial`` and the ``vega`` script; and, if it exists,
            the address of the list of sweeps (``home``).
    """
    template = _environment().get_template("template.html")
    own: dict[str, Any] = {kind: _file(f"page.{kind}") for kind in ("css", "js")}
    own |= {"made": datetime.now(timezone.utc).timestamp(), "version": VERSION}
    shown = {"name": name, "sections": sections, "panels": panels or {}, "charts": drawn or {}}
    return template.render(**shown, script=script, live=live, **own)


def _file(name: str) -> str:
    return resources.files("tunekit.board").joinpath(name).read_text("utf-8")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_file),
    )
    environment.filters.update(
        number=_number,
        score=lambda value: format_score(finite_number(value), _NONE),
        seconds=_seconds,
        moment=_moment,
        json=script_json,
        raw=_raw,
    )
    return environment


def _loads(sweep: Sweep) -> str:
    """Return the Python code that loads the sweep."""
    if sweep.source is not None:
        return f"tunekit.load({sweep.source!r})"
    return f"tunekit.load({sweep.path!r}, storage_filesystem=filesystem)"


@lru_cache(maxsize=1)
def vega_script() -> str:
    """Return the script that draws the charts: Vega, Vega-Lite and Vega-Embed."""
    script = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub has no default
    return str(script).replace("</script", "<\\/script")


def script_json(value: Any) -> str:
    """Return JSON that is safe inside a script element: nothing in it looks like a tag.

    Example:
        >>> print(script_json({"a": "</script>"}))
        {"a": "\\u003c/script>"}
    """
    return json.dumps(finite_json(value), default=str, allow_nan=False).replace("<", "\\u003c")


def _number(value: Any) -> str:
    if value is None:
        return _NONE
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _raw(value: float) -> str:
    """Return a number in full, as JavaScript reads it.

    Example:
        >>> _raw(0.1), _raw(float("inf"))
        ('0.1', 'Infinity')
    """
    return repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")


def _seconds(value: float | None) -> str:
    """Return a duration as text.

    Example:
        >>> _seconds(4.25), _seconds(75), _seconds(7300)
        ('4.2 s', '75 s', '2 h 1 min')
    """
    if value is None:
        return _NONE
    return f"{value:.1f} s" if value < 60 else format_duration(value)


def _moment(value: float | None) -> str:
    if value is None:
        return _NONE
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
