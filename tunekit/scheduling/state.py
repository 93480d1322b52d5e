"""The saved state of a scheduler: its own, and that of its view of trials."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
from ray import tune
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.proxies import Proxies, Proxy
from tunekit.journal.home import Home

logger = logging.getLogger(__name__)


class SchedulerState:
    """Hold the state of a scheduler to be saved: its own, and that of its view of trials.

    Args:
        scheduler: The user's scheduler.

    Example:
        >>> from ray.tune.schedulers import MedianStoppingRule
        >>> saved = SchedulerState(MedianStoppingRule(grace_period=3)).save(Home("/sweep"))
        >>> state = SchedulerState(MedianStoppingRule())
        >>> state.load(saved, Home("/moved"), filesystem=None)
        >>> state.scheduler.debug_string()
        'Using MedianStoppingRule: num_stopped=0.'
    """

    def __init__(self, scheduler: TrialScheduler):
        self.scheduler = scheduler
        #: The mode in ``TuneConfig``; None if it is not set.
        self.mode: str | None = None
        #: The trials as the scheduler sees them.
        self.proxies = Proxies()
        self._told_of_none = False

    def save(self, home: Home) -> bytes | None:
        """Return the state, pickled; None if it cannot be pickled.

        Args:
            home: The location of the experiment.
        """
        state = {
            # A copy, because a reference to the scheduler itself would get only part of its dict.
            "scheduler": dict(self.scheduler.__dict__),
            "judged": {trial_id: proxy.state() for trial_id, proxy in self.proxies.by_id.items()},
            "offers": self.proxies.offers,
        }
        file = io.BytesIO()
        try:
            _Pickler(file, home).dump(state)
            return file.getvalue()
        except Exception as error:  # whatever its parts raise
            if not self._told_of_none:
                self._told_of_none = True
                logger.warning(
                    "%s cannot be saved with the experiment (%s). A restored sweep starts with a "
                    "new one, which gets all results again.",
                    type(self.scheduler).__name__,
                    error,
                )
            return None

    def load(self, saved: bytes, home: Home, *, filesystem: Any) -> None:
        """Load the result of :meth:`save`, before Tune adds the trials.

        Args:
            saved: The pickle.
            home: The current location of the experiment.
            filesystem: The filesystem of its checkpoints; None for the local one.
        """
        proxies = self.proxies
        state = _Unpickler(saved, home, proxies.named, filesystem).load()
        self.scheduler.__dict__.update(state["scheduler"])
        proxies.offers = state["offers"]
        for trial_id, kept in state["judged"].items():
            proxies.named(trial_id).load(kept)


class _Pickler(cloudpickle.Pickler):
    """Pickle proxies by name, as Tune saves the trials, and checkpoints by their recorded paths."""

    def __init__(self, file: io.BytesIO, home: Home):
        super().__init__(file)
        self._home = home

    def persistent_id(self, part: Any) -> tuple[str, str] | None:
        if type(part) is Proxy:
            return ("trial", part.trial_id)
        if isinstance(part, tune.Checkpoint):
            return ("checkpoint", self._home.record(part.path))
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, saved: bytes, home: Home, proxy: Callable[[str], Proxy], filesystem: Any):
        super().__init__(io.BytesIO(saved))
        self._home, self._proxy, self._filesystem = home, proxy, filesystem

    def persistent_load(self, known: tuple[str, str]) -> Any:
        kind, name = known
        if kind == "trial":
            return self._proxy(name)
        return tune.Checkpoint(self._home.path(name), self._filesystem)
