"""Whether a scheduler would decide the same about any score in an interval."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.tune.result import DONE
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.certainty import decides_alike
from tunekit._ray.controller import Controller
from tunekit._ray.stand_ins import StandIn, StandInController
from tunekit.core.confidence import Interval
from tunekit.core.metrics import flatten
from tunekit.places import Places
from tunekit.scheduler_state import dump, load

__all__ = ["Certainty"]


class Certainty:
    """Asks a scheduler what it would decide, without its taking notice.

    The books of Tune's schedulers say where their decisions change. Any other scheduler is copied,
    and each copy gets a result with one end of the interval.

    Args:
        base: The user's scheduler.
        stand_ins: What it sees of each trial; others may be added.
    """

    def __init__(self, base: TrialScheduler, stand_ins: Mapping[str, StandIn]):
        self._base, self._stand_ins = base, stand_ins

    def decides_alike(
        self,
        stand_in: StandIn,
        at: float,
        report: Mapping[str, Any],
        metric: str,
        interval: Interval,
        controller: Controller,
    ) -> bool:
        """Return whether the scheduler decides the same wherever in an interval a score is.

        Args:
            stand_in: What it sees of the trial.
            at: What the score serves in its books.
            report: The report of the checkpoint.
            metric: The metric that it judges by.
            interval: Where the metric is.
            controller: The sweep's controller.
        """
        known = decides_alike(self._base, stand_in, at, interval)
        if known is not None:
            return known
        ends = [{**flatten(report), metric: end, DONE: False} for end in interval]
        first, second = (self.decided(stand_in.trial_id, one, controller) for one in ends)
        return first is not None and first == second

    def decided(self, trial_id: str, result: dict[str, Any], controller: Controller) -> Any:
        """Return what a copy of the scheduler does with a result; None if it cannot be copied."""
        quiet, copies = _Unheard(), {}

        def copied(name: str) -> StandIn:
            if name not in copies:
                known = self._stand_ins[name]
                copies[name] = StandIn(quiet, known.real)
                copies[name].load({**known.state(), "change": copy.copy(known.change)})
            return copies[name]

        try:
            saved = dump({"base": self._base}, Places())
            base = load(saved, Places(), stand_in=copied, filesystem=None)["base"]
        except Exception:  # whatever its parts raise
            return None
        view = StandInController(controller.wrapped(), lambda trial: copied(trial.trial_id), quiet)
        with _same_chance():
            decision = base.on_trial_result(view, copied(trial_id), result)
        return decision, {
            name: (one.phase, one.change.restored_from is not None) for name, one in copies.items()
        }


class _Unheard:
    """Takes no notice of what a copy of a scheduler does to stand-ins."""

    def moved(self, stand_in: StandIn) -> None:
        """Ignore that its phase is another one."""

    def touched(self, stand_in: StandIn) -> None:
        """Ignore that the scheduler has paused it, or given it something to take up."""

    def offered(self, stand_in: StandIn) -> None:
        """Ignore that the scheduler has got hold of its checkpoint."""

    def stopped(self, stand_in: StandIn) -> None:
        """Ignore that the scheduler has stopped it."""

    def idle(self) -> bool:
        """Return False: more may happen."""
        return False


class _same_chance:
    """Lets chance fall alike each time, and go on afterwards as if nothing had been asked."""

    def __enter__(self) -> None:
        self._random, self._numpy = random.getstate(), np.random.get_state()
        random.seed(0)
        np.random.seed(0)

    def __exit__(self, *error: object) -> None:
        random.setstate(self._random)
        np.random.set_state(self._numpy)
