"""Warn of optimizers that train with the hyperparameters of another trial."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.tune.experiment import Trial

from tunekit._ray.actors import ask_for_groups
from tunekit.core.events import Exploited
from tunekit.core.lineage import Ancestry
from tunekit.core.optimizers import left_by_donor, stale

logger = logging.getLogger(__name__)

# The number of trials to check; if these are correct, the others are assumed to be.
_MOST = 3


class Optimizers:
    """Check the optimizers of the first trials that continue from another trial's checkpoint.

    A restored optimizer has its donor's hyperparameters. If the function does not reset them, the
    trial trains with these, and the sweep compares hyperparameters that no trial has used.

    Args:
        ancestry: The exploits of the sweep.
    """

    def __init__(self, ancestry: Ancestry):
        self._ancestry, self._warned = ancestry, False
        self._looked_at: set[tuple[str, int]] = set()
        self._asked: list[tuple[Exploited, Any]] = []

    def reported(self, trial: Trial) -> None:
        """Check the first report of a trial that was overwritten."""
        enough = self._warned or len(self._looked_at) >= _MOST
        if enough or not self._ancestry.generation(trial.trial_id):
            return
        exploit = self._ancestry.line(trial.trial_id)[-1]
        at = (exploit.trial_id, exploit.generation)
        own = at in self._looked_at or exploit.donor_id == exploit.trial_id
        asked = None if own else ask_for_groups(trial)
        if asked is not None:
            self._looked_at.add(at)
            self._asked.append((exploit, asked))

    def warn(self) -> None:
        """Warn of the first optimizer that turns out to have its donor's hyperparameters."""
        for exploit, asked in self._asked[:]:
            if self._warned or not ray.wait([asked], timeout=0)[0]:
                continue
            self._asked.remove((exploit, asked))
            try:
                groups = ray.get(asked)
            except ray.exceptions.RayError:
                continue  # its process has ended
            left = left_by_donor(exploit.config, exploit.donor_config, groups)
            if left:
                self._warned = True
                logger.warning("%s", stale(exploit.trial_id, exploit.donor_id, left))
