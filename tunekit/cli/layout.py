"""How wide lines may be, and tables that keep to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunekit.core.words import printable
from tunekit.terminal import terminal_width

__all__ = ["WIDTH", "Column", "cut", "grid", "table", "width_of_output"]

#: How wide tables are where nothing says how wide they may be: in a pipe or a file.
WIDTH = 100

#: A heading, where cells stand (``"<"`` or ``">"``), and the cells.
Column = tuple[str, str, Sequence[str]]


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


def table(columns: Sequence[Column], width: int, more: Sequence[Column] = ()) -> list[str]:
    """Return columns as lines; the widest columns give way until lines fit.

    Args:
        columns: The columns.
        width: How wide lines may be.
        more: Columns that are shown as far as they fit; the last line names the others.

    Example:
        >>> trial, lr = ("trial", "<", ["a"]), ("lr", ">", ["0.1"])
        >>> table([trial], 14, more=[lr, ("dropout", ">", ["0.5"])])
        ['trial   lr', 'a      0.1', 'Not shown: dr…']
    """
    shown, left_out = list(columns), []
    for column in more:
        if sum(map(_width_of, [*shown, column])) + 2 * len(shown) <= width:
            shown.append(column)
        else:
            left_out.append(column[0])
    widths = [_width_of(column) for column in shown]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    padded = [
        [f"{cut(cell, wide):{side}{wide}}" for cell in (heading, *cells)]
        for (heading, side, cells), wide in zip(shown, widths, strict=True)
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if left_out:
        lines.append(cut(f"Not shown: {', '.join(left_out)}. --json has all.", width))
    return lines


def _width_of(column: Column) -> int:
    heading, _, cells = column
    return max(len(heading), *map(len, cells), 0)


def grid(rows: Sequence[Sequence[str]], width: int, left: Collection[int] = (0,)) -> list[str]:
    """Return rows of cells as lines, as :func:`table` does.

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
    columns = zip(*(printable(list(row)) for row in rows), strict=True)
    return table(
        [(head, "<" if n in left else ">", cells) for n, (head, *cells) in enumerate(columns)],
        width,
    )
