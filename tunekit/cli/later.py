"""What later validations of a sweep have come to: as data, as text, and while they run."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

from tunekit.core.progress import counted
from tunekit.core.values import number as as_number
from tunekit.core.words import duration, number, printable
from tunekit.reading.later_scores import later_scores, names_in
from tunekit.reading.sweep import Sweep

__all__ = ["Progress", "later_as_data", "later_as_text"]

_WIDTH = 100
_MOST_ROWS = 20


def later_as_data(sweep: Sweep, name: str) -> dict[str, Any]:
    """Return the later validations of a name, in what JSON knows.

    - ``name``, ``function``; ``metric``: the one that the sweep is ranked by;
    - ``scored``, ``unscored``: how many checkpoints have a score, and have none;
    - ``rows``: as of :func:`tunekit.reading.later_scores.later_scores`.

    Args:
        sweep: The sweep.
        name: The name.
    """
    rows = later_scores(sweep, name)
    scored = sum(row["status"] == "validated" for row in rows)
    return {
        "name": name,
        "function": sweep.summary()["later"].get(name, {}).get("function"),
        "metric": sweep.metric,
        "scored": scored,
        "unscored": len(rows) - scored,
        "rows": rows,
    }


def later_as_text(known: Mapping[str, Any], path: str) -> str:
    """Return what :func:`later_as_data` has found as a table, and how to rank by it.

    Example:
        >>> row = {"trial_id": "a", "generation": 0, "iteration": 3, "status": "validated"}
        >>> row |= {"score": 0.9, "metrics": {"robust/accuracy": 0.7}, "cached": True}
        >>> known = {"name": "robust", "function": "evals:robust", "metric": "accuracy"}
        >>> print(later_as_text({**known, "scored": 1, "unscored": 0, "rows": [row]}, "/digits"))
        robust: evals:robust has validated 1 checkpoint (1 from the cache)
        <BLANKLINE>
        trial  iteration  accuracy  robust/accuracy
        a              3    0.9000           0.7000
        <BLANKLINE>
        tunekit best /digits --metric robust/accuracy --mode max    # or min
    """
    known = printable(known)
    rows = known["rows"]
    cached = sum(row["cached"] for row in rows)
    count = known["scored"]
    head = f"{known['name']}: {known['function']} has validated {count} checkpoint"
    head += "s" * (count != 1) + (f" ({cached} from the cache)" if cached else "")
    head += f", and not {known['unscored']}" if known["unscored"] else ""
    lines = [head, "", *_table(known, rows[:_MOST_ROWS])]
    if len(rows) > _MOST_ROWS:
        lines.append(f"and {len(rows) - _MOST_ROWS} more: --json has all")
    for row in rows:
        if row["status"] != "validated":
            lines.append(_cut(f"{row['trial_id']} at {row['iteration']}: {_said(row)}"))
    names = names_in(rows)
    if names:
        way = f"tunekit best {shlex.quote(path)} --metric {shlex.quote(names[0])} --mode max"
        lines += ["", f"{way}    # or min"]
    return "\n".join(lines)


def _said(row: Mapping[str, Any]) -> str:
    return f"{row['status'].replace('_', ' ')}: {row['reason'] or 'it has not ended'}"


def _table(known: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> list[str]:
    generations = any(row["generation"] for row in rows)
    columns = [
        ("trial", "<", [row["trial_id"] for row in rows]),
        (
            "iteration",
            ">",
            [f"{row['generation']}:" * generations + str(row["iteration"]) for row in rows],
        ),
    ]
    if any(row["score"] is not None for row in rows):
        columns.append((known["metric"], ">", [number(row["score"], "-") for row in rows]))
    left_out = []
    for name in names_in(known["rows"]):
        cells = [number(as_number(row["metrics"].get(name)), "-") for row in rows]
        column = (name, ">", cells)
        if sum(_width_of(one) + 2 for one in [*columns, column]) - 2 <= _WIDTH:
            columns.append(column)
        else:
            left_out.append(name)
    padded = [
        [f"{cell:{side}{_width_of((heading, side, cells))}}" for cell in (heading, *cells)]
        for heading, side, cells in columns
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if left_out:
        lines.append(_cut(f"Not shown: {', '.join(left_out)}. --json has all."))
    return lines


def _width_of(column: tuple[str, str, list[str]]) -> int:
    heading, _, cells = column
    return max(len(heading), *map(len, cells), 0)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1].rstrip() + "…"


class Progress:
    """One line on the terminal, written over and over; nothing where there is no terminal."""

    def __init__(self) -> None:
        #: Whether it shows anything.
        self.shows = sys.stderr.isatty()
        self._began = time.monotonic()
        self._written = False

    def show(self, counts: Mapping[str, int]) -> None:
        """Show how many validations are how far."""
        took = duration(time.monotonic() - self._began)
        line = f"{counted(counts)}; {counts['total']} in all, {took}"
        # What is logged meanwhile begins where the line does.
        sys.stderr.write(f"\r\x1b[K{_cut(line)}\r")
        sys.stderr.flush()
        self._written = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
