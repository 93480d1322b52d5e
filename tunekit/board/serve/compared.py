"""Sweeps that are served, side by side, as a page that follows them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tunekit.board.page.page import in_script
from tunekit.board.page.side_by_side import Side, side_by_side, title_of
from tunekit.board.serve.catalogue import Place
from tunekit.board.serve.view import View
from tunekit.clock import Clock, SystemClock
from tunekit.core.comparison import distinct_names
from tunekit.core.pace import Pace
from tunekit.errors import ConfigError, TunekitError
from tunekit.lab.comparison import compare
from tunekit.reading.follower import Follower

__all__ = ["LiveComparison"]

# Of the time, so much may go into comparing.
_SHARE = 0.2


class LiveComparison:
    """Sweeps that are being followed, and the page that compares them.

    Args:
        places: Where the sweeps are.
        options: The metric, mode and seed, as for :func:`tunekit.load`.
        clock: What the time is read from.
    """

    def __init__(
        self, places: Sequence[Place], options: Mapping[str, Any], clock: Clock | None = None
    ):
        self._clock = clock or SystemClock()
        self._followers = [
            Follower(place.filesystem, place.path, place.source, **options, clock=self._clock)
            for place in places
        ]
        self._goal = {"metric": options.get("metric"), "mode": options.get("mode")}
        self._names = distinct_names([place.source for place in places])
        named = zip(self._names, places, strict=True)
        self._links = {name: f"/sweeps/{place.key}" for name, place in named}
        self._due, self._pace = False, Pace(_SHARE)
        self._working = threading.Lock()
        self.view = View()
        #: Why the sweeps cannot be compared at the moment; None if they can.
        self.trouble: str | None = None
        #: Whether that is something about what was asked for, which the next look may not change.
        self.refused = False

    @property
    def title(self) -> str:
        """Return what the page is called."""
        return title_of(self._names)

    def step(self) -> bool:
        """Read what is new, and compare again if that is due; nothing else is due at once."""
        with self._working:
            try:
                grown = [follower.poll() for follower in self._followers]
                self._due = self._due or any(grown)
                began = self._clock.monotonic()
                if self._due and self._pace.due(began):
                    self._compare()
                    self._due = False
                    self._pace.took(began, self._clock.monotonic())
                    self.trouble, self.refused = None, False
            except (OSError, TunekitError) as error:
                self.refused = isinstance(error, ConfigError)
                self.trouble = str(error) if self.refused else f"{type(error).__name__}: {error}"
            return False

    def first(self) -> None:
        """Have something to show if there is nothing yet."""
        if not self.view.parts:
            self.step()

    def _compare(self) -> None:
        sweeps = [follower.sweep for follower in self._followers]
        shown: Side = side_by_side(compare(sweeps, **self._goal, names=self._names), self._links)
        # The charts first: a browser that has a place for one asks for it.
        self.view.draw({name: in_script(spec) for name, spec in shown.charts.items()})
        self.view.show(shown.sections)
