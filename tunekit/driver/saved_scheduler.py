"""Save the state of a scheduler with a sweep, and load it."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunekit.core.events import Home

logger = logging.getLogger(__name__)

# The kinds of schedulers about which a warning was logged.
_warned_of: set[type] = set()


def saved_scheduler(
    scheduler: TrialScheduler, home: Home, trials: Iterable[str] = ()
) -> bytes | None:
    """Return the state of a scheduler, pickled; None if it cannot be pickled.

    Args:
        scheduler: The scheduler.
        home: The location of the experiment.
        trials: The trials that it knows.

    Example:
        >>> from ray.tune.schedulers import MedianStoppingRule
        >>> state = saved_scheduler(MedianStoppingRule(grace_period=3), Home("/sweep"))
        >>> restored = MedianStoppingRule()
        >>> load_scheduler(restored, state, Home("/moved"), {}, filesystem=None)
        {}
        >>> restored.debug_string()
        'Using MedianStoppingRule: num_stopped=0.'
    """
    file = io.BytesIO()
    try:
        # A copy, because a reference to the scheduler itself would get only part of its dict.
        _Pickler(file, home).dump((sorted(trials), dict(scheduler.__dict__)))
    except Exception as error:  # whatever its parts raise
        if type(scheduler) not in _warned_of:
            _warned_of.add(type(scheduler))
            logger.warning(
                "%s cannot be saved with the experiment (%s). A restored sweep starts with a new "
                "one, which gets all results again.",
                type(scheduler).__name__,
                error,
            )
        return None
    return file.getvalue()


def load_scheduler(
    scheduler: TrialScheduler,
    state: bytes,
    home: Home,
    trials: Mapping[str, Trial],
    *,
    filesystem: Any,
) -> dict[str, Trial]:
    """Load the result of :func:`saved_scheduler` into a scheduler; return the trials that it knows.

    Args:
        scheduler: The scheduler.
        state: The pickle.
        home: The current location of the experiment.
        trials: The trials of the experiment.
        filesystem: The filesystem of its checkpoints; None for the local one.
    """
    loader = _Unpickler(state, home, trials, filesystem)
    known, attributes = loader.load()
    scheduler.__dict__.update(attributes)
    return {trial_id: loader.trial(trial_id) for trial_id in known}


def lost_trial(trial_id: str) -> Trial:
    """Return a trial that the experiment no longer has; it is still ranked by its results."""
    lost = Trial("lost", trial_id=trial_id, stub=True)
    lost.set_status(Trial.TERMINATED)  # so that PBT does not clone it
    return lost


class _Pickler(cloudpickle.Pickler):
    """Pickle trials by name, as Tune saves them, and checkpoints by their recorded paths."""

    def __init__(self, file: io.BytesIO, home: Home):
        super().__init__(file)
        self._home = home

    def persistent_id(self, part: Any) -> tuple[str, str] | None:
        if isinstance(part, Trial):
            return ("trial", part.trial_id)
        if isinstance(part, tune.Checkpoint):
            return ("checkpoint", self._home.record(part.path))
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, state: bytes, home: Home, trials: Mapping[str, Trial], filesystem: Any):
        super().__init__(io.BytesIO(state))
        self._home, self._trials, self._filesystem = home, dict(trials), filesystem

    def trial(self, trial_id: str) -> Trial:
        if trial_id not in self._trials:
            self._trials[trial_id] = lost_trial(trial_id)
        return self._trials[trial_id]

    def persistent_load(self, known: tuple[str, str]) -> Any:
        kind, name = known
        if kind == "checkpoint":
            return tune.Checkpoint(self._home.path(name), self._filesystem)
        return self.trial(name)
