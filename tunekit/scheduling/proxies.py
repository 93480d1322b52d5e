"""The trials of a sweep as the user's scheduler sees them, and which of them to look at next."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from ray.tune.experiment import Trial

from tunekit._ray.proxies import Proxy, Version
from tunekit.core.reconcile import Desired

__all__ = ["Proxies", "Turns"]


class Turns:
    """Keeps track of those that wait in a row, so that nobody has to look through the whole row.

    Members are in the order in which they came. A member may wait for one thing or another, or for
    nothing.

    Example:
        >>> turns = Turns()
        >>> for name in "abc":
        ...     turns.add(name, "pending")
        >>> turns.put("a", None)
        >>> turns.put("b", "paused")
        >>> list(turns.of("pending")), list(turns.of("paused"))
        (['c'], ['b'])
        >>> turns.put("a", "pending")  # it has kept its place
        >>> list(turns.of("pending"))
        ['a', 'c']
        >>> turns.add("a", "pending")  # and now comes last
        >>> list(turns.of("pending"))
        ['c', 'a']
    """

    def __init__(self) -> None:
        self._came = 0
        self._places: dict[Proxy, int] = {}
        self._members: dict[int, Proxy] = {}
        self._waits: dict[Proxy, str] = {}
        # The places of those that wait for something, in order.
        self._rows: dict[str, list[int]] = {}

    def add(self, one: Proxy, waits: str | None) -> None:
        """Put a member last in the row, even if it stood elsewhere before.

        Example:
            >>> turns = Turns()
            >>> turns.add("a", "pending")
            >>> list(turns.of("pending"))
            ['a']
        """
        self.put(one, None)
        self._members.pop(self._places.get(one, -1), None)
        self._places[one] = self._came
        self._members[self._came] = one
        self._came += 1
        self.put(one, waits)

    def put(self, one: Proxy, waits: str | None) -> None:
        """Set what a member waits for, None for nothing; who is not in the row is ignored.

        Example:
            >>> turns = Turns()
            >>> turns.put("a", "pending")
            >>> list(turns.of("pending"))
            []
        """
        place, before = self._places.get(one), self._waits.get(one)
        if place is None or before == waits:
            return
        if before is not None:
            row = self._rows[before]
            del row[bisect.bisect_left(row, place)]
            del self._waits[one]
        if waits is not None:
            bisect.insort(self._rows.setdefault(waits, []), place)
            self._waits[one] = waits

    def of(self, waits: str) -> Iterator[Proxy]:
        """Yield those that wait for something, in order; nobody may be moved meanwhile.

        Example:
            >>> list(Turns().of("pending"))
            []
        """
        for place in self._rows.get(waits, ()):
            yield self._members[place]


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
        #: The trials that a saved scheduler knows and that Tune has not added yet.
        self.known: set[str] = set()
        # Those that the user's scheduler has just done something to.
        self._touched: dict[str, Proxy] = {}
        # Those of the trials that it may start or resume.
        self._turns = Turns()

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
        self._turns.add(proxy, _waits(proxy))
        self.reopen(proxy)
        self.known.discard(trial.trial_id)
        return proxy

    def leave(self, proxy: Proxy) -> None:
        """Take that a trial has ended or failed for good: it is not chosen any more."""
        self._turns.put(proxy, None)

    def first_in_turn(self) -> list[Proxy]:
        """Return the first trial to start or, if there is none, the first to resume."""
        for status in (Trial.PENDING, Trial.PAUSED):
            for proxy in self._turns.of(status):
                if proxy.status == status:  # else it has begun to run in this step
                    return [proxy]
        return []

    # What is done to one -----------------------------------------------------------------------

    def moved(self, proxy: Proxy) -> None:
        """Note what a trial waits for, after its phase has changed."""
        self._turns.put(proxy, _waits(proxy))

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


def _waits(proxy: Proxy) -> str | None:
    """Return the status in which a scheduler may choose a trial; None if it may not choose it."""
    if proxy.phase is Desired.PENDING:
        return str(Trial.PENDING)
    return str(Trial.PAUSED) if proxy.phase is Desired.PAUSED else None
