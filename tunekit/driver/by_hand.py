"""Carry out manual requests to a running sweep: stop, pause, continue or add a trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

logger = logging.getLogger(__name__)

# Requests are read once a second, less often if reading takes more than this share of the time.
_SHARE, _INTERVAL_S = 0.05, 1.0


@dataclass(eq=False)
class ByHand:
    """Record the answer to each request in the journal, then carry it out.

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

    ledger: Ledger
    engine: Engine
    trials: Mapping[str, Trial]
    controller: Controller
    actions: TrialActions
    clock: Clock
    space: Callable[[], Mapping[str, Mapping[str, Any]]]
    emit: Callable[[Event], None]
    _pace: Pace = field(default_factory=lambda: Pace(_SHARE, _INTERVAL_S), init=False)
    _complained: str = field(default="", init=False)
    _idle: bool = field(default=False, init=False)

    def look(self) -> None:
        """Answer the requests since the last call, at most once a second."""
        began = self.clock.monotonic()
        if not self._pace.due(began):
            return
        there: list[tuple[str, bytes]] = []
        self._try(lambda: there.extend(self.ledger.requests()))
        for request, data in there:
            if request not in self.engine.answered:
                self.emit(self._answer(request, data))
            self._try(partial(self.ledger.answered, request))
        self._pace.took(began, self.clock.monotonic())
        self._say_if_idle()

    def _try(self, act: Callable[[], object]) -> None:
        """Access the storage; log a failure once, and retry at the next call."""
        try:
            act()
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("Requests to the sweep cannot be read: %s", error)

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
        states = {one: self.engine.state_by_hand(one) for one in self.trials}
        refused = refusal(asked.action, trial_id, states)
        if asked.action == "pause" and not refused:
            refused = self._cannot_pause(self.trials[trial_id])
        return Asked(request=request, action=asked.action, trial_id=trial_id, refused=refused)

    def _searched(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters by flat name, without fixed ones that have the sweep's value."""
        known, _ = self.controller.searched()
        fixed = flatten(next(iter(self.trials.values())).config)
        return {
            name: value
            for name, value in flatten(config).items()
            if name in known or name not in fixed or choice(fixed[name]) != choice(value)
        }

    def _cannot_pause(self, trial: Trial) -> str:
        if self.controller.can_resume(trial) or self.controller.can_withhold(trial):
            return ""
        return (
            f"trial {trial.trial_id} would start over, because its function had not asked for its "
            "checkpoint (tune.get_checkpoint) as of its last report"
        )

    def _cannot_add(self, name: str, config: Mapping[str, Any]) -> str:
        if not can_add(self.controller.search_alg):
            return "the sweep's search algorithm, which is not Tune's, cannot add trials"
        known, required = self.controller.searched()
        problems = problems_of(config, self.space(), known=known, required=required)
        if not problems:
            try:
                made(self.controller.search_alg, name, config)
            except Exception as error:  # whatever the user's own functions for names raise
                problems = [f"it cannot be made into a trial: {described(error).reason}"]
        return "; ".join(problems)

    def carry_out(self, asked: Asked) -> None:
        """Carry out a recorded request."""
        if asked.action == "add":
            search_alg = self.controller.search_alg
            self.controller.add(made(search_alg, asked.trial_id, asked.config))
        else:
            self.actions.carry_out(asked)
        logger.info("By hand: %s trial %s.", asked.action, asked.trial_id)

    def _say_if_idle(self) -> None:
        """Log once that the sweep waits until a trial is continued by hand."""
        paused = paused_by_hand(self.engine.paused_by_hand)
        waits = self.controller.still and paused is not None
        if waits:
            self.controller.excuse_idleness()
        if waits and not self._idle:
            logger.warning(
                "%s. No other trial runs: the sweep waits for `tunekit continue` or "
                "`tunekit stop`.",
                paused,
            )
        self._idle = waits
