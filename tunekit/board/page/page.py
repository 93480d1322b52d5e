"""The report of a sweep: figures, charts and text in one HTML file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem

from tunekit.board.page.charts import (
    MOST_BARS,
    MOST_CURVES,
    MOST_DOTS,
    MOST_POINTS,
    OTHER_POINTS,
    draw,
)
from tunekit.board.page.figures import Findings, panels
from tunekit.core.failures import kind_of
from tunekit.core.metrics import plain
from tunekit.core.problems import Problems
from tunekit.core.values import writable
from tunekit.core.words import duration, number
from tunekit.extras import extra
from tunekit.journal.storage import replace_file
from tunekit.reading.findings import causes_of, failures_of, later_scores
from tunekit.reading.sweep import Sweep
from tunekit.version import VERSION

with extra("report"):
    import jinja2
    import vl_convert


#: The sections of the page, in order.
SECTIONS = (
    "summary",
    "front",
    "ranking",
    "curves",
    "timeline",
    "later",
    "failures",
    "run",
    "next",
)
_TABLE, _CAUSES = 20, 50
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
        path: The file; it is replaced if it exists. By default ``report.html`` in the experiment's
            folder, or, if that is not local, the experiment's name and ``-report.html`` here.

    Returns:
        The file.

    Raises:
        tunekit.errors.ConfigError: If ``path`` is a folder, or its folder does not exist.
        OSError: If the file cannot be written, or the sweep's storage fails.

    Example:
        >>> import tempfile
        >>> file = write_page(Sweep([]), Path(tempfile.mkdtemp(), "report.html"))
        >>> "No trial has begun" in file.read_text()
        True
    """
    path, problems = Path(path or _default_file(sweep)), Problems("write_page")
    if path.is_dir():
        problems.add(f"path={str(path)!r} is a folder. Pass a file, such as report.html.")
    elif not path.parent.is_dir():
        problems.add(
            f"path={str(path)!r} is in a folder that does not exist. Create {path.parent} first."
        )
    problems.raise_any()
    replace_file(path, writable(render(sweep)).encode())
    return path


def _default_file(sweep: Sweep) -> Path:
    if isinstance(sweep.filesystem, LocalFileSystem):
        return Path(sweep.path, "report.html")
    return Path(f"{Path(sweep.path).name or 'sweep'}-report.html")


def render(sweep: Sweep) -> str:
    """Return the report of a sweep as HTML."""
    found = Findings(sweep)
    told = contents(found)
    in_full = render_panels(found, told["errors"])
    sections = sections_of(told)
    return shell(told["name"], sections, script=vega(), panels=in_full, drawn=told["charts"])


