"""Decide which trials wait for validations, and what may use their resources meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import DONE, TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler

from tunekit._ray.checkpoints import latest_checkpoint
from tunekit._ray.controller import Controller
from tunekit._ray.functions import is_checkpointable_function
from tunekit._ray.proxies import Proxy
from tunekit.clock import Clock
from tunekit.config import ValidationConfig
from tunekit.core.engine import Engine, JudgedBy
from tunekit.core.pending import (
    Waits,
    Way,
    pays_for_a_start,
    stands_still,
    waits_for,
    waits_for_each,
    while_it_waits,
)
from tunekit.core.pool import Pool
from tunekit.core.reconcile import Actual
from tunekit.core.room import Shares, total
from tunekit.core.start_times import StartTimes
from tunekit.scheduling.stopping import StoppingCriteria
from tunekit.scheduling.user_scheduler import UserScheduler
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Around, Launch, Validator


@dataclass(eq=False)
class Waiting(Around):
    """Decide which trials wait, and how trials and validations share resources.

    Args:
        config: The settings.
        trials: The trials of the sweep; others may be added.
        engine: The state of the sweep.
        stopping: The stopping criteria.
        validator: Runs the sweep's own validations.
        clock: The sweep's clock.
        controller: The sweep's controller.
        user_scheduler: Its scheduler.
        shares: How trials and validations share the cluster.
        over: Returns whether all trials have ended, so that the sweep waits only for validations.
    """

    config: ValidationConfig
    trials: Mapping[str, Trial]
    engine: Engine
    stopping: StoppingCriteria
    validator: Validator
    clock: Clock
    controller: Controller
    user_scheduler: UserScheduler
    shares: Shares
    over: Callable[[], bool]
    #: How long trials take to start, and to train an iteration.
    starts: StartTimes = field(default_factory=StartTimes, init=False)
    #: Trials that released their resources and whose scores have arrived.
    ready: dict[str, Trial] = field(default_factory=dict, init=False)
    #: The number of slots that trials have released and in which no other is starting yet.
    given_up: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        #: The validations whose scores the scheduler decides by.
        self.pool = self.validator.pool
        self.executor = self.validator.executor

    # Which scores count ------------------------------------------------------------------------

    @property
    def judged_by(self) -> JudgedBy:
        """See :class:`~tunekit.validating.validator.Around`."""
        return self.engine.judged_by

    # Which trials wait -------------------------------------------------------------------------

    def waits_for(self, trial_id: str) -> Waits:
        """Return for which of its pending scores a trial waits."""
        asked, trial = self.config.on_pending, self.trials.get(trial_id)
        if asked != "auto" or trial is None:
            return waits_for(asked)
        return waits_for(
            asked,
            in_process=self._hosts(trial),
            swaps=self.hands_over(trial, whole=True),
            short=self.validate_themselves and self.are_short,
            undecided=self.undecided(),
            synchronous=self.user_scheduler.traits.synchronous,
        )

    @property
    def are_short(self) -> bool:
        """Return whether validations are so short that a trial waits for each, as inline."""
        short = self.config.where == "trial" or self.pool.durations.are_short()
        return self.executor.in_trials and short

    def undecided(self) -> bool:
        """Return whether no decision depends on scores, and validating in trials saves starts."""
        fifo = type(self.user_scheduler.scheduler) is FIFOScheduler
        return fifo and self.validate_themselves and self.pool.durations.start_s > 0

    def waits(self, trial_id: str) -> Waits | None:
        """Return for which pending scores a trial that has reported waits; None if it does not."""
        if not self.engine.delivery.waits(trial_id):
            return None
        waits, resumes = self.waits_for(trial_id), self.controller.can_resume
        if waits is Waits.LATE and self.squeezed and not resumes(self.trials[trial_id]):
            return None  # no validation runs before it ends
        stands = stands_still(
            waits,
            decisions=self.engine.delivery.pending_decisions(trial_id),
            past_last=lambda: self.user_scheduler.past_last(trial_id),
        )
        return waits if stands else None

    def may_wait(self, proxy: Proxy) -> bool:
        """Return whether a trial that reports may have to wait for scores, and so is held.

        Whether it waits then depends on whether its report is saved and validated.
        """
        used, decides_again = proxy.serves is not None, self.user_scheduler.decides_again
        return stands_still(
            self.waits_for(proxy.trial_id),
            decisions=self.engine.delivery.pending_decisions(proxy.trial_id) + used,
            past_last=lambda: not used and not decides_again(proxy.trial_id),
        )

    def _start_in_trials(self, pool: Pool, *, elsewhere: bool) -> Launch:
        """Return the attempts to start now in the processes of waiting trials.

        If validations can also run elsewhere and are not short, they run only in trials whose slots
        would otherwise be unused, because they end first there.
        """
        short, undecided = self.are_short, self.undecided()
        hosts = {
            trial_id: proxy.real
            for trial_id, proxy in self.user_scheduler.proxies.open.items()
            if proxy.doing is Actual.HELD
            and not pool.hosts(trial_id)
            and trial_id not in self.controller.leaving
            and self._hosts(proxy.real)
            and (waits := self.waits(trial_id)) is not None
            and not (elsewhere and not short and self.way(proxy, waits) is not Way.KEEP)
        }
        attempts = pool.start_in_trials(
            hosts,
            each=waits_for_each(self.config.on_pending, short=short, undecided=undecided),
            others_wait=self.controller.has_new_trials and self._hand_over(),
            all_count=self.judged_by.all_count,
        )
        return attempts, hosts

    def way(self, proxy: Proxy, waits: Waits) -> Way:
        """Return what a waiting trial does, given what could use its resources.

        Args:
            proxy: The trial.
            waits: For which of its pending scores it waits.
        """
        scheduler = self.user_scheduler
        return while_it_waits(
            self.config.on_pending,
            waits,
            squeezed=self.squeezed,
            ready=bool(self.ready),
            new_trials=self.controller.has_new_trials,
            handed_over=self._is_taken(proxy.real),
            undecided=self.undecided(),
            decisions=self.engine.delivery.pending_decisions(proxy.trial_id),
            synchronous=scheduler.traits.synchronous,
            decides_again=lambda: scheduler.decides_again(proxy.trial_id),
        )

    # Resources ---------------------------------------------------------------------------------

    @property
    def _first(self) -> Trial | None:
        """Return the first trial, which represents all others."""
        return next(iter(self.trials.values()), None)

    @property
    def validate_themselves(self) -> bool:
        """Return whether checkpoints are validated in the processes of waiting trials."""
        trial = self._first
        return self.config.on_pending != "continue" and trial is not None and self._hosts(trial)

    def _hosts(self, trial: Trial) -> bool:
        """Return whether a validation could run in the processes of a trial while it waits."""
        return self.executor.fits_in(self.shares.processes(trial.placement_group_factory.bundles))

    @property
    def squeezed(self) -> bool:
        """Return whether validations can only run once a trial has released its resources."""
        return self.shares.squeezed and not self.validate_themselves

    def validates_last(self, trial: Trial) -> bool:
        """Return whether an ending trial can run its remaining validations in its process.

        It cannot if actors are reused: the next trial runs there.
        """
        controller = self.controller
        return not controller.reuses_actors and self._hosts(trial) and controller.has_actor(trial)

    def _is_taken(self, trial: Trial) -> bool:
        """Return whether another trial would run now in place of a waiting one."""
        controller = self.controller
        if not self.hands_over(trial) or is_unsaved(trial):
            return False  # it would lose its unsaved iterations
        takers = controller.without_actor + len(self.ready)
        return controller.reuses_actors or takers > self.given_up

    def hands_over(self, trial: Trial, *, whole: bool = False) -> bool:
        """Return whether another trial runs with the resources of a waiting one.

        Args:
            trial: The trial.
            whole: Whether it waits for a whole validation; otherwise, for the pending ones.
        """
        controller, pool = self.controller, self.pool
        if controller.reuses_actors:  # a function must have asked for its checkpoint
            return controller.can_resume(trial) or not is_checkpointable_function(
                trial.get_trainable_cls()
            )
        if not self.shares.apart or not controller.can_resume(trial):
            return False
        now = self.clock.monotonic()
        wait_s = pool.durations.typical_s if whole else pool.wait_s(trial.trial_id, now)
        return pays_for_a_start(wait_s, self.starts.typical_s)

    def _hand_over(self) -> bool:
        """Return whether trials usually hand over their resources to other trials."""
        controller = self.controller
        resumed = next(filter(controller.can_resume, self.trials.values()), None)
        if controller.reuses_actors and resumed is None:
            resumed = self._first
        return resumed is not None and self.hands_over(resumed, whole=True)

    def wants_all(self, trial: Trial) -> bool:
        """Return whether ``when`` selects every checkpoint of a trial, given its last report.

        With ``"auto"``, it does if it is not known which scores decide, or a stopper reads scores.
        """
        known = self.user_scheduler.traits.at_times and not self.stopping.may_read(trial)
        return self.config.when == "auto" and not known

    def saves(self, trial: Trial, report: Mapping[str, Any]) -> bool:
        """Return whether ``when`` lets a trial save at a report."""
        used = bool(report.get(DONE)) or self.user_scheduler.proxies.of(trial).serves is not None
        return used or self.wants_all(trial)

    def start(self, pool: Pool, executor: Executor, now: float) -> Iterator[Launch]:
        """See :class:`~tunekit.validating.validator.Around`."""
        capacity = executor.capacity(self.controller.promised()) if pool.needs_capacity else 0
        if pool.waiting and executor.in_trials:
            yield self._start_in_trials(pool, elsewhere=capacity > 0)
        # Where trials validate, other validations wait for resources; else one always starts.
        waits = self.validate_themselves and not self.over()
        yield pool.start(capacity, now, waits=waits, all_count=self.judged_by.all_count), {}

    @property
    def contend(self) -> bool:
        """Return whether trials and validations compete for resources."""
        trial = self._first
        if trial is None:
            return False
        needs = total(*trial.placement_group_factory.bundles)
        return not needs.keys().isdisjoint(self.executor.need)

    def places(self) -> int | None:
        """Return how many trials may have a process at once; None if only resources limit them.

        It is 0 while pending validations lack resources that trials would take. Only validations
        that the scheduler will use count, unless none fits next to a trial. (Trials that hand over
        their resources would lose these to the validations.)
        """
        wanted = not self.pool.idle if self.squeezed else self.pool.wants_room
        if wanted and self.contend and not self._hand_over():
            return 0
        return self.shares.at_once if self.validate_themselves else self.shares.leaving_room

    def lacking(self) -> bool:
        """Return whether a validation waits for resources that a trial's process may hold."""
        waits = self.pool.waiting > 0 or self.pool.queued > 0
        return waits and self.contend and not self.shares.apart

    def spare(self) -> None:
        """End evaluators without work if trials need their resources."""
        if self.contend and self.pool.idle and any(True for _ in self.controller.promised()):
            self.executor.spare(0 if self.validate_themselves else self.shares.validations)


def is_unsaved(trial: Trial) -> bool:
    """Return whether a trial has not saved its last report."""
    saved, step = latest_checkpoint(trial), trial.last_result.get(TRAINING_ITERATION)
    return saved is None or saved[1].get(TRAINING_ITERATION) != step
