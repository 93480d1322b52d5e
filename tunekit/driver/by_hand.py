"""Carries out manual requests to a running sweep: stop, pause, continue or add a trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.added_trials import can_add, made
from tunekit._ray.controller import Controller
from tunekit.clock import Clock
from tunekit.core.by_hand import refusal
from tunekit.core.engine import Engine
from tunekit.core.events import Asked, Event
from tunekit.core.metrics import flatten
from tunekit.core.pace import Pace
from tunekit.core.parameters import choice, problems_of
from tunekit.core.progress import paused_by_hand
from tunekit.core.values import described
from tunekit.journal.ledger import Ledger
from tunekit.journal.requests import decoded
from tunekit.scheduling.trial_actions import TrialActions

__all__ = ["ByHand"]

logger = logging.getLogger(__name__)

# Requests are read once a second, less often if reading takes more than this share of the time.
_SHARE, _INTERVAL_S = 0.05, 1.0


class ByHand:
    """Answers each request once, in the journal, before carrying it out.

    Args:
        ledger: The source of requests.
        engine: The state of the sweep.
        trials: Its trials; more may be added.
        controller: The sweep's controller.
        actions: Carries out requests that concern a trial.
        clock: The sweep's clock.
        space: Returns the known search space, by flat name.
        emit: Records each event, before it takes effect.
    """

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        trials: Mapping[str, Trial],
        controller: Controller,
        actions: TrialActions,
        clock: Clock,
        *,
        space: Callable[[], Mapping[str, Mapping[str, Any]]],
        emit: Callable[[Event], None],
    ):
        self._ledger, self._engine, self._trials = ledger, engine, trials
        self._controller, self._actions, self._clock = controller, actions, clock
        self._space, self._emit = space, emit
        self._pace = Pace(_SHARE, _INTERVAL_S)
        self._complained = ""
        self._idle = False

    def look(self) -> None:
        """Answer the requests since the last call, at most once a second."""
        began = self._clock.monotonic()
        if not self._pace.due(began):
            return
        there: list[tuple[str, bytes]] = []
        self._try(lambda: there.extend(self._ledger.requests()))
        for request, data in there:
            if request not in self._engine.answered:
                self._emit(self._answer(request, data))
            self._try(partial(self._ledger.answered, request))
        self._pace.took(began, self._clock.monotonic())
        self._say_if_idle()

    def _try(self, act: Callable[[], object]) -> None:
        """Access the storage; log a failure once, and retry at the next call."""
        try:
            act()
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("What is asked of the sweep by hand cannot be read: %s", error)

    def _answer(self, request: str, data: bytes) -> Asked:
        try:
            asked = decoded(data)
        except ValueError as error:
            return Asked(request=request, action="stop", trial_id="", refused=str(error))
        if asked.action == "add":
            name, config = request.rpartition("-")[2], self._searched(asked.config)
            refused = self._cannot_add(name, config)
            own = {} if refused else config
            return Asked(request=request, action="add", trial_id=name, config=own, refused=refused)
        trial_id = asked.trial_id
        states = {one: self._engine.state_by_hand(one) for one in self._trials}
        refused = refusal(asked.action, trial_id, states)
        if asked.action == "pause" and not refused:
            refused = self._cannot_pause(self._trials[trial_id])
        return Asked(request=request, action=asked.action, trial_id=trial_id, refused=refused)

    def _searched(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters by flat name, without those that have this value in any trial."""
        known, _ = self._controller.searched()
        fixed = flatten(next(iter(self._trials.values())).config)
        return {
            name: value
            for name, value in flatten(config).items()
            if name in known or name not in fixed or choice(fixed[name]) != choice(value)
        }

    def _cannot_pause(self, trial: Trial) -> str:
        if self._controller.can_resume(trial) or self._controller.can_withhold(trial):
            return ""
        return (
            f"trial {trial.trial_id} would start over: its function has not asked for its "
            "checkpoint (tune.get_checkpoint) as of its last report"
        )

    def _cannot_add(self, name: str, config: Mapping[str, Any]) -> str:
        if not can_add(self._controller.search_alg):
            return "the sweep's search algorithm, which is not Tune's, cannot take other trials"
        known, required = self._controller.searched()
        problems = problems_of(config, self._space(), known=known, required=required)
        if not problems:
            try:
                made(self._controller.search_alg, name, config)
            except Exception as error:  # whatever the user's own functions for names raise
                problems = [f"no trial can be made of it: {described(error).reason}"]
        return "; ".join(problems)

    def carry_out(self, asked: Asked) -> None:
        """Carry out a recorded request."""
        if asked.action == "add":
            search_alg = self._controller.search_alg
            self._controller.add(made(search_alg, asked.trial_id, asked.config))
        else:
            self._actions.carry_out(asked)
        logger.info("By hand: %s trial %s.", asked.action, asked.trial_id)

    def _say_if_idle(self) -> None:
        """Log, once, that the sweep waits until a trial is continued by hand."""
        paused = paused_by_hand(self._engine.paused_by_hand)
        waits = self._controller.still and paused is not None
        if waits:
            self._controller.excuse_idleness()
        if waits and not self._idle:
            logger.warning(
                "%s. No other trial runs: the sweep waits for `tunekit continue`, or "
                "`tunekit stop`.",
                paused,
            )
        self._idle = waits