def contents(found: Findings, drawn: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the contents of the report as data.

    Args:
        found: The results of the sweep.
        drawn: Its charts by name, if they are already drawn.
    """
    sweep = found.sweep
    ranked, best = found.ranked, found.best
    summary, errors = sweep.summary(), sweep.trial_errors()
    failures = failures_of(sweep.timeline, errors)
    causes = causes_of(failures)
    charts = draw(found) if drawn is None else drawn
    columns = list(dict.fromkeys(name for one in ranked for name in one.hyperparameters))
    return {
        "name": Path(sweep.path).name or "sweep",
        "summary": summary,
        "metric": found.metric,
        "names": sweep.timeline.names,
        "mode": sweep.mode,
        "ranked": ranked,
        "most": _TABLE,
        "columns": columns,
        "texts": {name for name in columns if not _are_numbers(found, name)},
        "trial_names": found.names,
        "charts": charts,
        "cut": {
            "curves": max(0, len(ranked) - MOST_CURVES),
            "dots": MOST_DOTS,
            "points": MOST_POINTS,
            "others": OTHER_POINTS,
            "bars": max(0, len(ranked) - MOST_BARS),
        },
        "later": [
            later_scores(sweep.timeline, name, sweep.metric, sweep.mode)
            for name in summary["later"]
        ],
        "errors": errors,
        "causes": [
            {
                "kind": kind_of(cause[0]["reason"] or cause[0]["status"]),
                "reason": cause[0]["reason"] or "no reason is known",
                "details": next((row["details"] for row in cause if row["details"]), None),
                "failures": cause,
            }
            for cause in causes[:_CAUSES]
        ],
        "more_causes": max(0, len(causes) - _CAUSES),
        "sessions": sweep.sessions,
        "settings": sweep.newest_session,
        "best": best,
        "loads": _loads(sweep),
        "finds": f".best({sweep.metric!r}, {sweep.mode!r})",
        "resumes": None if sweep.source is None else _resumes(sweep, shlex.quote(sweep.source)),
    }


def _resumes(sweep: Sweep, source: str) -> str:
    """Return the command that continues a sweep."""
    known = sweep.newest_session
    if "followed" in known:
        return f"tunekit validate {source} --fn {known.get('function')} --follow"
    trainable = "" if known.get("trainable") else " --trainable YOUR_MODULE:YOUR_TRAINABLE"
    return f"tunekit resume {source}{trainable}"


def _are_numbers(found: Findings, name: str) -> bool:
    """Return whether all values of a hyperparameter are numbers."""
    values = [one.hyperparameters.get(name) for one in found.ranked]
    return all(isinstance(value, (int, float, type(None))) for value in values) and not any(
        isinstance(value, bool) for value in values
    )


def sections_of(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the sections of the page as HTML, in order, by name.

    Args:
        told: As returned by :func:`contents`.
    """
    made = _environment().get_template("sections.html").make_module(dict(told))
    order = list(SECTIONS)
    if told["causes"] and told["best"] is None:  # there is nothing else to show
        order.remove("failures")
        order.insert(1, "failures")
    every = {name: str(getattr(made, f"section_{name}")()).strip() for name in order}
    return {name: text for name, text in every.items() if text}


def index_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the list of several sweeps, as HTML.

    Args:
        rows: As returned by :meth:`tunekit.board.serve.catalogue.Catalogue.outlines`.
    """
    made: Any = _environment().get_template("index.html").make_module({"rows": rows})
    return str(made.section_sweeps()).strip()


def render_panels(
    found: Findings,
    errors: Mapping[str, str],
    trial_ids: Iterable[str] | None = None,
) -> dict[str, str]:
    """Return the details of trials as HTML, by trial.

    Args:
        found: The results of the sweep.
        errors: The failures that Tune recorded, by trial.
        trial_ids: The trials to include; by default all.
    """
    made: Any = _environment().get_template("sections.html").make_module({"metric": found.metric})
    shown = panels(found, errors, trial_ids)
    return {trial_id: str(made.panel(one)).strip() for trial_id, one in shown.items()}


def shell(
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
        panels: The details of trials, likewise, by trial.
        drawn: The charts, by name.
        live: For a page that a server updates: the ``nonce`` of its scripts; its ``version``; the
            addresses of ``news``, ``chart``, ``trial`` and the ``vega`` script; and, if it exists,
            the address of the list of sweeps (``home``).
    """
    files = {kind: _file(f"page.{kind}") for kind in ("css", "js")}
    return (
        _environment()
        .get_template("template.html")
        .render(
            name=name,
            sections=sections,
            script=script,
            panels=panels or {},
            charts=drawn or {},
            live=live,
            made=datetime.now(timezone.utc).timestamp(),
            version=VERSION,
            **files,
        )
    )


def _file(name: str) -> str:
    return resources.files("tunekit.board.page").joinpath(name).read_text("utf-8")


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
        score=lambda value: number(value, _NONE),
        seconds=_seconds,
        moment=_moment,
        json=in_script,
        raw=_raw,
    )
    return environment


def _loads(sweep: Sweep) -> str:
    """Return the Python code that loads the sweep."""
    if sweep.source is not None:
        return f"tunekit.load({sweep.source!r})"
    return f"tunekit.load({sweep.path!r}, storage_filesystem=filesystem)"


@lru_cache(maxsize=1)
def vega() -> str:
    """Return the script that draws the charts: Vega, Vega-Lite and Vega-Embed."""
    script = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub has no default
    return str(script).replace("</script", "<\\/script")


def in_script(value: Any) -> str:
    """Return JSON that is safe inside a script element: nothing in it looks like a tag.

    Example:
        >>> print(in_script({"a": "</script>"}))
        {"a": "\\u003c/script>"}
    """
    return json.dumps(plain(value), default=str, allow_nan=False).replace("<", "\\u003c")


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
    return f"{value:.1f} s" if value < 60 else duration(value)


def _moment(value: float | None) -> str:
    if value is None:
        return _NONE
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
