"""What is known: about a report that arrives, a trial that waits, and what a sweep runs on."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ray import train
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import DONE, SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit._ray.checkpoints import is_saved_at
from tunekit._ray.functions import is_checkpointable_function
from tunekit._ray.overrides import check_override
from tunekit._ray.scheduler_kinds import rule_for, time_attr_of, traits_of
from tunekit._ray.stoppers import reads_metrics
from tunekit.core.executor import Executor
from tunekit.core.metrics import VALIDATION_KEY, flatten, metric_of
from tunekit.core.shares import Shares
from tunekit.core.sweep import About
from tunekit.core.timing import Clock
from tunekit.core.values import finite_number
from tunekit.core.waiting import Abilities, Situation, WaitingTrial
from tunekit.messages.problems import Problems

logger = logging.getLogger(__name__)


class Facts:
    """Gather what is known, for rules that know no Ray.

    Args:
        tune: The sweep's controller.
        scheduler: The user's scheduler.
        executor: Runs the validations.
        shares: How trials and validations share the cluster.
        clock: The sweep's clock.
    """

    def __init__(
        self,
        tune: TuneController,
        scheduler: Any,
        executor: Executor,
        shares: Shares,
        clock: Clock,
    ):
        self._tune, self._scheduler, self._traits = tune, scheduler, traits_of(scheduler)
        self._executor, self._shares, self._clock = executor, shares, clock
        self._need = executor.need.keys()
        # What each trial can do, and what that follows from.
        self._known: dict[Trial, tuple[Any, Abilities]] = {}

    # About the sweep ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return the time, in seconds on a clock that is never set back."""
        return self._clock.monotonic()

    @property
    def has_rounds(self) -> bool:
        """Return whether the scheduler waits for all trials of a round."""
        return self._traits.waits_for_all

    def situation(self) -> Situation:
        """Return what is known about the sweep's resources and processes now."""
        tune, trials = self._tune, self._tune._trials
        return Situation(
            now=self.now,
            typical=self._abilities(trials[0]) if trials else Abilities(),
            in_trials=self._executor.in_trials,
            reuses=tune.processes.reuses_actors,
            others_wait=tune.processes.has_new_trials,
            runs=bool(tune._running_trials),
            leaving=frozenset(tune.ending.leaving),
            stopping=frozenset(tune.sweep.state.stopping),
            out_of_time=tune.session.out_of_time,
        )

    # About a trial -----------------------------------------------------------------------------

    def waiting_trials(self) -> Iterator[WaitingTrial]:
        """Yield the trials that wait in their processes, in order."""
        return map(self.trial, self._tune.queues.waiting_in_place)

    def trial(self, trial: Trial) -> WaitingTrial:
        """Return what is known about a trial that waits, or that may train on."""
        queue = self._tune.sweep.queue_of(trial.trial_id)
        rule = rule_for(self._scheduler, trial)
        again = rule.decision_point(math.inf, queue.pending_points(math.inf)) is not None
        saved, reached = trial.latest_checkpoint_result, trial.last_result.get(TRAINING_ITERATION)
        return WaitingTrial(
            trial_id=trial.trial_id,
            queue=queue,
            can=self._abilities(trial),
            decides_again=again,
            is_saved=saved is not None and saved.metrics.get(TRAINING_ITERATION) == reached,
            has_process=self._tune.processes.has_actor(trial),
            asks_until=self._tune.inquiries.until(trial),
        )

    def _abilities(self, trial: Trial) -> Abilities:
        resumes = self._tune.capabilities.can_resume(trial)
        # Ray copies bundles slowly, but keeps them in the same object.
        key = trial.placement_group_factory, self._executor.in_trials, resumes
        known = self._known.get(trial)
        if known is not None and known[0] == key:
            return known[1]
        factory, cls = trial.placement_group_factory, trial.get_trainable_cls()
        abilities = Abilities(
            hosts=self._executor.fits_in(self._shares.processes(factory.bundles)),
            resumes=resumes,
            # A function must have asked for its checkpoint.
            hands_over=resumes or not is_checkpointable_function(cls),
            competes=not self._need.isdisjoint(factory.required_resources),
        )
        self._known[trial] = key, abilities
        return abilities

    # About a report ----------------------------------------------------------------------------

    def about(self, trial: Trial, report: dict[str, Any]) -> About:
        """Return what is known about a report that the policies have seen.

        The report may be changed: it loses its request for a validation, and a trial that must
        save gets a request for that.
        """
        problems = Problems(f"Trial {trial.trial_id}, iteration {report[TRAINING_ITERATION]}")
        asked = check_override(VALIDATION_KEY, report.pop(VALIDATION_KEY, None), problems)
        if problems:
            logger.warning("%s The sweep's own setting is used.", problems.error())
        point, last = self._decision_point(trial, report), self.is_last(trial, report)
        leaves = trial.trial_id in self._tune.ending.leaving
        if asked or (leaves and self._tune.capabilities.can_save(trial)):
            report[SHOULD_CHECKPOINT] = True
        saves = is_saved_at(trial, report, last=last)
        task = asked if isinstance(asked, train.ValidationTaskConfig) else None
        return About(
            point=point,
            last=last,
            saves=saves,
            requests=None if asked is None else bool(asked),
            kwargs=(task and task.fn_kwargs) or {},
            timeout_s=task and (task.timeout_s or 0.0),
            wants_all=saves and self._wants_all(trial),
            # A function does not say which is its last.
            may_be_last=bool(trial.checkpoint_at_end)
            and not last
            and is_checkpointable_function(trial.get_trainable_cls()),
            config=trial.config,
        )

    def _decision_point(self, trial: Trial, report: Mapping[str, Any]) -> float | None:
        """Return the scheduler's slot that a report's score would fill, such as a rung."""
        now = metric_of(report, time_attr_of(self._scheduler))
        if now is None:
            return None
        queue = self._tune.sweep.queue_of(trial.trial_id)
        pending = queue.pending_points(report[TRAINING_ITERATION])
        return finite_number(rule_for(self._scheduler, trial).decision_point(now, pending))

    def saves(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether ``when`` allows a trial to save at a report."""
        used = self._decision_point(trial, report) is not None
        return used or self._wants_all(trial) or self.is_last(trial, report)

    def _wants_all(self, trial: Trial) -> bool:
        """Return whether ``when`` selects every checkpoint of a trial.

        With ``"auto"``, it does if it is unknown which scores decide, or if a stopper reads scores.
        """
        if self._tune.sweep.rules.when != "auto":
            return False
        criteria, stopper = trial.stopping_criterion.keys(), self._tune._stopper
        reads = reads_metrics(stopper) or not criteria <= {TRAINING_ITERATION}
        return reads or not self._traits.at_times

    def is_last(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether a trial ends with a report, judging by training's own metrics."""
        if report.get(DONE):
            return True
        if not (criteria := trial.stopping_criterion):
            return False
        flat, names = flatten(report), self._tune.sweep.names
        return any(n in flat and flat[n] >= m for n, m in criteria.items() if n not in names)
