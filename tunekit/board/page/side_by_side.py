"""Several sweeps on one page, as :func:`tunekit.lab.compare` compares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunekit.board.page import charts
from tunekit.board.page.page import file_at, section, shell, vega
from tunekit.core.values import writable
from tunekit.journal.storage import replace_file
from tunekit.lab.comparison import SweepComparison, records

__all__ = ["comparison_page", "write_comparison"]

_SECTIONS = ("best", "progress", "searched", "settings")


def write_comparison(found: SweepComparison, path: str | Path) -> Path:
    """Write a comparison of sweeps: one HTML file, which needs no network and no other file.

    It has what :class:`tunekit.lab.comparison.SweepComparison` has: the best scores with their
    intervals, the best so far over time and over iterations, where each sweep has searched, and the
    settings in which they differ.

    Args:
        found: The comparison; :func:`tunekit.lab.compare` makes it.
        path: The file; it is replaced if it exists.

    Returns:
        The file.

    Raises:
        tunekit.errors.ConfigError: If ``path`` is in no folder, or is one.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile
        >>> from tunekit.reading.sweep import Sweep
        >>> found = SweepComparison("accuracy", "max", ["a", "b"], [Sweep([]), Sweep([])])
        >>> file = write_comparison(found, Path(tempfile.mkdtemp(), "compare.html"))
        >>> "2 sweeps" in file.read_text()
        True
    """
    path = file_at(path, "write_comparison")
    replace_file(path, writable(comparison_page(found)).encode())
    return path


def title_of(names: Sequence[str]) -> str:
    """Return what a comparison of sweeps is called.

    Example:
        >>> title_of(["asha", "pbt"]), title_of(["a", "b", "c", "d"])
        ('asha and pbt', '4 sweeps')
    """
    return " and ".join(names) if len(names) < 4 else f"{len(names)} sweeps"


def comparison_page(found: SweepComparison) -> str:
    """Return a comparison of sweeps as HTML that needs no other file."""
    told = _contents(found)
    made = {name: section("compare.html", name, **told) for name in _SECTIONS}
    sections = {name: text for name, text in made.items() if text}
    return shell(title_of(found.names), sections, script=vega(), drawn=told["charts"])


def _contents(found: SweepComparison) -> dict[str, Any]:
    """Return everything that the page says, as data."""
    rows = records(found.table)
    drawn: dict[str, Any] = {}
    if any(row["best"] is not None for row in rows):
        progress = records(found.progress)
        unit, seconds = charts.unit_of(max((row["driven_s"] for row in progress), default=0.0))
        for row in progress:
            row["driven"] = row["driven_s"] / seconds
        for name, field, title in (
            ("over_time", "driven", f"{unit} since the sweep began, without breaks"),
            ("over_iterations", "iterations", "iterations of all trials"),
        ):
            drawn[name] = charts.progress_chart(progress, field, title, found.metric)
    return {
        "name": "comparison",
        "names": list(found.names),
        "metric": found.metric,
        "mode": found.mode,
        "rows": rows,
        "intervals": any(row["low"] is not None for row in rows),
        "charts": drawn,
        "over_time": records(found.over_time),
        "over_iterations": records(found.over_iterations),
        "searched": records(found.searched),
        "settings": records(found.settings),
    }
