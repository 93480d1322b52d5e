"""Pages that change while somebody looks at them: a sweep's, and the list of all sweeps."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from html import escape
from typing import Any

from tunekit.board.page.charts import CHARTS, Findings
from tunekit.board.page.page import contents, in_script, render_panels, section, sections_of
from tunekit.board.serve.catalogue import Catalogue, Place
from tunekit.clock import Clock, SystemClock
from tunekit.core.pace import Pace
from tunekit.errors import TunekitError
from tunekit.reading.follower import Follower
from tunekit.reading.sweep import load

__all__ = ["LivePage", "LiveSweep", "SweepList"]

# A journal is looked at no more often than that, in seconds, however many look at its page.
_INTERVAL_S = 0.5
# Of the time, so much may go into the page's text, and into each of its charts.
_TEXT = "text"
_TEXT_SHARE, _CHART_SHARE, _CHART_LEAST_S = 0.3, 0.03, 2.0
# And so much into the list of sweeps.
_LIST_SHARE, _LIST_LEAST_S = 0.1, 2.0


class LivePage:
    """A page that is brought up to date whenever a browser asks for what is new.

    Each part and each chart has the version of the page at which it changed last. A version also
    names the server's run: a browser that comes from another run gets all parts.

    Args:
        clock: What the time is read from.
    """

    def __init__(self, clock: Clock | None = None):
        self.clock = clock or SystemClock()
        #: Why it cannot be brought up to date at the moment; empty if it can.
        self.trouble = ""
        self._name, self._number = secrets.token_hex(8), 0
        # By name, in order: the version at which it changed last, and its HTML, or JSON.
        self._parts: dict[str, tuple[int, str]] = {}
        self._charts: dict[str, tuple[int, str]] = {}
        self._working = threading.Lock()

    @property
    def version(self) -> str:
        """Return the version, as a browser gives it back."""
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
        """Have something to show."""
        with self._working:
            if not self._parts:
                self.step()

    def news(self, version: str) -> dict[str, Any]:
        """Do a piece of work; return what a browser that has a version lacks.

        Returns:
            The ``version`` that it then has; the names of all parts, in ``order``; the ``parts``
            that have changed, as HTML; the names of the ``charts`` that have; the ``trouble``; and
            whether ``more`` is to come at once.
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
        """Do a piece of work; return whether more is due at once."""
        raise NotImplementedError

    def show(self, parts: Mapping[str, str]) -> None:
        """Show these parts, in this order, and no others."""
        self._parts = self._marked(parts, self._parts)

    def draw(self, charts: Mapping[str, str]) -> None:
        """Show charts, beside those that are there."""
        self._charts |= self._marked(charts, self._charts)

    def _marked(
        self, texts: Mapping[str, str], known: Mapping[str, tuple[int, str]]
    ) -> dict[str, tuple[int, str]]:
        """Return texts with the version at which they changed last."""
        self._number += 1
        before = {name: one for name, one in known.items() if texts.get(name) == one[1]}
        return {name: before.get(name, (self._number, text)) for name, text in texts.items()}


