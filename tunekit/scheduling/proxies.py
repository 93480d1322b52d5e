"""The trials of a sweep as the user's scheduler sees them, and which of them need attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ray.tune.experiment import Trial

from tunekit._ray.proxies import Proxy, Version
from tunekit.core.reconcile import Desired

__all__ = ["Proxies"]


class Proxies:
    """Hold the proxy of each trial, and record what the user's scheduler does to it.

    Example:
        >>> proxies = Proxies()
        >>> trial = Trial("train", stub=True)
        >>> proxy = proxies.add(trial)
        >>> proxies.first_in_turn() == [proxy]
        True
        >>> proxy.pause()
        >>> proxies.take_touched() == [proxy]
        True
    """

    def __init__(self) -> None:
        #: The checkpoints that the user's scheduler has looked at and may clone, by their trials.
        self.offers: dict[str, Version] = {}
        #: The proxies, by trial.
        self.by_id: dict[str, Proxy] = {}
        #: The trials that may need an action.
        self.open: dict[str, Proxy] = {}
        #: The trials that a restored scheduler is told of in their turn, and does not see before.
        self.unknown: set[str] = set()
        #: Returns whether a trial is paused by hand.
        self.paused_by_hand: Callable[[str], bool] = lambda trial_id: False
        # Those that the user's scheduler has just done something to.
        self._touched: dict[str, Proxy] = {}
        # The trials that it may start or resume, by their positions in Tune's list of trials.
        self._rows: dict[Desired, dict[int, Proxy]] = {Desired.PENDING: {}, Desired.PAUSED: {}}
        self._places: dict[Proxy, int] = {}
        self._next_place = itertools.count()

    def of(self, trial: Trial) -> Proxy:
        """Return a trial's proxy."""
        proxy = self.by_id.get(trial.trial_id)
        if proxy is None:
            proxy = self.by_id[trial.trial_id] = Proxy(self, trial)
        return proxy

    def named(self, trial_id: str) -> Proxy:
        """Return the proxy of a trial, which Tune may not have added yet."""
        return self.by_id.setdefault(trial_id, Proxy(self))

    def forget_unadded(self) -> None:
        """Drop the proxies of trials that Tune has not added."""
        for trial_id in [i for i, proxy in self.by_id.items() if proxy.real is None]:
            del self.by_id[trial_id]

    def reopen(self, proxy: Proxy) -> None:
        """Record that a trial may need an action."""
        self.open[proxy.trial_id] = proxy

    # The next trial ----------------------------------------------------------------------------

    def add(self, trial: Trial) -> Proxy:
        """Return the proxy of a trial that is about to start, and put it last in Tune's order."""
        proxy = self.of(trial)
        proxy.real, proxy.ending = trial, False
        self.leave(proxy)
        self._places[proxy] = next(self._next_place)
        self.moved(proxy)
        self.reopen(proxy)
        return proxy

    def leave(self, proxy: Proxy) -> None:
        """Record that a trial has ended or failed for good: it is no longer chosen."""
        place = self._places.get(proxy, -1)
        for row in self._rows.values():
            row.pop(place, None)

    def first_in_turn(self) -> list[Proxy]:
        """Return the first trial to start or, if there is none, the first to resume."""
        for phase, status in (Desired.PENDING, Trial.PENDING), (Desired.PAUSED, Trial.PAUSED):
            row = self._rows[phase]
            for place in sorted(row):
                if row[place].status == status:  # otherwise it has started in this step
                    return [row[place]]
        return []

    # Changes to a trial ------------------------------------------------------------------------

    def moved(self, proxy: Proxy) -> None:
        """Update what a trial waits for, after a change of its phase."""
        self.leave(proxy)
        place = self._places.get(proxy)
        if place is not None and proxy.phase in self._rows:
            self._rows[proxy.phase][place] = proxy

    def touched(self, proxy: Proxy) -> None:
        """Record that the user's scheduler has paused a trial or given it a change."""
        self.open[proxy.trial_id] = self._touched[proxy.trial_id] = proxy

    def take_touched(self) -> list[Proxy]:
        """Return, once, the proxies that the user's scheduler has acted on."""
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def offered(self, proxy: Proxy) -> None:
        """Record that the user's scheduler has looked at a trial's checkpoint."""
        if proxy.version is not None:
            self.offers[proxy.trial_id] = proxy.version
            self._touched[proxy.trial_id] = proxy
