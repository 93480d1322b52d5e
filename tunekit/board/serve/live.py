"""The live page of a sweep that is served."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from html import escape
from typing import Any

from tunekit.board.page.charts import CHARTS
from tunekit.board.page.figures import Findings
from tunekit.board.page.page import contents, in_script, render_panels, sections_of
from tunekit.board.serve.catalogue import Entry
from tunekit.clock import Clock, SystemClock
from tunekit.core.pace import Pace
from tunekit.errors import TunekitError
from tunekit.reading.sweep import Follower

# The minimum number of seconds between two reads of a journal, however many browsers show its page.
_INTERVAL_S = 0.5
# The shares of the time that may go into the page's text, and into each of its charts.
_TEXT = "text"
_TEXT_SHARE, _CHART_SHARE, _CHART_LEAST_S = 0.3, 0.03, 2.0


class LiveSweep:
    """Follow a sweep, and keep its page up to date.

    Each request for updates does one piece of work, so none waits for all charts. Work is limited
    to a share of the time, however large the sweep is; changes in the meantime are shown with the
    next update.

    Each part and each chart has the version of the page at which it last changed. A version also
    identifies the server's run: a browser with a version from another run gets all parts.

    Args:
        entry: Where the sweep is.
        options: The metric and the mode, as for :func:`tunekit.load`.
        clock: The clock.
    """

    def __init__(
        self,
        entry: Entry,
        options: Mapping[str, Any],
        clock: Clock | None = None,
    ):
        self.entry, self._clock = entry, clock or SystemClock()
        #: Why the page cannot be updated at the moment; empty if it can.
        self.trouble = ""
        self._name, self._number = secrets.token_hex(8), 0
        # By name, in order: the version of the last change, and the HTML or JSON.
        self._parts: dict[str, tuple[int, str]] = {}
        self._charts: dict[str, tuple[int, str]] = {}
        self._follower = Follower(
            entry.filesystem, entry.path, entry.source, **options, clock=self._clock
        )
        self._reads = Pace(1.0, _INTERVAL_S)
        self._drawn: dict[str, dict[str, Any]] = {}
        # The parts that are out of date, and when each may be updated again.
        self._stale: set[str] = set()
        self._paces = {_TEXT: Pace(_TEXT_SHARE)}
        self._paces |= {name: Pace(_CHART_SHARE, _CHART_LEAST_S) for name in CHARTS}
        self._working = threading.Lock()

    @property
    def version(self) -> str:
        """Return the version, as browsers send it."""
        return f"{self._name}-{self._number}"

    @property
    def parts(self) -> dict[str, str]:
        """Return the parts as HTML, by name, in order."""
        return {name: text for name, (_, text) in self._parts.items()}

    @property
    def charts(self) -> dict[str, str]:
        """Return the charts as JSON, by name."""
        return {name: text for name, (_, text) in self._charts.items()}

    def first(self) -> None:
        """Prepare the first version of the page."""
        with self._working:
            if not self._parts:
                self.step()

    def news(self, version: str) -> dict[str, Any]:
        """Do a piece of work; return the changes since a browser's version.

        Returns:
            The new ``version``; the names of all parts, in ``order``; the ``parts`` that have
            changed, as HTML; the names of the ``charts`` that have changed; the ``trouble``; and
            whether ``more`` will follow at once.
        """
        with self._working:
            more = self.step()
            name, _, number = version.rpartition("-")
            known = int(number) if name == self._name and number.isdecimal() else -1
            return {
                "version": self.version,
                "order": list(self._parts),
                "parts": {name: text for name, (at, text) in self._parts.items() if at > known},
                "charts": [name for name, (at, _) in self._charts.items() if at > known],
                "trouble": self.trouble,
                "more": more,
            }

    def step(self) -> bool:
        """Read new events, and update the part that is due first; return whether one was due."""
        began = self._clock.monotonic()
        try:
            if self._reads.due(began):
                if self._follower.poll():
                    self._stale = {_TEXT, *CHARTS}
                self._reads.took(began, self._clock.monotonic())
                self.trouble = ""
        except (OSError, TunekitError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            if not self._parts:
                self._show({"summary": _trouble(self.entry.name, self.trouble)})
            return False
        for name, pace in self._paces.items():
            if name in self._stale and pace.due(began):
                self._stale.discard(name)
                self._tell() if name == _TEXT else self._draw(name)
                pace.took(began, self._clock.monotonic())
                return True
        return False

    def panel(self, trial_id: str) -> str | None:
        """Return the details of a trial as HTML; None if there is no such trial."""
        with self._working:
            sweep = self._follower.sweep
            if trial_id not in sweep.timeline.trials:
                return None
            found = Findings(sweep)
            return render_panels(found, sweep.trial_errors(), [trial_id])[trial_id]

    def _tell(self) -> None:
        self._show(sections_of(contents(Findings(self._follower.sweep), self._drawn)))

    def _draw(self, name: str) -> None:
        drawn = CHARTS[name](Findings(self._follower.sweep))
        if (drawn is None) == (name in self._drawn):
            self._stale.add(_TEXT)  # it contains a placeholder for each chart
        self._drawn.pop(name, None)
        if drawn is not None:
            self._drawn[name] = drawn
            self._charts |= self._marked({name: in_script(drawn)}, self._charts)

    def _show(self, parts: Mapping[str, str]) -> None:
        """Show these parts, in this order, and no others."""
        self._parts = self._marked(parts, self._parts)

    def _marked(
        self, texts: Mapping[str, str], known: Mapping[str, tuple[int, str]]
    ) -> dict[str, tuple[int, str]]:
        """Return texts with the version at which they changed last."""
        self._number += 1
        before = {name: one for name, one in known.items() if texts.get(name) == one[1]}
        return {name: before.get(name, (self._number, text)) for name, text in texts.items()}


def _trouble(name: str, text: str) -> str:
    return (
        f"<header><h1>{escape(name)}</h1></header><section><h2>It cannot be read</h2>"
        f"<p>{escape(text)}</p></section>"
    )
