"""The user's scheduler, which sees trials where their newest delivered scores were earned."""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, DONE, TRAINING_ITERATION
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
from tunekit._ray.decisions import (
    decides_alike,
    innermost,
    is_synchronous,
    mode_of,
    rule_for,
    time_attr_of,
)
from tunekit._ray.stand_ins import Change, StandIn, StandInController, Version
from tunekit.core.confidence import Interval
from tunekit.core.decisions import DecisionRule
from tunekit.core.delivery import Scored
from tunekit.core.engine import Engine
from tunekit.core.events import Decided, Event, Exploited, Reminded
from tunekit.core.history import GENERATION
from tunekit.core.lineage import Exploit
from tunekit.core.metrics import flatten
from tunekit.core.reconcile import Actual, Desired
from tunekit.core.validation import Request
from tunekit.journal.encoding import resolve_opaque
from tunekit.results.leases import CheckpointLeases
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


class BaseScheduler:
    """Gives the user's scheduler results and ends of trials, and takes what it makes of them.

    What it decides changes stand-ins only: ``tunekit.scheduling.trial_actions`` carries that out.

    Args:
        state: The scheduler, and what it knows of trials.
        controller: The sweep's controller.
        engine: The state of the sweep.
        validator: Runs the validations.
        leases: Which checkpoints are needed.
        emit: Takes each event, before anything comes of it.
    """

    def __init__(
        self,
        state: SchedulerState,
        controller: Controller,
        engine: Engine,
        validator: Validator,
        leases: CheckpointLeases,
        emit: Callable[[Event], None],
    ):
        #: The user's scheduler.
        self.scheduler = state.base
        #: The same, as it is saved.
        self.state = state
        self.stand_ins = state.stand_ins
        self._controller, self._engine, self._validator = controller, engine, validator
        self._leases, self._emit = leases, emit
        #: The sweep as the scheduler sees it.
        self.view = StandInController(
            controller.wrapped(), self.stand_ins.of, stopped=self.stopped, idle=self._idle
        )
        decides = innermost(self.scheduler)
        # It takes a restarted trial for a second one, and refuses it.
        self._replays = isinstance(decides, PopulationBasedTrainingReplay)
        self._may_clone = type(decides) not in _CLONE_NOTHING
        #: In a restore, how many results of each trial the scheduler is still to be given again.
        self.to_hear: Counter[str] = Counter()

    @property
    def compares_all(self) -> bool:
        """Return whether it compares all trials at the same time: synchronous PBT."""
        return is_synchronous(innermost(self.scheduler))

    @property
    def objectives(self) -> set[str]:
        """Return the metric that it ranks trials by, if any."""
        return objectives_of(self.scheduler)

    @property
    def mode(self) -> str | None:
        """Return which values of the metric are better, ``"min"`` or ``"max"``; None if unknown."""
        return self.state.mode or mode_of(self.scheduler)

    # Which scores it uses ----------------------------------------------------------------------

    def serves(self, trial: Trial, report: Mapping[str, Any]) -> float | None:
        """Return what the score of a trial's new report would serve in its internal state, if any.

        Call this with each report, as often as you like.
        """
        now = flatten(report).get(time_attr_of(self.scheduler))
        coming = self._engine.coming(trial.trial_id, before=report[TRAINING_ITERATION])
        return None if now is None else self._rule(trial.trial_id).serves(now, coming)

    def uses(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether it will use the score of a trial's new report, or that is the last."""
        return bool(report.get(DONE)) or self.serves(trial, report) is not None

    def decides_again(self, trial_id: str) -> bool:
        """Return whether it can use a score of a later report of a trial, too."""
        coming = self._engine.coming(trial_id)
        return self._rule(trial_id).serves(math.inf, coming) is not None

    def past_last(self, trial_id: str) -> bool:
        """Return whether a trial has reported after the last report whose score it can use."""
        return not self._engine.record(trial_id).used and not self.decides_again(trial_id)

    def decides_alike(self, request: Request, metric: str, interval: Interval) -> bool:
        """Return whether it decides the same wherever in an interval a score is; if unknown, no."""
        if request.serves is None or metric not in self.objectives:
            return True
        stand_in = self.stand_ins.by_id[request.trial_id]
        return decides_alike(self.scheduler, stand_in, request.serves, interval)

    def _rule(self, trial_id: str) -> DecisionRule:
        return rule_for(self.scheduler, self.stand_ins.by_id[trial_id])

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
        self,
        trial: Trial,
        result: dict[str, Any],
        scored: Scored,
        *,
        stops: bool,
        decided: str | None = None,
    ) -> str:
        """Give it a validated result of a trial; return what it decided.

        The decision is carried out at the end of the step, or at the trial's next report. The
        scheduler may add to the result.

        Args:
            trial: The trial.
            result: The result, flat.
            scored: The score that is delivered.
            stops: Whether the trial ends whatever the scheduler says, which is then not asked.
            decided: What it decided before the sweep was interrupted, if it did; that decision
                holds, because it may have been carried out.
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
        self._keep(stand_in)
        decision: str = TrialScheduler.STOP
        if not stops:
            stand_in.judging = True
            decision = self.scheduler.on_trial_result(self.view, stand_in, result)
            stand_in.judging = False
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

    def remind_of(self, stand_in: StandIn, version: Version, decided: str | None = None) -> None:
        """Give it a result of a paused trial again that it has seen; see ``core/reminders.py``."""
        stand_in.phase = Desired.RUNNING
        decision = self.scheduler.on_trial_result(self.view, stand_in, dict(version.result))
        decision = decided or decision
        self._emit(
            Reminded(
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

    def has_ended(self, trial: Trial) -> bool:
        """Return whether it has stopped a trial, or has been told of its end."""
        return self.stand_ins.of(trial).phase is Desired.ENDED

    def finish(self, trial: Trial, result: Mapping[str, Any] | None) -> None:
        """Tell it of a trial's end, when it has got all of the trial's results.

        It gets the trial's newest validated result, unless it has stopped the trial.
        """
        stand_in = self.stand_ins.of(trial)
        if not self.has_ended(trial):
            if result is None:
                self.scheduler.on_trial_remove(self.view, stand_in)
            else:
                self.scheduler.on_trial_complete(self.view, stand_in, {**result, DONE: True})
            stand_in.phase = Desired.ENDED
            self.take_up()
        self.gone(trial)

    def conclude(self, trial: Trial) -> None:
        """End a trial at the sweep's end, whatever it was about to do with it."""
        if not self.has_ended(trial):
            self.end(self.stand_ins.of(trial))

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
        self.stand_ins.offers.pop(trial.trial_id, None)
        stand_in.change = Change()
        self._keep(stand_in, gone=True)

    # What it does ------------------------------------------------------------------------------

    def stopped(self, stand_in: StandIn) -> None:
        """End a trial that it has stopped, as Tune's ``stop_trial`` does.

        In a restored sweep, a trial that ran on before runs on.
        """
        if stand_in.phase is Desired.ENDED or self.to_hear[stand_in.trial_id]:
            return
        self.end(stand_in)
        self.record_stop(stand_in)

    def record_stop(self, stand_in: StandIn) -> None:
        """Record that it has stopped a trial other than by the trial's own result."""
        self._emit(Decided(trial_id=stand_in.trial_id, decision=TrialScheduler.STOP))

    def _idle(self) -> bool:
        """Return whether no trial is running or about to run, and no validation is pending.

        Never during a replay: more may have happened than is known.
        """
        return (
            self._controller.still
            and self._validator.quiet
            and all(stand_in.stands is None for stand_in in self.stand_ins.by_id.values())
        )

    def take_up(self) -> None:
        """Process what it has given to trials, and got hold of."""
        for stand_in in self.stand_ins.take_touched():
            change = stand_in.change
            if change.restored_from is not None:
                if change.planned is not change.restored_from:
                    self._plan_exploit(stand_in, change)
            elif change.config is not None and stand_in.doing is Actual.STARTING:
                self._controller.change(stand_in.real, change)
                stand_in.change = Change()
            self._keep(stand_in)

    def _plan_exploit(self, stand_in: StandIn, change: Change) -> None:
        if stand_in.doing is Actual.ENDED:
            self._void(stand_in)
            return
        restored: Any = change.restored_from
        change.planned = restored
        offers = self.stand_ins.offers.values()
        same = (one for one in offers if one.checkpoint.path == restored.checkpoint.path)
        change.source = next(same, None)
        stand_in.phase = Desired.PAUSED

    def _void(self, stand_in: StandIn) -> None:
        """Leave a trial as it was: it ended before it was overwritten."""
        self._give_up_change(stand_in)
        stand_in.phase = Desired.RUNNING

    def _give_up_change(self, stand_in: StandIn) -> None:
        """Drop what was given to a trial: it will not take it up."""
        stand_in.change = Change()
        self._keep(stand_in)

    # What it clones ----------------------------------------------------------------------------

    def _keep(self, stand_in: StandIn, *, gone: bool = False) -> None:
        """Keep the checkpoints of a trial that it may clone, and the one to overwrite it with.

        Args:
            stand_in: The trial.
            gone: Whether the trial has ended or failed for good, so that it is not cloned any more.
        """
        if not self._may_clone:
            return
        trial_id, restored = stand_in.trial_id, stand_in.change.restored_from
        known: dict[tuple[Any, ...], Any] = {
            ("scored", trial_id): None if gone else stand_in.version,
            ("offered", trial_id): self.stand_ins.offers.get(trial_id),
            # Until it has saved something itself, it is restored from there.
            ("clone", trial_id, self._engine.ancestry.generation(trial_id) + 1): restored,
        }
        for holder, one in known.items():
            if one is None:
                self._leases.release(holder)
            else:
                self._leases.take(holder, one.checkpoint.path)

    def keep_all(self) -> None:
        """Keep what the saved scheduler of a restored sweep may clone, or is about to."""
        for trial_id, stand_in in self.stand_ins.by_id.items():
            self._keep(stand_in, gone=self._engine.delivery.over(trial_id))

    def exploit(self, stand_in: StandIn) -> Change:
        """Record that a trial is overwritten now with what it was given; return what it takes."""
        trial, change, source = stand_in.real, stand_in.change, stand_in.change.source
        restored: Any = change.restored_from
        old = copy.deepcopy(trial.config)
        metrics = restored.metrics if source is None else source.result
        exploit = Exploit(
            time=0.0,  # it gets that as it is recorded
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
        return self._overwrite(stand_in, exploit, change)

    def exploit_again(self, trial: Trial, exploit: Exploit, version: Version | None) -> Change:
        """Overwrite a trial as before the sweep was interrupted; return what it is given.

        Args:
            trial: The trial.
            exploit: What was done.
            version: The checkpoint that was cloned, if it is known from the journal.
        """
        stand_in, planned = self.stand_ins.of(trial), self.stand_ins.of(trial).change
        source, place = planned.source, (exploit.donor_id, exploit.donor_generation)
        if source is None or source.place[:3] != (*place, exploit.iteration):
            source = version
        known = [trial.config, planned.config, None if source is None else source.config]
        config = resolve_opaque(exploit.config, known)
        stand_in.phase = Desired.PAUSED
        return self._overwrite(stand_in, exploit, Change(config, planned.tag, source=source))

    def _overwrite(self, stand_in: StandIn, exploit: Exploit, change: Change) -> Change:
        self._emit(Exploited.of(exploit))
        if change.source is not None:
            stand_in.version = change.source
            instead = {"trial_id": stand_in.trial_id, GENERATION: exploit.generation}
            change.restored_from = change.source.restorable(config=change.config, **instead)
        stand_in.change = Change()
        self._keep(stand_in)
        return change
