"""How wide lines may be, and tables that keep to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunekit.core.words import printable
from tunekit.terminal import terminal_width

__all__ = ["WIDTH", "cut", "grid", "width_of_output"]

#: How wide tables are where nothing says how wide they may be: in a pipe or a file.
WIDTH = 100


def width_of_output() -> int:
    """Return how wide lines may be: as the terminal is; :data:`WIDTH` in a pipe or a file."""
    return terminal_width() or WIDTH


def cut(line: str, width: int) -> str:
    """Return a line, if it is short enough; otherwise as much of it as fits.

    Example:
        >>> cut("too many words", 9), cut("few words", 9)
        ('too many…', 'few words')
    """
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def grid(rows: Sequence[Sequence[str]], width: int, left: Collection[int] = (0,)) -> list[str]:
    """Return rows of cells as lines; the widest columns give way until lines fit.

    Args:
        rows: The cells, with the heading first.
        width: How wide lines may be.
        left: The columns whose cells stand at the left.

    Example:
        >>> for line in grid([["sweep", "best"], ["asha", "0.9"]], 20):
        ...     print(line)
        sweep  best
        asha    0.9
        >>> grid([["name"], ["a very long name"]], 10)
        ['name', 'a very lo…']
    """
    if not rows:
        return []
    rows = [printable(list(row)) for row in rows]
    columns = range(len(rows[0]))
    widths = [max(len(row[i]) for row in rows) for i in columns]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [cut(row[i], widths[i]) for i in columns]
        padded = [
            f"{cell:<{widths[i]}}" if i in left else f"{cell:>{widths[i]}}"
            for i, cell in enumerate(cells)
        ]
        lines.append("  ".join(padded).rstrip())
    return lines
