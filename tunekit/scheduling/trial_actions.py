"""Carry out actions on trials: wait for scores, train, or follow the user's scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.controller import Controller
from tunekit._ray.proxies import Change, Proxy
from tunekit._ray.tuner import has_workers
from tunekit.clock import Clock
from tunekit.core.advice import no_room
from tunekit.core.engine import Engine, Hears, Input
from tunekit.core.events import Waited
from tunekit.core.pending import Waits, Way, when_starved
from tunekit.core.reconcile import Action, Actual, Desired, next_action
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.scheduling.waiting import Waiting, is_unsaved
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# A momentary shortage does not pause a trial.
_STARVED_S = 2.0


@dataclass(eq=False)
class TrialActions:
    """Bring each trial to the state that the user's scheduler expects, as soon as possible.

    ``core/reconcile.py`` has the rules, and ``core/pending.py`` those for waiting trials.

    Args:
        user_scheduler: The user's scheduler.
        controller: The sweep's controller.
        engine: The state of the sweep.
        waiting: Decides which trials wait, and for what.
        validator: Runs the validations.
        clock: The sweep's clock.
        emit: Records and applies each event.
    """

    user_scheduler: UserScheduler
    controller: Controller
    engine: Engine
    waiting: Waiting
    validator: Validator
    clock: Clock
    emit: Callable[[Input], None]
    # When each waiting trial began to wait for a score.
    _since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._proxies, self._pool = self.user_scheduler.proxies, self.waiting.pool
        self._starts, self._ready = self.waiting.starts, self.waiting.ready

    # At a trial's report -----------------------------------------------------------------------

    def answer(self, proxy: Proxy, result: Mapping[str, Any]) -> str:
        """Return the decision on a report; a trial that may have to wait is held."""
        self._starts.reported(proxy.trial_id, self.clock.monotonic())
        self.begins(proxy)
        self._proxies.reopen(proxy)
        proxy.offered, proxy.serves = True, self.user_scheduler.serves(proxy.real, result)
        waits = self.waiting.may_wait(proxy) or proxy.trial_id in self.controller.leaving
        if not waits and not proxy.change.restored_from:
            if proxy.phase is Desired.ENDED or self.engine.record(proxy.trial_id).stopped:
                return TrialScheduler.STOP
            if proxy.phase is Desired.PAUSED:
                return TrialScheduler.PAUSE
            self._starts.trains(proxy.trial_id, self.clock.monotonic())
            return TrialScheduler.CONTINUE
        proxy.held = True
        return TrialScheduler.NOOP

    def begins(self, proxy: Proxy) -> bool:
        """Record that a trial that was to run is running or has run; return whether that is new."""
        idle = proxy.real.status in (Trial.PENDING, Trial.PAUSED)
        if proxy.phase is not Desired.PENDING or idle:
            return False
        proxy.phase = Desired.RUNNING
        self.emit(Hears(proxy.trial_id))
        return True

    # At the end of each step -------------------------------------------------------------------

    def act(self) -> None:
        """Carry out the next action of each trial that needs one."""
        now, held = self.clock.monotonic(), []
        self.controller.look_at_nodes(now)
        for trial in self.controller.starting():
            self._starting(trial.trial_id, now)
        for trial_id in self.validator.lost():
            one = self._proxies.open.get(trial_id)
            if one is not None and one.doing is Actual.HELD:
                self._give_way(one, for_validations=True)  # it no longer has a process
        for trial_id, proxy in list(self._proxies.open.items()):
            if proxy.phase is Desired.PENDING and self.begins(proxy):
                self._starting(trial_id, now)  # in case it was not seen to start
            doing = proxy.doing
            if doing is Actual.SAVING:
                continue  # skipped early: all running trials may be saving at each step
            waits = self.waiting.waits(trial_id)
            if trial_id in self._since and waits is None:
                self._waited(trial_id)  # it has its scores, or the scheduler has paused it
            move = self._next_action(proxy, doing, waits)
            if move is not Action.NOTHING:
                self._make(move, proxy)
            elif doing is Actual.HELD:
                held.append(proxy)
            elif not self._undecided(proxy, doing):
                self._proxies.open.pop(trial_id, None)
                if doing is Actual.ENDED and proxy.phase is not Desired.PAUSED:
                    self.emit(Hears(trial_id))  # it may have ended while its scores were pending
        if held:
            self._relieve_starvation(held)

    def _starting(self, trial_id: str, now: float) -> None:
        """Record that a trial has its resources and is starting, perhaps in a released slot."""
        if self._starts.begins(trial_id, now):
            self.waiting.given_up = max(0, self.waiting.given_up - 1)

    def _undecided(self, proxy: Proxy, doing: Actual) -> bool:
        """Return whether a trial will need an action even without another event."""
        if doing is Actual.ENDED:
            return False
        return (
            bool(proxy.change)
            or proxy.phase is Desired.ENDED
            or self.engine.record(proxy.trial_id).stopped
            or doing in (Actual.SAVING, Actual.HELD)
            or (doing is Actual.PAUSED and proxy.phase is Desired.RUNNING)
        )

    def _next_action(self, proxy: Proxy, doing: Actual, waits: Waits | None) -> Action:
        validates = self._pool.hosts(proxy.trial_id)
        way = Way.KEEP
        if waits is not None and doing is Actual.HELD and not validates:
            way = self.waiting.way(proxy, waits)
        return next_action(
            proxy.phase,
            doing,
            overwritten=proxy.change.restored_from is not None,
            changed=bool(proxy.change),
            waits=waits is not None and way is not Way.TRAIN,
            validates=validates,
            gives_way=way in (Way.SWAP, Way.RELEASE),
            leaves=self._leaves(proxy.real),
            stopped=self.engine.record(proxy.trial_id).stopped,
        )

    def _leaves(self, trial: Trial) -> bool:
        """Return whether a trial's node is about to end, and pausing it loses no progress."""
        controller = self.controller
        return (
            trial.trial_id in controller.leaving
            and (controller.can_resume(trial) or has_workers(trial))
            and (controller.can_save(trial) or not is_unsaved(trial))
        )

    def _make(self, move: Action, proxy: Proxy) -> None:
        trial, trial_id, controller = proxy.real, proxy.trial_id, self.controller
        if move is Action.GIVE_WAY:
            squeezed = self.waiting.squeezed
            self.waiting.given_up += not (squeezed or controller.reuses_actors)
            self._give_way(proxy, for_validations=squeezed)
            return
        self._waited(trial_id)
        proxy.held = False
        if move in (Action.TRAIN, Action.RESUME, Action.STOP):
            self._proxies.open.pop(trial_id, None)
        if move is Action.TRAIN:
            self._starts.trains(trial_id, self.clock.monotonic())
            controller.train(trial)
        elif move is Action.PAUSE:
            controller.pause(trial, save=is_unsaved(trial))
        elif move is Action.RESUME:
            self._ready[trial_id] = trial
        elif move is Action.STOP:
            controller.stop(trial)
        elif move is Action.CHANGE:
            self._ready.pop(trial_id, None)
            exploits = proxy.change.restored_from is not None
            change = self.user_scheduler.exploit(proxy) if exploits else proxy.change
            proxy.change = Change()
            controller.change(trial, change)

    def stop(self, trial_id: str) -> None:
        """Stop a trial by hand, at the end of this step or as soon as it can follow."""
        self._ready.pop(trial_id, None)
        self._proxies.reopen(self._proxies.by_id[trial_id])

    # While trials wait -------------------------------------------------------------------------

    def _give_way(self, proxy: Proxy, *, for_validations: bool = False) -> None:
        """Pause a waiting trial; its resources are for validations, or for another trial."""
        proxy.held = False
        self._since.setdefault(proxy.trial_id, self.clock.monotonic())
        # It will resume from the checkpoint that is being validated.
        self.controller.pause(proxy.real, save=False, for_validations=for_validations)

    def first_ready(self) -> Trial | None:
        """Return the first trial that released its resources and whose scores have arrived."""
        for trial_id, trial in list(self._ready.items()):
            if trial.status == Trial.PAUSED:
                self.controller.start_first(trial)
                return trial
            del self._ready[trial_id]
        return None

    def stands_no_more(self, proxy: Proxy) -> None:
        """Record that a trial has ended or failed, so that it waits for nothing."""
        proxy.held = False
        self._ready.pop(proxy.trial_id, None)
        self._starts.ends(proxy.trial_id)
        self._waited(proxy.trial_id)

    def _waited(self, trial_id: str) -> None:
        """Record how long a trial waited for its scores, if it did."""
        since = self._since.pop(trial_id, None)
        if since is not None:
            seconds = round(self.clock.monotonic() - since, 4)
            self.emit(Waited(trial_id=trial_id, seconds=seconds))

    def _relieve_starvation(self, held: list[Proxy]) -> None:
        """Pause a held trial if held trials keep all validations from starting.

        Otherwise, all actors would wait for scores while the validations wait for the actors'
        resources.
        """
        controller, pool, now = self.controller, self._pool, self.clock.monotonic()
        for proxy in held:
            self._since.setdefault(proxy.trial_id, now)
        # Processes of validations may take long to start.
        if pool.starved_s(now) < _STARVED_S or not self.waiting.contend:
            return
        held = [p for p in held if p.doing is Actual.HELD and self.waiting.waits(p.trial_id)]
        running = len(controller.running)
        if not held or len(held) < running:
            return
        first = held[0]
        resumes, waits = controller.can_resume(first.real), self.waiting.waits_for(first.trial_id)
        if when_starved(waits, resumes=resumes) is Way.TRAIN:
            self._make(Action.TRAIN, first)
        else:
            logger.warning("%s", no_room(first.trial_id, trials=running))
            self._give_way(first, for_validations=True)
            pool.relieved(now)