class LiveSweep(LivePage):
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
        self._reads = Pace(1.0, _INTERVAL_S)
        self._drawn: dict[str, dict[str, Any]] = {}
        # What is not as the sweep is, and when it may be done again.
        self._stale: set[str] = set()
        self._paces = {_TEXT: Pace(_TEXT_SHARE)}
        self._paces |= {name: Pace(_CHART_SHARE, _CHART_LEAST_S) for name in CHARTS}

    def step(self) -> bool:
        """Read what is new, and do what is due first; return whether anything was."""
        began = self.clock.monotonic()
        try:
            if self._reads.due(began):
                if self._follower.poll():
                    self._stale = {_TEXT, *CHARTS}
                self._reads.took(began, self.clock.monotonic())
                self.trouble = ""
        except (OSError, TunekitError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            if not self._parts:
                self.show({"summary": _trouble(self.place.name, self.trouble)})
            return False
        for name, pace in self._paces.items():
            if name in self._stale and pace.due(began):
                self._stale.discard(name)
                self._tell() if name == _TEXT else self._draw(name)
                pace.took(began, self.clock.monotonic())
                return True
        return False

    def panel(self, trial_id: str) -> str | None:
        """Return a trial in full, as HTML; None if there is no such trial."""
        with self._working:
            sweep = self._follower.sweep
            if trial_id not in sweep.timeline.trials:
                return None
            found = Findings.of(sweep)
            return render_panels(found, sweep.trial_errors(), [trial_id])[trial_id]

    def _tell(self) -> None:
        sweep = self._follower.sweep
        drawn = {name: spec for one in CHARTS for name, spec in self._drawn.get(one, {}).items()}
        self.show(sections_of(contents(sweep, Findings.of(sweep), drawn)))

    def _draw(self, name: str) -> None:
        drawn = CHARTS[name](Findings.of(self._follower.sweep))
        if list(drawn) != list(self._drawn.get(name, {})):
            self._stale.add(_TEXT)  # which has a place for each chart
        self._drawn[name] = drawn
        self.draw({one: in_script(spec) for one, spec in drawn.items()})


def _trouble(name: str, text: str) -> str:
    return (
        f"<header><h1>{escape(name)}</h1></header><section><h2>It cannot be read</h2>"
        f"<p>{escape(text)}</p></section>"
    )


class SweepList(LivePage):
    """The list of sweeps, and its page.

    A sweep is read, a step each, when its journal has changed, and again while its driver is alive.

    Args:
        catalogue: Where sweeps are looked for.
        options: The metric and mode, as for :func:`tunekit.load`.
        clock: What the time is read from.
    """

    def __init__(
        self, catalogue: Catalogue, options: Mapping[str, Any], clock: Clock | None = None
    ):
        super().__init__(clock)
        self._catalogue, self._options = catalogue, dict(options)
        self._pace = Pace(_LIST_SHARE, _LIST_LEAST_S)
        self._began = 0.0
        # By key: the sweep's place, its summary, and why it cannot be read.
        self._rows: dict[str, dict[str, Any]] = {}
        self._to_read: list[Place] = []

    def step(self) -> bool:
        """Look for sweeps if that is due, or read one; return whether more is due at once."""
        now = self.clock.monotonic()
        if self._to_read:
            place = self._to_read.pop(0)
            self._rows[place.key] = self._read(place)
        elif self._pace.due(now):
            self._began = now
            try:
                self._look()
                self.trouble = ""
            except OSError as error:
                self.trouble = f"{type(error).__name__}: {error}"
        elif self._parts:
            return False
        rows = sorted(self._rows.values(), key=_order)
        unread = len(self._to_read)
        self.show({"sweeps": section("index.html", "sweeps", rows=rows, unread=unread)})
        if not self._to_read:
            self._pace.took(self._began, self.clock.monotonic())
        return bool(self._to_read)

    def _look(self) -> None:
        known, self._rows = self._rows, {}
        for key, place in self._catalogue.look().items():
            row = known.get(key)
            self._rows[key] = {"place": place, "summary": None, "trouble": None}
            if row is not None:
                self._rows[key] = {**row, "place": place}
            summary = None if row is None else row["summary"]
            if row is None or row["place"] != place or (summary or {}).get("state") == "running":
                self._to_read.append(place)

    def _read(self, place: Place) -> dict[str, Any]:
        row: dict[str, Any] = {"place": place, "summary": None, "trouble": None}
        try:
            row["summary"] = load(place.path, place.filesystem, **self._options).summary()
        except (OSError, TunekitError) as error:
            row["trouble"] = f"{type(error).__name__}: {error}"
        return row


def _order(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Return what to sort by: sweeps that run come first, then the newest."""
    known = row["summary"] or {}
    return (known.get("state") != "running", -(known.get("last") or 0.0), row["place"].name)
