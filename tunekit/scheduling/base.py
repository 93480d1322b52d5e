"""The user's scheduler, which sees trials where their newest delivered scores were earned."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, DONE
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)

from tunekit._ray.controller import Controller
from tunekit._ray.decisions import exhausts, innermost, is_synchronous
from tunekit._ray.stand_ins import Change, StandIn, StandInController, Version
from tunekit.core.delivery import Scored
from tunekit.core.events import Decided, Event, Reminded
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Exploit
from tunekit.core.reconcile import Actual, Desired
from tunekit.schedulers import PromotionASHA
from tunekit.scheduling.state import SchedulerState
from tunekit.validating.validator import Validator

__all__ = ["BaseScheduler", "objectives_of"]

logger = logging.getLogger(__name__)

# Schedulers that clone no checkpoints.
_CLONE_NOTHING = (
    FIFOScheduler,
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    HyperBandForBOHB,
    MedianStoppingRule,
    PromotionASHA,
)


def objectives_of(scheduler: TrialScheduler) -> set[str]:
    """Return the metric that a scheduler judges by, if any.

    Example:
        >>> objectives_of(AsyncHyperBandScheduler(metric="accuracy", mode="max"))
        {'accuracy'}
        >>> objectives_of(FIFOScheduler())
        set()
    """
    metric = scheduler.metric
    return {metric} if isinstance(metric, str) and metric != DEFAULT_METRIC else set()


class _Validations(Protocol):
    """What the base scheduler needs of the sweep's validations."""

    validator: Validator

    def emit(self, event: Event) -> None:
        """Record an event, before anything comes of it."""
        ...

    def time(self) -> float:
        """Return the seconds since the epoch."""
        ...

    def reached(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Return whether a validated result ends its trial by ``RunConfig(stop=...)``."""
        ...

    def heard_later(self, trial_id: str) -> bool:
        """Return whether, in a restore, the scheduler heard of a trial again later."""
        ...

    def exploited(self, trial: Trial, exploit: Exploit) -> None:
        """Record that a trial is about to be overwritten."""
        ...


class BaseScheduler:
    """Gives the user's scheduler results and ends of trials, and takes what it makes of them.

    What it decides changes stand-ins only: ``tunekit.scheduling.trial_actions`` carries that out.

    Args:
        state: The scheduler, and what it knows of trials.
        controller: The sweep's controller.
        validations: The sweep's validations.
    """

    def __init__(
        self, state: SchedulerState, controller: Controller, validations: _Validations
    ) -> None:
        #: The user's scheduler.
        self.scheduler = state.base
        self.stand_ins, self.usage, self._clones = state.stand_ins, state.usage, state.clones
        self._controller, self._validations = controller, validations
        #: The sweep as the scheduler sees it.
        self.view = StandInController(
            controller.wrapped(), self.stand_ins.of, stopped=self.stopped, idle=self._idle
        )
        decides = innermost(self.scheduler)
        # It takes a restarted trial for a second one, and refuses it.
        self._replays = isinstance(decides, PopulationBasedTrainingReplay)
        self._may_clone = type(decides) not in _CLONE_NOTHING
        # Trials that were stopped and had run their course.
        self._finished: set[str] = set()

    @property
    def compares_all(self) -> bool:
        """Return whether it compares all trials at the same time: synchronous PBT."""
        return is_synchronous(innermost(self.scheduler))

    # What it is told ---------------------------------------------------------------------------

    def add(self, stand_in: StandIn) -> None:
        """Tell it of a new trial."""
        self.scheduler.on_trial_add(self.view, stand_in)
        self.take_up()

    def restart(self, stand_in: StandIn) -> None:
        """Take that a trial starts again. It hears of that only if it had heard of the failure.

        It has seen the trial at its newest delivered score, and goes on from there: which trials it
        compares, and when, does not depend on whose machine was lost. Tune's own sweeps begin anew
        with the trial, which then joins another bracket of HyperBand's.
        """
        stand_in.ending = False
        if stand_in.phase is Desired.ENDED:
            return
        if stand_in.failed:
            stand_in.failed, stand_in.phase = False, Desired.PENDING
            if not self._replays:
                self.add(stand_in)
        elif stand_in.phase is Desired.RUNNING:
            stand_in.phase = Desired.PENDING

    def fail(self, stand_in: StandIn) -> None:
        """Tell it that a trial has failed for good: it is no longer cloned."""
        if stand_in.phase is not Desired.ENDED:
            stand_in.failed, stand_in.phase = True, Desired.PENDING
            self.scheduler.on_trial_error(self.view, stand_in)
            self.take_up()
        self.gone(stand_in.real)

    def complete(self, stand_in: StandIn) -> None:
        """Take the end of a trial; it hears of that after the trial's last score: :meth:`finish`.

        The trial is not overwritten any more.
        """
        stand_in.ending = True
        if stand_in.change.restored_from is not None:
            self._void(stand_in)

    def hears(self, trial_id: str) -> bool:
        """Return whether it may get a result of the trial now, or its end.

        Not while it has paused the trial: Tune's schedulers get results of running trials only.
        """
        return self.stand_ins.by_id[trial_id].phase in (Desired.RUNNING, Desired.ENDED)

    def judge(
        self, trial: Trial, result: dict[str, Any], scored: Scored, decided: str | None = None
    ) -> str:
        """Give it a validated result of a trial; return what it decided.

        The decision is carried out at the end of the step, or at the trial's next report. The
        scheduler may add to the result. In a restored sweep it may have ``decided`` before; that
        decision holds, because it may have been carried out.
        """
        stand_in, request = self.stand_ins.of(trial), scored.request
        checkpoint = request.checkpoint or tune.Checkpoint(
            request.path, trial.storage.storage_filesystem
        )
        stand_in.version = Version(
            trial_id=trial.trial_id,
            generation=request.generation,
            iteration=request.iteration,
            checkpoint=checkpoint,
            result=dict(result),
            report=scored.result,
            config=copy.deepcopy(stand_in.config) if self._may_clone else {},
        )
        if self._may_clone:
            self._clones.scored(trial, request.path)
        if self._validations.reached(trial.trial_id, result):
            decision = TrialScheduler.STOP
            self._finished.add(trial.trial_id)
        else:
            stand_in.judging = True
            decision = self.scheduler.on_trial_result(self.view, stand_in, result)
            stand_in.judging = False
            if decision == TrialScheduler.STOP and exhausts(self.scheduler, result):
                self._finished.add(trial.trial_id)
        if decided is not None and decision != decided:
            logger.info(
                "Trial %s, iteration %d: %s, as was decided before the sweep was interrupted.",
                trial.trial_id,
                scored.iteration,
                decided,
            )
            decision = decided
        if decision == TrialScheduler.STOP:
            self.end(stand_in)
        elif decision == TrialScheduler.PAUSE:
            stand_in.pause()
        self.take_up()
        if decided == TrialScheduler.CONTINUE and stand_in.change.restored_from is not None:
            self._void(stand_in)  # it went on as it was
        return decision

    def has_run_its_course(self, trial_id: str) -> bool:
        """Return whether a trial that was stopped had run its course.

        It had if it reached the scheduler's ``max_t``, or a stopping criterion; otherwise it was
        rejected.
        """
        return trial_id in self._finished

    def remind_of(self, stand_in: StandIn, version: Version, decided: str | None = None) -> None:
        """Give it a result of a paused trial again that it has seen; see ``core/reminders.py``."""
        stand_in.phase = Desired.RUNNING
        decision = self.scheduler.on_trial_result(self.view, stand_in, dict(version.result))
        decision = decided or decision
        self._validations.emit(
            Reminded(
                time=self._validations.time(),
                trial_id=stand_in.trial_id,
                generation=version.generation,
                iteration=version.iteration,
                decision=decision,
            )
        )
        if decision == TrialScheduler.STOP:
            self.end(stand_in)
        elif decision == TrialScheduler.PAUSE:
            stand_in.phase = Desired.PAUSED
        self.stand_ins.reopen(stand_in)

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Tell it of a trial's end, when it has got all of the trial's results.

        It gets the trial's newest validated result, unless it has stopped the trial.
        """
        stand_in = self.stand_ins.of(trial)
        if stand_in.phase is not Desired.ENDED:
            if result is None:
                self.scheduler.on_trial_remove(self.view, stand_in)
            else:
                self._validations.reached(trial.trial_id, result)  # stoppers look across trials
                self.scheduler.on_trial_complete(self.view, stand_in, {**result, DONE: True})
            stand_in.phase = Desired.ENDED
            self.take_up()
        self.gone(trial)

    def conclude(self, trial: Trial) -> None:
        """End a trial at the sweep's end, whatever it was about to do with it."""
        stand_in = self.stand_ins.of(trial)
        if stand_in.phase is not Desired.ENDED:
            self.end(stand_in)

    def end(self, stand_in: StandIn) -> None:
        """End a trial by its word; it hears of the end at once, as in Tune."""
        if stand_in.phase is Desired.RUNNING and stand_in.version is not None:
            result = {**stand_in.version.result, DONE: True}
            self.scheduler.on_trial_complete(self.view, stand_in, result)
        else:
            self.scheduler.on_trial_remove(self.view, stand_in)
        self._give_up_change(stand_in)
        stand_in.phase = Desired.ENDED
        self.stand_ins.reopen(stand_in)

    def gone(self, trial: Trial) -> None:
        """Take that a trial has ended: it is no longer cloned."""
        stand_in = self.stand_ins.of(trial)
        self.stand_ins.leave(stand_in)
        stand_in.change = Change()
        self._clones.gone(trial.trial_id)

    # What it does ------------------------------------------------------------------------------

    def stopped(self, stand_in: StandIn) -> None:
        """End a trial that it has stopped, as Tune's ``stop_trial`` does.

        In a restored sweep, a trial that ran on before runs on.
        """
        if stand_in.phase is Desired.ENDED or self._validations.heard_later(stand_in.trial_id):
            return
        self.end(stand_in)
        self.record_stop(stand_in)

    def record_stop(self, stand_in: StandIn) -> None:
        """Record that it has stopped a trial other than by the trial's own result."""
        stop, time = TrialScheduler.STOP, self._validations.time()
        self._validations.emit(Decided(time=time, trial_id=stand_in.trial_id, decision=stop))

    def _idle(self) -> bool:
        """Return whether no trial is running or about to run, and no validation is pending.

        Never during a replay: more may have happened than is known.
        """
        return (
            self._controller.still
            and self._validations.validator.quiet
            and all(stand_in.stands is None for stand_in in self.stand_ins.by_id.values())
        )

    def take_up(self) -> None:
        """Process what it has given to trials."""
        for stand_in in self.stand_ins.take_touched():
            restored = stand_in.change.restored_from
            if restored is not None:
                if not self._clones.is_planned(stand_in.trial_id, restored):
                    self._plan_exploit(stand_in, restored)
            elif stand_in.change.config is not None and stand_in.doing is Actual.STARTING:
                self._controller.change(stand_in.real, stand_in.change)
                stand_in.change = Change()

    def _plan_exploit(self, stand_in: StandIn, restored: Any) -> None:
        if stand_in.doing is Actual.ENDED:
            self._void(stand_in)
            return
        self._clones.plan(stand_in.trial_id, restored)
        stand_in.phase = Desired.PAUSED

    def _void(self, stand_in: StandIn) -> None:
        """Leave a trial as it was: it ended before it was overwritten."""
        self._give_up_change(stand_in)
        stand_in.phase = Desired.RUNNING

    def _give_up_change(self, stand_in: StandIn) -> None:
        """Drop what was given to a trial: it will not take it up."""
        stand_in.change = Change()
        self._clones.give_up(stand_in.trial_id)

    # What it clones ----------------------------------------------------------------------------

    def exploit(self, stand_in: StandIn) -> None:
        """Record that a trial is overwritten now with the checkpoint that it was given."""
        trial, change = stand_in.real, stand_in.change
        source = self._clones.take_source(stand_in.trial_id)
        exploit = self._clones.exploit(
            trial,
            change.config,
            change.restored_from,
            source,
            objectives=objectives_of(self.scheduler),
            time=self._validations.time(),
        )
        self._overwrite(stand_in, exploit, source)

    def exploit_again(self, trial: Trial, exploit: Exploit, version: Version | None) -> Change:
        """Overwrite a trial as before the sweep was interrupted; return what it was given."""
        stand_in = self.stand_ins.of(trial)
        stand_in.change, source = self._clones.again(trial, stand_in.change, exploit, version)
        self._overwrite(stand_in, exploit, source)
        change, stand_in.change = stand_in.change, Change()
        stand_in.phase = Desired.PAUSED
        return change

    def _overwrite(self, stand_in: StandIn, exploit: Exploit, source: Version | None) -> None:
        change = stand_in.change
        self._validations.exploited(stand_in.real, exploit)
        self.usage.overwritten(stand_in.trial_id)
        if source is not None:
            stand_in.version = source
            self._clones.overwritten(stand_in.trial_id, source)
            instead = {"trial_id": stand_in.trial_id, GENERATION: exploit.generation}
            change.restored_from = source.restorable(config=change.config, **instead)

    def take_leases(self) -> None:
        """Take again the leases that the saved sweep had for cloning."""
        self._clones.take_leases(
            (trial_id, stand_in.version)
            for trial_id, stand_in in self.stand_ins.by_id.items()
            if stand_in.version is not None
            and self._may_clone
            and stand_in.phase is not Desired.ENDED
        )
