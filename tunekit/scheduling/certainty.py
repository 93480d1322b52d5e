"""Whether a scheduler would decide the same about any score in an interval."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray.tune.result import DONE

from tunekit._ray.controller import Controller
from tunekit._ray.decisions import decides_alike
from tunekit._ray.stand_ins import StandIn, StandInController
from tunekit.core.confidence import Interval
from tunekit.core.metrics import flatten
from tunekit.journal.places import Places
from tunekit.scheduling.stand_ins import StandIns
from tunekit.scheduling.state import SchedulerState, dump, load

__all__ = ["Certainty"]


class Certainty:
    """Asks a scheduler what it would decide, without changing it.

    The books of Tune's schedulers say where their decisions change. Any other scheduler is copied,
    and each copy gets a result with one end of the interval.

    Args:
        state: The user's scheduler, and what it knows of trials.
        controller: The sweep's controller.
    """

    def __init__(self, state: SchedulerState, controller: Controller):
        self._state, self._controller = state, controller

    def decides_alike(
        self,
        stand_in: StandIn,
        at: float,
        report: Mapping[str, Any],
        metric: str,
        interval: Interval,
    ) -> bool:
        """Return whether the scheduler decides the same wherever in an interval a score is.

        Args:
            stand_in: The trial as it sees it.
            at: What the score serves in its books.
            report: The report of the checkpoint.
            metric: The metric that it judges by.
            interval: Where the metric is.
        """
        known = decides_alike(self._state.base, stand_in, at, interval)
        if known is not None:
            return known
        first, second = (
            self.decided(stand_in.trial_id, {**report, metric: end}) for end in interval
        )
        return first is not None and first == second

    def decided(self, trial_id: str, result: Mapping[str, Any]) -> Any:
        """Return what a copy of the scheduler does with a result; None if it cannot be copied."""
        known, copies = self._state.stand_ins.by_id, StandIns(offer=lambda trial, version: None)

        def copied(name: str) -> StandIn:
            if name not in copies.by_id:
                stand_in = copies.of(known[name].real)
                change = copy.copy(known[name].change)
                stand_in.load({**known[name].state(), "change": change})
            return copies.by_id[name]

        try:
            saved = dump({"base": self._state.base}, Places())
            base = load(saved, Places(), stand_in=copied, filesystem=None)["base"]
        except Exception:  # whatever its parts raise
            return None
        stopped: list[str] = []
        view = StandInController(
            self._controller.wrapped(),
            lambda trial: copied(trial.trial_id),
            stopped=lambda stand_in: stopped.append(stand_in.trial_id),
            idle=lambda: False,
        )
        with _same_chance():
            given = {**flatten(result), DONE: False}
            decision = base.on_trial_result(view, copied(trial_id), given)
        changed = {
            name: (stand_in.phase, stand_in.change.restored_from is not None)
            for name, stand_in in copies.by_id.items()
        }
        return decision, sorted(stopped), changed


@contextmanager
def _same_chance() -> Iterator[None]:
    """Let chance fall alike each time, and go on afterwards as if nothing had been asked."""
    before = random.getstate()
    numpy = sys.modules.get("numpy")  # a scheduler that draws from it has imported it
    numpys = None if numpy is None else numpy.random.get_state()
    random.seed(0)
    if numpy is not None:
        numpy.random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)
        if numpy is not None:
            numpy.random.set_state(numpys)
