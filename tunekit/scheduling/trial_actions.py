"""Carry out actions on trials: wait for scores, train, or follow the user's scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.controller import Controller
from tunekit._ray.proxies import Change, Proxy
from tunekit._ray.tuner import has_workers
from tunekit.clock import Clock
from tunekit.core.advice import no_room
from tunekit.core.engine import Engine, Hears, Input
from tunekit.core.events import Asked, Waited
from tunekit.core.pending import Waits, Way, when_starved
from tunekit.core.reconcile import Action, Actual, Desired, next_action
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.scheduling.waiting import Waiting, is_unsaved
from tunekit.validating.validator import Validator

__all__ = ["TrialActions"]

logger = logging.getLogger(__name__)

# A momentary shortage does not pause a trial.
_STARVED_S = 2.0


class TrialActions:
    """Bring each trial to where the user's scheduler believes it to be, as soon as possible.

    ``core/reconcile.py`` has the rule, and ``core/pending.py`` that for waiting trials.

    Args:
        user_scheduler: The user's scheduler.
        controller: The sweep's controller.
        engine: The state of the sweep.
        waiting: Which trials wait, and for what.
        validator: Runs the validations.
        clock: The sweep's clock.
        emit: Records and applies each event.
    """

    def __init__(
        self,
        user_scheduler: UserScheduler,
        controller: Controller,
        engine: Engine,
        waiting: Waiting,
        validator: Validator,
        clock: Clock,
        *,
        emit: Callable[[Input], None],
    ):
        self._user_scheduler, self._controller = user_scheduler, controller
        self._proxies = user_scheduler.proxies
        self._waiting, self._pool, self._validator = waiting, waiting.pool, validator
        self._engine, self._clock, self._emit = engine, clock, emit
        # When a trial began to wait for a score.
        self._since: dict[str, float] = {}
        self._starts = waiting.starts
        self._ready = waiting.ready

    # At a trial's report -----------------------------------------------------------------------

    def answer(self, proxy: Proxy, result: Mapping[str, Any]) -> str:
        """Answer a trial's report; whether it is validated is known only once it has saved."""
        self._starts.reported(proxy.trial_id, self._clock.monotonic())
        self.begins(proxy)
        self._proxies.reopen(proxy)
        proxy.offered, proxy.serves = True, self._user_scheduler.serves(proxy.real, result)
        by_hand = self._engine.record(proxy.trial_id)
        waits = self._waiting.may_wait(proxy) or proxy.trial_id in self._controller.leaving
        if not waits and not proxy.change.restored_from:
            if proxy.phase is Desired.ENDED or by_hand.stopped:
                return TrialScheduler.STOP
            if proxy.phase is Desired.PAUSED or by_hand.paused:
                return TrialScheduler.PAUSE
            self._starts.trains(proxy.trial_id, self._clock.monotonic())
            return TrialScheduler.CONTINUE
        proxy.held = True
        return TrialScheduler.NOOP

    def begins(self, proxy: Proxy) -> bool:
        """Record that a trial that was to run is running or has run; return if that is new."""
        idle = proxy.real.status in (Trial.PENDING, Trial.PAUSED)
        if proxy.phase is not Desired.PENDING or idle:
            return False
        proxy.phase = Desired.RUNNING
        self._emit(Hears(proxy.trial_id))
        return True

    # At the end of each step -------------------------------------------------------------------

    def act(self) -> None:
        """Carry out the next action of each trial that needs one."""
        now, held = self._clock.monotonic(), []
        self._controller.look_at_nodes(now)
        for trial in self._controller.starting() if self._waiting.shares.apart else ():
            self._starting(trial.trial_id, now)
        for trial_id in self._validator.lost():
            one = self._proxies.open.get(trial_id)
            if one is not None and one.doing is Actual.HELD:
                self._give_way(one, for_validations=True)  # it has no process any more
        for trial_id, proxy in list(self._proxies.open.items()):
            if proxy.phase is Desired.PENDING and self.begins(proxy):
                self._starting(trial_id, now)  # if it ran before it was seen to start
            doing = proxy.doing
            if doing is Actual.SAVING:
                continue  # all running trials may be saving, step after step
            waits = self._waiting.waits(trial_id)
            if trial_id in self._since and waits is None:
                self._waited(trial_id)  # if it still waits, the scheduler has paused it
            move = self._next_action(proxy, doing, waits)
            if move is not Action.NOTHING:
                self._make(move, proxy)
            elif doing is Actual.HELD:
                held.append(proxy)
            elif not self._undecided(proxy, doing):
                self._proxies.open.pop(trial_id, None)
                if doing is Actual.ENDED and proxy.phase is not Desired.PAUSED:
                    self._emit(Hears(trial_id))  # it may have ended before its scheduler looked
        if held:
            self._relieve_starvation(held)

    def _starting(self, trial_id: str, now: float) -> None:
        """Record that a trial has its resources and is starting."""
        if self._starts.begins(trial_id, now):
            self._waiting.given_up = max(0, self._waiting.given_up - 1)

    def _undecided(self, proxy: Proxy, doing: Actual) -> bool:
        """Return whether a trial will need something done even if nothing more is heard of it."""
        if doing is Actual.ENDED:
            return False
        return (
            bool(proxy.change)
            or proxy.phase is Desired.ENDED
            or self._engine.record(proxy.trial_id).stopped
            or doing in (Actual.SAVING, Actual.HELD)
            or (doing is Actual.PAUSED and proxy.phase is Desired.RUNNING)
        )

    def _next_action(self, proxy: Proxy, doing: Actual, waits: Waits | None) -> Action:
        validates = self._pool.hosts(proxy.trial_id)
        by_hand = self._engine.record(proxy.trial_id)
        way = Way.KEEP
        if waits is not None and doing is Actual.HELD and not validates:
            way = self._waiting.way(proxy, waits)
        return next_action(
            proxy.phase,
            doing,
            overwritten=proxy.change.restored_from is not None,
            changed=bool(proxy.change),
            waits=waits is not None and way is not Way.TRAIN,
            validates=validates,
            gives_way=way in (Way.SWAP, Way.RELEASE),
            leaves=self._leaves(proxy.real),
            paused=by_hand.paused,
            stopped=by_hand.stopped,
        )

    def _leaves(self, trial: Trial) -> bool:
        """Return whether a trial pauses because its node is about to end, and loses nothing."""
        controller = self._controller
        return (
            trial.trial_id in controller.leaving
            and (controller.can_resume(trial) or has_workers(trial))
            and (controller.saves_when_asked(trial) or not is_unsaved(trial))
        )

    def _make(self, move: Action, proxy: Proxy) -> None:
        trial, trial_id, controller = proxy.real, proxy.trial_id, self._controller
        if move is Action.GIVE_WAY:
            # To validations, or to another trial.
            squeezed = self._waiting.squeezed
            self._waiting.given_up += not (squeezed or controller.reuses_actors)
            self._give_way(proxy, for_validations=squeezed)
            return
        self._waited(trial_id)
        proxy.held = False
        if move is Action.TRAIN:
            self._proxies.open.pop(trial_id, None)
            self._starts.trains(trial_id, self._clock.monotonic())
            controller.train(trial)
        elif move is Action.PAUSE:
            controller.pause(trial, save=is_unsaved(trial))
        elif move is Action.RESUME:
            self._proxies.open.pop(trial_id, None)
            self._ready[trial_id] = trial
        elif move is Action.STOP:
            self._proxies.open.pop(trial_id, None)
            controller.stop(trial)
        elif move is Action.CHANGE:
            self._change(proxy)

    def _change(self, proxy: Proxy) -> None:
        """Apply the changes that the user's scheduler has made to a trial."""
        self._ready.pop(proxy.trial_id, None)
        change = proxy.change
        if change.restored_from is not None:
            change = self._user_scheduler.exploit(proxy)
        proxy.change = Change()
        self._controller.change(proxy.real, change)

    # By hand -----------------------------------------------------------------------------------

    def carry_out(self, asked: Asked) -> None:
        """Stop, pause or continue a trial, at the end of this step or as soon as it can follow."""
        proxy = self._proxies.by_id[asked.trial_id]
        self._ready.pop(asked.trial_id, None)
        if asked.action == "pause" and self._controller.can_withhold(proxy.real):
            self._controller.withhold(proxy.real)
        self._proxies.reopen(proxy)

    # While trials wait -------------------------------------------------------------------------

    def _give_way(self, proxy: Proxy, *, for_validations: bool = False) -> None:
        proxy.held = False
        self._since.setdefault(proxy.trial_id, self._clock.monotonic())
        # It will resume from the checkpoint that is being validated.
        self._controller.pause(proxy.real, save=False, for_validations=for_validations)

    def first_ready(self) -> Trial | None:
        """Return the first trial that released its resources and whose scores have arrived."""
        for trial_id, trial in list(self._ready.items()):
            if trial.status == Trial.PAUSED:
                self._controller.start_first(trial)
                return trial
            del self._ready[trial_id]
        return None

    def stands_no_more(self, proxy: Proxy) -> None:
        """Record that a trial no longer waits for anything."""
        proxy.held = False
        self._ready.pop(proxy.trial_id, None)
        self._starts.ends(proxy.trial_id)
        self._waited(proxy.trial_id)

    def _waited(self, trial_id: str) -> None:
        """Record how long a trial waited for its scores, if it did."""
        since = self._since.pop(trial_id, None)
        if since is not None:
            seconds = round(self._clock.monotonic() - since, 4)
            self._emit(Waited(trial_id=trial_id, seconds=seconds))

    def _relieve_starvation(self, held: list[Proxy]) -> None:
        """Pause a held trial if held trials keep all validations from starting.

        If all actors waited for scores, and their validations for the actors' resources, none would
            arrive.
        """
        controller, pool, now = self._controller, self._pool, self._clock.monotonic()
        for proxy in held:
            self._since.setdefault(proxy.trial_id, now)
        if pool.starved_s(now) < _STARVED_S:
            return  # their processes may take long to start
        if not self._waiting.contend:
            return
        waiting = [
            proxy
            for proxy in held
            if proxy.doing is Actual.HELD and self._waiting.waits(proxy.trial_id)
        ]
        if not waiting or len(waiting) < len(controller.running):
            return
        first = waiting[0]
        resumes, waits = controller.can_resume(first.real), self._waiting.waits_for(first.trial_id)
        if when_starved(waits, resumes=resumes) is Way.TRAIN:
            self._make(Action.TRAIN, first)
        else:
            logger.warning("%s", no_room(first.trial_id, trials=len(controller.running)))
            self._give_way(first, for_validations=True)
            pool.relieved(now)
