"""Several sweeps on one page, as :func:`tunekit.compare` compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tunekit.comparison import SweepComparison
from tunekit.core.problems import Problems
from tunekit.core.values import writable
from tunekit.page import charts
from tunekit.page.page import section, shell, vega
from tunekit.storage import replace_file

__all__ = ["comparison_page", "write_comparison"]

_SECTIONS = ("best", "progress", "searched", "settings")


def write_comparison(found: SweepComparison, path: str | Path) -> Path:
    """Write a comparison of sweeps: one HTML file, which needs no network and no other file.

    It has what :class:`tunekit.comparison.SweepComparison` has: the best scores with their
    intervals, the best so far over time and over iterations, where each sweep has searched, and the
    settings in which they differ.

    Args:
        found: The comparison; :func:`tunekit.compare` makes it.
        path: The file; it is replaced if it exists.

    Returns:
        The file.

    Raises:
        tunekit.ConfigError: If ``path`` is in no folder, or is one.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from tunekit.sweep import Sweep
        >>> found = SweepComparison("accuracy", "max", ["a", "b"], [Sweep([]), Sweep([])])
        >>> file = write_comparison(found, Path(tempfile.mkdtemp(), "compare.html"))
        >>> "2 sweeps" in file.read_text()
        True
    """
    path = Path(path)
    problems = Problems("write_comparison")
    if path.is_dir():
        problems.add(f"path={str(path)!r} is a folder. Pass the name of a file, such as c.html.")
    elif not path.parent.is_dir():
        problems.add(f"path={str(path)!r} is in no folder that exists. Make {path.parent} first.")
    problems.raise_any()
    replace_file(path, writable(comparison_page(found)).encode())
    return path


def comparison_page(
    found: SweepComparison,
    links: Mapping[str, str] | None = None,
    live: Mapping[str, Any] | None = None,
) -> str:
    """Return a comparison of sweeps as HTML.

    Args:
        found: The comparison.
        links: Where the sweeps' own pages are, by name.
        live: As for :func:`~tunekit.page.page.shell`, if it is served.
    """
    told = _contents(found)
    sections = {
        name: section("compare.html", name, **told, links=links or {}) for name in _SECTIONS
    }
    shown = {name: text for name, text in sections.items() if text}
    script = "" if live else vega()
    title = " and ".join(found.names) if len(found.names) < 4 else f"{len(found.names)} sweeps"
    return shell(title, shown, script=script, drawn=told["charts"], live=live)


def _contents(found: SweepComparison) -> dict[str, Any]:
    """Return everything that the page says, as data."""
    rows = _rows(found.table)
    drawn: dict[str, Any] = {}
    scored = [row for row in rows if row["best"] is not None]
    if scored:
        shown = ("sweep", "best", "low", "high")
        bests = [{**{n: row[n] for n in shown}, "trial": row["best_trial"]} for row in scored]
        drawn["bests"] = charts.bests_chart(bests, found.metric)
        progress = _rows(found.progress)
        for name, field, title in (
            ("over_time", "driven_s", "seconds since the sweep began, without breaks"),
            ("over_iterations", "iterations", "iterations of all trials"),
        ):
            drawn[name] = charts.progress_chart(progress, field, title, found.metric)
    return {
        "name": "comparison",
        "names": list(found.names),
        "metric": found.metric,
        "mode": found.mode,
        "rows": rows,
        "charts": drawn,
        "over_time": _rows(found.over_time),
        "over_iterations": _rows(found.over_iterations),
        "searched": _rows(found.searched),
        "settings": _rows(found.settings),
    }


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    known = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]
