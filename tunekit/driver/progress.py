"""Show the progress of a sweep while it runs: in a terminal, a notebook, or a log file."""

from __future__ import annotations

import contextlib
import html
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tunekit._ray.progress import is_notebook
from tunekit.core.events import Event
from tunekit.core.timing import Pace
from tunekit.errors import extra
from tunekit.messages.progress import SweepProgress

# The seconds between two looks, and between two status lines in a file; looks take at most a
# twentieth of the driver's time.
_LOOK_S, _LINE_S, _SHARE = 0.5, 60.0, 0.05


class Display(Protocol):
    """Show lines, and below them one that changes."""

    def add(self, lines: Sequence[str]) -> None:
        """Show further lines, which stay."""

    def status(self, line: str) -> None:
        """Show the line that changes."""

    def close(self) -> None:
        """Leave the lines as they are, without the one that changes."""


class Terminal:
    """Change a line in place."""

    def __init__(self) -> None:
        self._bar = tqdm(bar_format="{desc}", file=sys.stderr, leave=False, dynamic_ncols=True)

    def add(self, lines: Sequence[str]) -> None:
        """See :class:`Display`."""
        for line in lines:
            tqdm.write(line, file=sys.stderr)

    def status(self, line: str) -> None:
        """See :class:`Display`."""
        self._bar.set_description_str(line)

    def close(self) -> None:
        """See :class:`Display`."""
        self._bar.close()


class Notebook:
    """Change the output of a cell."""

    def __init__(self) -> None:
        with extra("notebook"):  # whatever runs a notebook has it
            from IPython.display import HTML, display

        self._html, self._lines, self._status = HTML, list[str](), ""
        self._handle: Any = display(HTML(""), display_id=True)

    def add(self, lines: Sequence[str]) -> None:
        """See :class:`Display`."""
        self._lines += lines
        self._show()

    def status(self, line: str) -> None:
        """See :class:`Display`."""
        self._status = line
        self._show()

    def close(self) -> None:
        """See :class:`Display`."""
        self.status("")

    def _show(self) -> None:
        lines = map(html.escape, [*self._lines, *filter(None, [self._status])])
        self._handle.update(self._html(f"<pre>{'<br>'.join(lines)}</pre>"))


class File:
    """Print a line now and then, where the output is no terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pace = Pace(1.0, _LINE_S)
        self._pace.ran(began=clock(), ended=clock())

    def add(self, lines: Sequence[str]) -> None:
        """See :class:`Display`."""
        for line in lines:
            print(line, file=sys.stderr, flush=True)

    def status(self, line: str) -> None:
        """See :class:`Display`."""
        if self._pace.is_ready(now := self._clock()):
            self._pace.ran(now, now)
            self.add([line])

    def close(self) -> None:
        """See :class:`Display`."""


class Progress:
    """Show the progress of a sweep from the events that its driver records.

    Args:
        display: Where to show it; None: as fits the output of this process.
    """

    def __init__(self, display: Display | None = None):
        self._display = display
        self._sweep: SweepProgress | None = None
        self._new: list[Event] = []
        self._pace = Pace(_SHARE, _LOOK_S)

    def begin(self, sweep: SweepProgress) -> None:
        """Begin to show a sweep."""
        self._sweep, self._display = sweep, self._display or _fitting()

    def see(self, event: Event) -> None:
        """Keep an event for the next look."""
        if self._sweep is not None:
            self._new.append(event)

    def look(self, status: Callable[[SweepProgress], str]) -> None:
        """Show what is new, at most twice a second.

        Args:
            status: Puts the current state into a line.
        """
        began = time.monotonic()
        if self._sweep is None or self._display is None or not self._pace.is_ready(began):
            return
        new, self._new = self._new, []
        try:
            self._display.add(self._sweep.apply(new))
            self._display.status(status(self._sweep))
        except (OSError, ValueError):  # the terminal is gone, or the stream is closed
            self._sweep = None  # the sweep goes on
        self._pace.ran(began, time.monotonic())

    def close(self, path: str) -> None:
        """Show the best trials, and end.

        Args:
            path: The experiment's folder.
        """
        sweep, display = self._sweep, self._display
        if sweep is not None and display is not None:
            self._sweep = None
            with contextlib.suppress(OSError, ValueError):  # as in look
                display.add(sweep.apply(self._new))
                display.close()
                display.add(sweep.closing(path))


def _fitting() -> Display:
    """Return the display that fits the output of this process."""
    if is_notebook():
        return Notebook()
    return Terminal() if sys.stderr.isatty() else File()


@contextlib.contextmanager
def above_the_status() -> Iterator[None]:
    """Show log messages above the line that changes, if there is one."""
    loggers = [logging.getLogger(name) for name in (None, "tunekit", "ray")]
    # Those without a handler would get one, and show each message again.
    with logging_redirect_tqdm([one for one in loggers if any(map(_is_console, one.handlers))]):
        yield


def _is_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)
