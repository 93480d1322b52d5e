"""How wide the terminal is."""

from __future__ import annotations

import os
import shutil
import sys

__all__ = ["terminal_width"]

# Narrower than that, nothing can be told.
_NARROWEST = 40


def terminal_width() -> int | None:
    """Return how many characters a line of what is printed may have.

    Returns:
        What the environment variable ``COLUMNS`` says, otherwise the width of the terminal; None if
        what is printed goes into a pipe or a file, where lines may be of any length.

    Example:
        >>> import os
        >>> os.environ["COLUMNS"] = "120"
        >>> terminal_width()
        120
        >>> del os.environ["COLUMNS"]
    """
    told = os.environ.get("COLUMNS", "").isdigit()
    if not (told or (sys.stdout is not None and sys.stdout.isatty())):
        return None
    return max(_NARROWEST, shutil.get_terminal_size().columns)
