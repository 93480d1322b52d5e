"""The live page of a sweep that is served."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from html import escape
from typing import Any

from tunekit.board.page.charts import CHARTS, Findings
from tunekit.board.page.page import contents, in_script, render_panels, sections_of
from tunekit.board.serve.catalogue import Place
from tunekit.board.serve.watch import Live
from tunekit.clock import Clock
from tunekit.core.pace import Pace
from tunekit.errors import TunekitError
from tunekit.reading.follower import Follower

__all__ = ["LiveSweep"]

# Of the time, so much may go into the page's text, and into each of its charts.
_TEXT_SHARE, _CHART_SHARE, _CHART_LEAST_S = 0.3, 0.03, 2.0


class LiveSweep(Live):
    """A sweep that is being followed, and its page.

    Each call of :meth:`step` does one piece of work, so that nothing waits for all charts. Work
    takes no more than its share of the time, however large the sweep is; what has changed
    meanwhile is shown with the next one.

    Args:
        place: Where the sweep is.
        options: The metric, mode and seed, as for :func:`tunekit.load`.
        clock: What the time is read from.
    """

    def __init__(self, place: Place, options: Mapping[str, Any], clock: Clock | None = None):
        super().__init__(clock)
        self.place = place
        self._follower = Follower(
            place.filesystem, place.path, place.source, **options, clock=self.clock
        )
        self._drawn: dict[str, dict[str, Any]] = {}
        # Whether the text is due; whether it was what the last step did.
        self._text_due, self._told = False, False
        self._due: dict[str, None] = {}
        self._text_pace = Pace(_TEXT_SHARE)
        self._paces = {name: Pace(_CHART_SHARE, _CHART_LEAST_S) for name in CHARTS}
        self._working = threading.Lock()

    def step(self) -> bool:
        """Read what is new, and do what is due; return whether more is due at once."""
        with self._working:
            try:
                if self._follower.poll():
                    self._text_due = True
                    self._due = dict.fromkeys(CHARTS)
                self.trouble = None
            except (OSError, TunekitError) as error:
                self.trouble = f"{type(error).__name__}: {error}"
                if not self.view.parts:
                    self.view.show({"summary": _trouble(self.place.name, self.trouble)})
                return False
            now = self.clock.monotonic()
            due = (name for name in self._due if self._paces[name].due(now))
            name = next(due, None)
            # In turns, so that a sweep in which much happens has charts, too.
            if self._text_due and self._text_pace.due(now) and (name is None or not self._told):
                self._tell()
                self._text_pace.took(now, self.clock.monotonic())
            elif name is not None:
                self._draw(name)
                self._paces[name].took(now, self.clock.monotonic())
            else:
                self._told = False
                return False
            return True

    def panel(self, trial_id: str) -> str | None:
        """Return a trial in full, as HTML; None if there is no such trial."""
        with self._working:
            sweep = self._follower.sweep
            if trial_id not in sweep.timeline.trials:
                return None
            found = Findings.of(sweep)
            return render_panels(found, sweep.trial_errors(), [trial_id])[trial_id]

    def _tell(self) -> None:
        self._text_due, self._told = False, True
        sweep = self._follower.sweep
        drawn = {name: spec for one in CHARTS for name, spec in self._drawn.get(one, {}).items()}
        told = contents(sweep, Findings.of(sweep), drawn)
        self.view.show(sections_of(told))

    def _draw(self, name: str) -> None:
        self._told = False
        del self._due[name]
        drawn = CHARTS[name](Findings.of(self._follower.sweep))
        if list(drawn) != list(self._drawn.get(name, {})):
            self._text_due = True  # which has a place for each chart
        self._drawn[name] = drawn
        self.view.draw({one: in_script(spec) for one, spec in drawn.items()})


def _trouble(name: str, text: str) -> str:
    return (
        f"<header><h1>{escape(name)}</h1></header><section><h2>It cannot be read</h2>"
        f"<p>{escape(text)}</p></section>"
    )
