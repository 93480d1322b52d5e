"""``tunekit compare``: several sweeps side by side, as data and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pandas as pd

from tunekit.cli.layout import grid
from tunekit.core.words import duration, number, printable, setting
from tunekit.lab.comparison import SweepComparison

__all__ = ["comparison_as_data", "comparison_as_text"]


def comparison_as_data(found: SweepComparison) -> dict[str, Any]:
    """Return a comparison in what JSON knows: each table as a list of its rows."""
    tables = {
        "sweeps": found.table,
        "over_time": found.over_time,
        "over_iterations": found.over_iterations,
        "settings": found.settings,
        "searched": found.searched,
    }
    known = {name: _rows(table) for name, table in tables.items()}
    return {"metric": found.metric, "mode": found.mode, **known}


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    known = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]


def comparison_as_text(found: SweepComparison, width: int) -> str:
    """Return a comparison as a person reads it.

    Args:
        found: The comparison.
        width: How wide lines may be.
    """
    parts = [
        [
            click.style(printable(f"{found.metric} ({found.mode})"), bold=True),
            *_summary(found, width),
        ]
    ]
    over: tuple[tuple[str, pd.DataFrame, Callable[[float], str]], ...] = (
        ("best after the same time", found.over_time, duration),
        (
            "best after the same number of iterations",
            found.over_iterations,
            lambda n: f"{n:.0f}",
        ),
    )
    for title, table, told in over:
        if len(table):
            points = [told(at) for at in table.iloc[:, 0]]
            cells = [["", *points]]
            for name in found.names:
                cells.append([name, *(_score(value) for value in table[name])])
            parts.append([click.style(title, bold=True), *grid(cells, width)])
    for title, table in (("settings that differ", found.settings), ("searched", found.searched)):
        if len(table):
            cells = [["", *found.names]]
            for name, *values in table.itertuples(index=False, name=None):
                cells.append([str(name), *map(_told, values)])
            lines = grid(cells, width, left=range(len(cells[0])))
            parts.append([click.style(title, bold=True), *lines])
    return "\n\n".join("\n".join(part) for part in parts)


def _summary(found: SweepComparison, width: int) -> list[str]:
    heads = ["", "state", "best", "trial", "trials", "iterations", "validated", "time"]
    rows = [heads]
    for _, row in found.table.iterrows():
        best = _score(row["best"])
        if row["low"] == row["low"]:
            best += f" ({number(row['low'])} to {number(row['high'])})"
        rows.append(
            [
                row["sweep"],
                row["state"],
                best,
                row["best_trial"] if isinstance(row["best_trial"], str) else "",
                str(row["trials"]),
                str(row["iterations"]),
                str(row["validations"]),
                duration(row["driven_s"]),
            ]
        )
    return grid(rows, width, left=(0, 1, 3))


def _score(value: float) -> str:
    return number(value) if value == value else ""


def _told(value: Any) -> str:
    return "" if value is None else setting(value)
