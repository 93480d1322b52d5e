"""The trials of a sweep as the user's scheduler sees them, and which of them to look at next."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ray.tune.experiment import Trial

from tunekit._ray.proxies import Proxy, Version
from tunekit.core.reconcile import Desired

__all__ = ["Proxies"]


class Proxies:
    """Holds the proxy of each trial, and notes what the user's scheduler does to it.

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
        #: What the user's scheduler has looked at and may clone later, by the trial that saved it.
        self.offers: dict[str, Version] = {}
        #: The proxies, by trial.
        self.by_id: dict[str, Proxy] = {}
        #: The trials that something may have to be done about.
        self.open: dict[str, Proxy] = {}
        #: The trials that a restored scheduler is told of in their turn, and does not see before.
        self.unknown: set[str] = set()
        #: Returns whether a trial is paused by hand.
        self.paused_by_hand: Callable[[str], bool] = lambda trial_id: False
        # Those that the user's scheduler has just done something to.
        self._touched: dict[str, Proxy] = {}
        # The trials that it may start or resume, by their places in Tune's list of trials.
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
        """Return the proxy of a trial that Tune need not have added yet."""
        return self.by_id.setdefault(trial_id, Proxy(self))

    def forget_unadded(self) -> None:
        """Drop those of trials that Tune has not added."""
        for trial_id in [i for i, proxy in self.by_id.items() if proxy.real is None]:
            del self.by_id[trial_id]

    def reopen(self, proxy: Proxy) -> None:
        """Note that something may have to be done about a trial."""
        self.open[proxy.trial_id] = proxy

    # Whose turn it is --------------------------------------------------------------------------

    def add(self, trial: Trial) -> Proxy:
        """Return the proxy of a trial that is about to start: it is the last of Tune's now."""
        proxy = self.of(trial)
        proxy.real, proxy.ending = trial, False
        self.leave(proxy)
        self._places[proxy] = next(self._next_place)
        self.moved(proxy)
        self.reopen(proxy)
        return proxy

    def leave(self, proxy: Proxy) -> None:
        """Take that a trial has ended or failed for good: it is not chosen any more."""
        place = self._places.get(proxy, -1)
        for row in self._rows.values():
            row.pop(place, None)

    def first_in_turn(self) -> list[Proxy]:
        """Return the first trial to start or, if there is none, the first to resume."""
        for phase, status in (Desired.PENDING, Trial.PENDING), (Desired.PAUSED, Trial.PAUSED):
            row = self._rows[phase]
            for place in sorted(row):
                if row[place].status == status:  # else it has begun to run in this step
                    return [row[place]]
        return []

    # What is done to one -----------------------------------------------------------------------

    def moved(self, proxy: Proxy) -> None:
        """Note what a trial waits for, after its phase has changed."""
        self.leave(proxy)
        place = self._places.get(proxy)
        if place is not None and proxy.phase in self._rows:
            self._rows[proxy.phase][place] = proxy

    def touched(self, proxy: Proxy) -> None:
        """Note that the user's scheduler has paused a trial, or given it something to take up."""
        self.open[proxy.trial_id] = self._touched[proxy.trial_id] = proxy

    def take_touched(self) -> list[Proxy]:
        """Return, once, those that the user's scheduler has done something to."""
        touched, self._touched = self._touched, {}
        return list(touched.values())

    def offered(self, proxy: Proxy) -> None:
        """Note that the user's scheduler has got hold of a trial's checkpoint."""
        if proxy.version is not None:
            self.offers[proxy.trial_id] = proxy.version
            self._touched[proxy.trial_id] = proxy
