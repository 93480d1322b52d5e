"""Removes checkpoints that a killed process has left half uploaded, or before Tune knew of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import delete_checkpoint, tracked
from tunekit._ray.storage import changed_at, paths_in
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    TrialAdded,
    ValidationRequested,
)
from tunekit.core.leftovers import left_over
from tunekit.journal.places import Places

__all__ = ["remove_left_over"]

logger = logging.getLogger(__name__)


def remove_left_over(trials: Iterable[Trial], events: Iterable[Event], places: Places) -> None:
    """Remove what is in trials' folders of checkpoints that nothing refers to.

    A checkpoint stays if the journal names it, whatever for, or Tune's saved state does, of
    whatever trial; and so does what was last written before its trial was added, or nobody knows
    when: that is not of this sweep. It can be killed, and called again, at any time.

    Args:
        trials: All trials of a restored sweep. Looked into are the folders of those that go on.
        events: The sweep's journal.
        places: Where the experiment is.
    """
    trials = list(trials)
    added: dict[str, float] = {}
    known = {path for trial in trials for path in tracked(trial)}
    for event in events:
        match event:
            case TrialAdded():
                added[event.trial_id] = event.time
            case CheckpointSaved() | ValidationRequested() | Exploited():
                known.add(places.path(event.checkpoint))
    for trial in trials:
        if trial.trial_id in added and not trial.is_finished():
            _remove_in(trial, known, since=added[trial.trial_id])


def _remove_in(trial: Trial, known: set[str], since: float) -> None:
    filesystem, folder = trial.storage.storage_filesystem, trial.storage.trial_fs_path
    try:
        for path in left_over(paths_in(filesystem, folder), known):
            written = changed_at(filesystem, path)
            if written is not None and written >= since:
                delete_checkpoint(filesystem, path)
                logger.info("%s was removed: an upload that a killed process began.", path)
    except OSError as error:
        logger.warning("What a killed process left in %s stays there: %s", folder, error)
