"""The user's scheduler, which sees each trial at its newest delivered score."""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.controller import Controller
from tunekit._ray.proxies import Change, Proxy, ProxyController, Version
from tunekit._ray.scheduler_kinds import (
    mode_of,
    objectives_of,
    rule_for,
    time_attr_of,
    traits_of,
)
from tunekit.core.constraints import standing_for
from tunekit.core.decision_points import DecisionRule
from tunekit.core.delivery import Scored
from tunekit.core.engine import Engine
from tunekit.core.events import Decided, Event, Exploited, Reminded
from tunekit.core.history import GENERATION
from tunekit.core.metrics import flatten
from tunekit.core.reconcile import Actual, Desired
from tunekit.core.retention import Holder, for_clone, for_offered, for_scored
from tunekit.journal.encoding import resolve_opaque
from tunekit.scheduling.state import SchedulerState
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)


class UserScheduler:
    """Pass results and ends of trials to the user's scheduler, and process its decisions.

    Its decisions change only proxies; ``tunekit.scheduling.trial_actions`` carries them out.

    Args:
        state: The scheduler, and its view of trials.
        controller: The sweep's controller.
        engine: The state of the sweep.
        validator: Runs the validations.
        emit: Records and applies each event.
    """

    def __init__(
        self,
        state: SchedulerState,
        controller: Controller,
        engine: Engine,
        validator: Validator,
        emit: Callable[[Event], None],
    ):
        #: The user's scheduler.
        self.scheduler = state.scheduler
        #: The scheduler's saved state.
        self.state = state
        self.proxies = state.proxies
        self._controller, self._engine, self._validator = controller, engine, validator
        self._emit = emit
        #: The sweep as the scheduler sees it.
        self.view = ProxyController(
            controller.wrapped(),
            self.proxies.of,
            stopped=self.stopped,
            idle=self._idle,
        )
        #: The scheduler's kind.
        self.traits = traits_of(self.scheduler)
        #: In a restore, the number of results of each trial that are still to be replayed.
        self.to_hear: Counter[str] = Counter()

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the metrics that the scheduler ranks trials by, each with its mode."""
        return objectives_of(self.scheduler, self.mode)

    @property
    def mode(self) -> str | None:
        """Return the mode of the metric, ``"min"`` or ``"max"``; None if unknown."""
        return self.state.mode or mode_of(self.scheduler)

    # Which scores it uses ----------------------------------------------------------------------

    def serves(self, trial: Trial, report: Mapping[str, Any]) -> float | None:
        """Return the entry of the scheduler that a new report's score would fill, such as a rung.

        It is called once for each report; the result is kept in the proxy, then in the journal.
        """
        now = flatten(report).get(time_attr_of(self.scheduler))
        coming = self._engine.coming(trial.trial_id, before=report[TRAINING_ITERATION])
        return None if now is None else self._rule(trial.trial_id).serves(now, coming)

    def decides_again(self, trial_id: str) -> bool:
        """Return whether the scheduler can use a score of a later report of a trial."""
        coming = self._engine.coming(trial_id)
        return self._rule(trial_id).serves(math.inf, coming) is not None

    def past_last(self, trial_id: str) -> bool:
        """Return whether no score of a trial's newest or later reports can be used."""
        return not self._engine.record(trial_id).used and not self.decides_again(trial_id)

    def _rule(self, trial_id: str) -> DecisionRule:
        return rule_for(self.scheduler, self.proxies.by_id[trial_id])

    # Notifying the scheduler -------------------------------------------------------------------

    def add(self, proxy: Proxy) -> None:
        """Notify the scheduler of a new trial."""
        self.scheduler.on_trial_add(self.view, proxy)
        self.take_up()

    def restart(self, proxy: Proxy) -> None:
        """Report that a trial restarts, but only to a scheduler that was notified of the failure.

        A scheduler has seen the trial at its newest delivered score, and continues from there, so
        its comparisons do not depend on which machine failed. With Tune alone, the trial is new to
        the scheduler, and joins another bracket of HyperBand.
        """
        proxy.ending = False
        if proxy.phase is Desired.ENDED:
            return
        if proxy.failed:
            proxy.failed, proxy.phase = False, Desired.PENDING
            if not self.traits.replays:
                self.add(proxy)
        elif proxy.phase is Desired.RUNNING:
            proxy.phase = Desired.PENDING

    def fail(self, proxy: Proxy) -> None:
        """Notify the scheduler that a trial has failed for good; it can no longer be cloned."""
        if proxy.phase is not Desired.ENDED:
            proxy.failed, proxy.phase = True, Desired.PENDING
            self.scheduler.on_trial_error(self.view, proxy)
            self.take_up()
        self.gone(proxy.real)

    def complete(self, proxy: Proxy) -> None:
        """Record the end of a trial, to be delivered after its last score by :meth:`finish`.

        The trial can no longer be overwritten.
        """
        proxy.ending = True
        if proxy.change.restored_from is not None:
            self._void(proxy)

    def hears(self, trial_id: str) -> bool:
        """Return whether the scheduler may get a result of the trial now, or its end.

        It may not while it has paused the trial, because Tune's schedulers get results of running
        trials only.
        """
        return self.proxies.by_id[trial_id].phase in (Desired.RUNNING, Desired.ENDED)

    def told(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return a flat result for the scheduler, which does not know constraints."""
        return standing_for(result, self.objectives, self._engine.constraints)

    def judge(
        self,
        trial: Trial,
        result: dict[str, Any],
        scored: Scored,
        *,
        stops: bool,
        decided: str | None = None,
    ) -> str:
        """Pass a validated result of a trial to the scheduler; return its decision.

        The decision is carried out at the end of the step, or at the trial's next report. The
        scheduler may add to the result.

        Args:
            trial: The trial.
            result: The result, flat.
            scored: The score that is delivered.
            stops: Whether a stopping criterion ends the trial, so that the scheduler does not
                decide.
            decided: The decision before the sweep was interrupted, if there was one; it holds,
                because it may have been carried out.
        """
        proxy, request = self.proxies.of(trial), scored.request
        checkpoint = request.checkpoint or tune.Checkpoint(
            request.path, trial.storage.storage_filesystem
        )
        told = self.told(result)
        proxy.version = Version(
            trial_id=trial.trial_id,
            generation=request.generation,
            iteration=request.iteration,
            checkpoint=checkpoint,
            result=dict(told),
            report=scored.result,
            config=copy.deepcopy(proxy.config) if self.traits.clones else {},
        )
        self._keep(proxy)
        decision: str = TrialScheduler.STOP
        if not stops:
            proxy.judging = True
            decision = self.scheduler.on_trial_result(self.view, proxy, told)
            proxy.judging = False
            result.update({name: told[name] for name in told.keys() - result.keys()})
        if decided is not None and decision != decided:
            logger.info(
                "Trial %s, iteration %d: %s, as decided before the sweep was interrupted.",
                trial.trial_id,
                scored.iteration,
                decided,
            )
            decision = decided
        if decision == TrialScheduler.STOP:
            self.end(proxy)
        elif decision == TrialScheduler.PAUSE:
            proxy.pause()
        self.take_up()
        if decided == TrialScheduler.CONTINUE and proxy.change.restored_from is not None:
            self._void(proxy)  # it continued unchanged
        return decision

    def remind_of(self, proxy: Proxy, version: Version, decided: str | None = None) -> None:
        """Pass an earlier result of a paused trial to the scheduler again."""
        proxy.phase = Desired.RUNNING
        decision = self.scheduler.on_trial_result(self.view, proxy, dict(version.result))
        decision = decided or decision
        self._emit(
            Reminded(
                trial_id=proxy.trial_id,
                generation=version.generation,
                iteration=version.iteration,
                decision=decision,
            )
        )
        if decision == TrialScheduler.STOP:
            self.end(proxy)
        elif decision == TrialScheduler.PAUSE:
            proxy.phase = Desired.PAUSED
        self.proxies.reopen(proxy)

    def has_ended(self, trial: Trial) -> bool:
        """Return whether the scheduler has stopped a trial, or was notified of its end."""
        return self.proxies.of(trial).phase is Desired.ENDED

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Notify the scheduler of a trial's end, after all of the trial's results.

        It gets the trial's newest validated result, unless it has stopped the trial.
        """
        proxy = self.proxies.of(trial)
        if not self.has_ended(trial):
            if result is None:
                self.scheduler.on_trial_remove(self.view, proxy)
            else:
                told = {**self.told(result), DONE: True}
                self.scheduler.on_trial_complete(self.view, proxy, told)
            proxy.phase = Desired.ENDED
            self.take_up()
        self.gone(trial)

    def conclude(self, trial: Trial) -> None:
        """End a trial at the sweep's end, whatever the scheduler planned for it."""
        if not self.has_ended(trial):
            self.end(self.proxies.of(trial))

    def end(self, proxy: Proxy) -> None:
        """End a trial by the scheduler's decision, and notify it at once, as Tune does."""
        if proxy.phase is Desired.RUNNING and proxy.version is not None:
            result = {**proxy.version.result, DONE: True}
            self.scheduler.on_trial_complete(self.view, proxy, result)
        else:
            self.scheduler.on_trial_remove(self.view, proxy)
        self._give_up_change(proxy)
        proxy.phase = Desired.ENDED
        self.proxies.reopen(proxy)

    def gone(self, trial: Trial) -> None:
        """Record that a trial has ended, so that it can no longer be cloned."""
        proxy = self.proxies.of(trial)
        self.proxies.leave(proxy)
        self.proxies.offers.pop(trial.trial_id, None)
        proxy.change = Change()
        self._keep(proxy, gone=True)

    # Carrying out its decisions ----------------------------------------------------------------

    def stopped(self, proxy: Proxy) -> None:
        """End a trial that the scheduler has stopped, as Tune's ``stop_trial`` does.

        In a replay, a trial that continued the first time continues again.
        """
        if proxy.phase is Desired.ENDED or self.to_hear[proxy.trial_id]:
            return
        self.end(proxy)
        self.record_stop(proxy)

    def record_stop(self, proxy: Proxy) -> None:
        """Record that the scheduler has stopped a trial because of another trial's result."""
        self._emit(Decided(trial_id=proxy.trial_id, decision=TrialScheduler.STOP))

    def _idle(self) -> bool:
        """Return whether no trial is running or about to run, and no validation is pending.

        It is False during a replay: more may have happened than is known.
        """
        return (
            self._controller.still
            and self._validator.pool.idle
            and not any(proxy.stands is not None for proxy in self.proxies.by_id.values())
        )

    def take_up(self) -> None:
        """Process the scheduler's changes to trials, and keep the checkpoints that it has read."""
        for proxy in self.proxies.take_touched():
            change = proxy.change
            if change.restored_from is not None:
                if change.planned is not change.restored_from:
                    self._plan_exploit(proxy, change)
            elif change.config is not None and proxy.doing is Actual.STARTING:
                self._controller.change(proxy.real, change)
                proxy.change = Change()
            self._keep(proxy)

    def _plan_exploit(self, proxy: Proxy, change: Change) -> None:
        if proxy.doing is Actual.ENDED:
            self._void(proxy)
            return
        restored: Any = change.restored_from
        change.planned = restored
        offers = self.proxies.offers.values()
        same = (one for one in offers if one.checkpoint.path == restored.checkpoint.path)
        change.source = next(same, None)
        proxy.phase = Desired.PAUSED

    def _void(self, proxy: Proxy) -> None:
        """Drop the change to a trial that ended, or continued, before it was overwritten."""
        self._give_up_change(proxy)
        proxy.phase = Desired.RUNNING
        self.proxies.reopen(proxy)

    def _give_up_change(self, proxy: Proxy) -> None:
        """Drop the changes to a trial, which will not be applied."""
        proxy.change = Change()
        self._keep(proxy)

    # Checkpoints for clones --------------------------------------------------------------------

    def _keep(self, proxy: Proxy, *, gone: bool = False) -> None:
        """Keep the checkpoints of a trial that may be cloned, and the one that overwrites it.

        Args:
            proxy: The trial.
            gone: Whether the trial has ended or failed for good, so that it cannot be cloned.
        """
        if not self.traits.clones:
            return
        trial_id, restored = proxy.trial_id, proxy.change.restored_from
        needed: dict[Holder, Any] = {
            for_scored(trial_id): None if gone else proxy.version,
            for_offered(trial_id): self.proxies.offers.get(trial_id),
            # It is restored from that one until it has saved its own.
            for_clone(trial_id, self._engine.ancestry.generation(trial_id) + 1): restored,
        }
        for holder, one in needed.items():
            if one is None:
                self._engine.leases.release(holder)
            else:
                owner = one.trial_id if isinstance(one, Version) else None
                self._engine.leases.take(holder, one.checkpoint.path, owner)

    def keep_all(self) -> None:
        """Keep the checkpoints that the saved scheduler of a restored sweep may clone."""
        for trial_id, proxy in self.proxies.by_id.items():
            self._keep(proxy, gone=self._engine.delivery.over(trial_id))

    def exploit(self, proxy: Proxy) -> Change:
        """Record that a trial is overwritten; return the change to apply."""
        trial, change, source = proxy.real, proxy.change, proxy.change.source
        restored: Any = change.restored_from
        old = copy.deepcopy(trial.config)
        metrics = restored.metrics if source is None else flatten(source.report)
        exploit = Exploited(
            trial_id=trial.trial_id,
            generation=self._engine.ancestry.generation(trial.trial_id) + 1,
            reached=trial.last_result.get(TRAINING_ITERATION, 0),
            donor_id=trial.trial_id if source is None else source.trial_id,
            donor_generation=0 if source is None else source.generation,
            iteration=metrics.get(TRAINING_ITERATION, 0),
            checkpoint=restored.checkpoint.path,
            score=next((metrics.get(name) for name in self.objectives), None),
            old_config=old,
            donor_config=old if source is None else source.config,
            config=copy.deepcopy(old if change.config is None else dict(change.config)),
        )
        return self._overwrite(proxy, exploit, change)

    def exploit_again(self, trial: Trial, exploit: Exploited, version: Version | None) -> Change:
        """Overwrite a trial as before the sweep was interrupted; return the change to apply.

        Args:
            trial: The trial.
            exploit: The recorded exploit.
            version: The checkpoint that was cloned, if the journal has it.
        """
        proxy, planned = self.proxies.of(trial), self.proxies.of(trial).change
        source, place = planned.source, (exploit.donor_id, exploit.donor_generation)
        if source is None or source.place[:3] != (*place, exploit.iteration):
            source = version
        known = [trial.config, planned.config, None if source is None else source.config]
        config = resolve_opaque(exploit.config, known)
        proxy.phase = Desired.PAUSED
        return self._overwrite(proxy, exploit, Change(config, planned.tag, source=source))

    def _overwrite(self, proxy: Proxy, exploit: Exploited, change: Change) -> Change:
        self._emit(exploit)
        if change.source is not None:
            proxy.version = change.source
            instead = {"trial_id": proxy.trial_id, GENERATION: exploit.generation}
            change.restored_from = change.source.restorable(config=change.config, **instead)
        proxy.change = Change()
        self._keep(proxy)
        return change
