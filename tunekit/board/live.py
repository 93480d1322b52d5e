"""The live page of a sweep."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from tunekit.board.charts import draw_charts
from tunekit.board.page import render_panels, render_sections, report_data, script_json
from tunekit.core.timing import Clock, Pace
from tunekit.reading.catalogue import Entry
from tunekit.reading.load import Follower

# The minimum number of seconds between two reads of a journal, however many browsers show its page.
_INTERVAL_S = 0.5


class LiveSweep:
    """Follow a sweep, and keep its page up to date.

    Each request for updates brings the text or the charts up to date, so the text does not wait for
    the charts. Either is limited to a share of the time, however large the sweep is; changes in the
    meantime are shown with the next update.

    Args:
        entry: Where the sweep is.
        options: The metric and the mode, as for :func:`tunekit.load`.
        clock: The clock.
    """

    def __init__(self, entry: Entry, options: Mapping[str, Any], clock: Clock | None = None):
        self.entry, self._clock = entry, clock or time
        #: The parts as HTML, in order, and the charts as JSON, both by name.
        self.parts: dict[str, str] = {}
        self.charts: dict[str, str] = {}
        self._follower = Follower(
            entry.filesystem, entry.path, entry.source, **options, clock=self._clock
        )
        self._drawn: dict[str, Any] = {}
        # What reads the journal and updates each half of the page, and when it may run again.
        self._work = {
            "journal": (self._read, Pace(1.0, _INTERVAL_S)),
            "text": (self._update_text, Pace(0.3)),
            "charts": (self._update_charts, Pace(0.1, 2.0)),
        }
        # Which of these have to run, and the troubles with them.
        self._stale, self._troubles = {"journal"}, dict[str, str]()
        # The version of each half, which is unique across runs of the server.
        self._versions = dict.fromkeys(("text", "charts"), "")
        self._working = threading.Lock()

    @property
    def trouble(self) -> str:
        """Return why the page cannot be updated at the moment; empty if it can."""
        return next(iter(self._troubles.values()), "")

    @property
    def version(self) -> str:
        """Return the version of the page, as browsers send it."""
        return "-".join(self._versions.values())

    def first(self) -> None:
        """Prepare the first version of the page."""
        with self._working:
            if not self.parts:
                self.step()

    def news(self, version: str) -> dict[str, Any]:
        """Update the page; return the changes since the version that the browser shows.

        Returns:
            The new ``version``; the names of all parts, in ``order``; the ``parts`` as HTML, if the
            text has changed, and the names of the ``charts``, if these have; the ``trouble``; and
            whether ``more`` will follow immediately.
        """
        with self._working:
            more = self.step()
            text, charts = (one not in version.split("-") for one in self._versions.values())
            return {
                "version": self.version,
                "order": list(self.parts),
                "parts": self.parts if text else {},
                "charts": list(self.charts) if charts else [],
                "trouble": self.trouble,
                "more": more,
            }

    def step(self) -> bool:
        """Read new events, and update one half of the page; return whether one was due."""
        for name, (work, pace) in self._work.items():
            began = self._clock.monotonic()
            if name in self._stale and pace.is_ready(began):
                try:
                    work()
                except Exception as error:  # of this sweep; others are still served
                    self._troubles[name] = text = f"{type(error).__name__}: {error}"
                    self.parts = self.parts or {"summary": _trouble(self.entry.name, text)}
                    return False
                finally:
                    pace.ran(began, self._clock.monotonic())
                self._troubles.pop(name, None)
                if name in self._versions:
                    self._stale.discard(name)
                    self._versions[name] = secrets.token_hex(8)
                    return True
        return False

    def _read(self) -> None:
        if self._follower.poll():
            self._stale.update(self._versions)

    def _update_text(self) -> None:
        self.parts = render_sections(report_data(self._follower.sweep, self._drawn))

    def _update_charts(self) -> None:
        drawn = draw_charts(self._follower.sweep)
        if drawn.keys() != self._drawn.keys():
            self._stale.add("text")  # it contains a placeholder for each chart
        self._drawn = drawn
        self.charts = {name: script_json(chart) for name, chart in drawn.items()}

    def panel(self, trial_id: str) -> str | None:
        """Return the details of a trial as HTML; None if there is no such trial."""
        with self._working:
            sweep = self._follower.sweep
            if trial_id not in sweep.timeline.trials:
                return None
            return render_panels(sweep, sweep.trial_errors(), [trial_id])[trial_id]


def _trouble(name: str, text: str) -> str:
    return (
        f"<header><h1>{escape(name)}</h1></header><section><h2>It cannot be read</h2>"
        f"<p>{escape(text)}</p></section>"
    )
