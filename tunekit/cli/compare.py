"""``tunekit compare``: several sweeps, as data and as text."""

from __future__ import annotations

from typing import Any

import click
import pandas as pd

from tunekit.cli.layout import grid
from tunekit.core.words import duration, number, printable, setting
from tunekit.lab.comparison import SweepComparison, records

_SHOWN = ["sweep", "state", "best", "low", "high", "best_trial", "trials", "iterations"]
_SHOWN += ["validations", "driven_s"]


def comparison_as_data(found: SweepComparison) -> dict[str, Any]:
    """Return a comparison as JSON values: each table as a list of its rows."""
    tables = {"sweeps": found.table, "over_time": found.over_time}
    tables |= {"over_iterations": found.over_iterations}
    tables |= {"settings": found.settings, "searched": found.searched}
    known = {name: records(table) for name, table in tables.items()}
    return {"metric": found.metric, "mode": found.mode, **known}


def comparison_as_text(found: SweepComparison, width: int) -> str:
    """Return a comparison as text.

    Args:
        found: The comparison.
        width: The maximum width of a line.
    """
    tables = {
        f"{found.metric} ({found.mode})": _shown(found),
        "best after the same time": found.over_time,
        "best after the same number of iterations": found.over_iterations,
        "settings that differ": found.settings,
        "searched": found.searched,
    }
    parts = []
    for title, table in tables.items():
        if len(table):
            names = list(map(str, table.columns))
            rows = [[_cell(n, v) for n, v in row.items()] for row in records(table)]
            texts = [n for n, kind in enumerate(table.dtypes) if kind.kind == "O"]
            lines = grid([names, *rows], width, left=texts)
            parts.append("\n".join([click.style(printable(title), bold=True), *lines]))
    return "\n\n".join(parts)


def _shown(found: SweepComparison) -> pd.DataFrame:
    return found.table[_SHOWN].dropna(axis=1, how="all")


def _cell(name: str, value: Any) -> str:
    if name == "driven_s":
        return duration(value)
    if name == "iterations":
        return f"{value:.0f}"
    return "" if value is None else number(value) if type(value) is float else setting(value)
