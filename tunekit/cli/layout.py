"""The width of the output, and tables that fit into it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Sequence

from tunekit.messages.formatting import printable

#: The width of tables if the output has no width: in a pipe or a file.
WIDTH = 100

# Narrower tables would show nothing.
_NARROWEST = 40


def terminal_width() -> int | None:
    """Return the maximum width of an output line, in characters.

    Returns:
        The environment variable ``COLUMNS``, or else the width of the terminal; None if the output
        goes into a pipe or a file, where lines may have any length.

    Example:
        >>> import os
        >>> os.environ["COLUMNS"] = "120"
        >>> terminal_width()
        120
        >>> del os.environ["COLUMNS"]
    """
    is_set = os.environ.get("COLUMNS", "").isdigit()
    if not (is_set or (sys.stdout is not None and sys.stdout.isatty())):
        return None
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def truncate(line: str, width: int) -> str:
    """Return a line, truncated to a width.

    Example:
        >>> truncate("too many words", 9), truncate("few words", 9)
        ('too many…', 'few words')
    """
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def format_table(
    rows: Sequence[Sequence[str]],
    width: int | None,
    left: Collection[int] = (0,),
    optional: int = 0,
) -> list[str]:
    """Return rows of cells as lines; the widest columns are narrowed until the lines fit.

    Args:
        rows: The cells, with the heading first.
        width: The maximum width of a line; None, for a pipe or a file: :data:`WIDTH`.
        left: The columns to align left.
        optional: How many of the last columns are shown only if they fit; a last line names those
            that are omitted.

    Example:
        >>> format_table([["sweep", "best"], ["asha", "0.9"]], 20)
        ['sweep  best', 'asha    0.9']
        >>> format_table([["name"], ["a very long name"]], 10)
        ['name', 'a very lo…']
        >>> format_table([["trial", "lr", "dropout"], ["a", "0.1", "0.5"]], 14, optional=2)
        ['trial   lr', 'a      0.1', 'Not shown: dr…']
    """
    width = width or WIDTH
    columns = list(zip(*(printable(list(row)) for row in rows), strict=True))
    widths: list[int] = []
    shown, left_out = [], []
    for place, cells in enumerate(columns):
        wide = max(map(len, cells))
        fits = sum(widths) + 2 * len(widths) + wide <= width
        if place < len(columns) - optional or fits:
            widths.append(wide)
            shown.append((cells, "<" if place in left else ">"))
        else:
            left_out.append(cells[0])
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    padded = [
        [f"{truncate(cell, wide):{side}{wide}}" for cell in cells]
        for (cells, side), wide in zip(shown, widths, strict=True)
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if left_out:
        lines.append(truncate(f"Not shown: {', '.join(left_out)}. --json has all.", width))
    return lines
