"""What trials do while their scores are pending, and what may use their resources."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tunekit._ray.functions import is_checkpointable_function
from tunekit._ray.scheduler_kinds import rule_for, traits_of
from tunekit._ray.validating_controller import ValidatingController
from tunekit.config import ValidationConfig
from tunekit.core.events import Waited
from tunekit.core.pool import Pool
from tunekit.core.queue import UNMEASURED, Circumstances, Next, Process, Queue, Wait, what_next
from tunekit.core.shares import Shares
from tunekit.core.timing import Clock, StartTimes
from tunekit.journal.ledger import Ledger
from tunekit.messages.advice import resources_advice
from tunekit.validating.executor import Executor
from tunekit.validating.validator import Hosts, Launch, Validator

logger = logging.getLogger(__name__)

# A brief shortage does not end a trial's process.
_STARVED_S = 2.0


@dataclass(eq=False)
class Waiting(Hosts):
    """Decide what trials do while their scores are pending, and where validations run.

    Args:
        config: The settings.
        ledger: The sweep's records.
        validator: Runs the sweep's validations.
        clock: The sweep's clock.
        controller: The sweep's controller.
        scheduler: The user's scheduler.
        shares: How trials and validations share the cluster.
    """

    config: ValidationConfig
    ledger: Ledger
    validator: Validator
    clock: Clock
    controller: ValidatingController
    scheduler: TrialScheduler
    shares: Shares
    #: How long trials take to start, and to train an iteration.
    starts: StartTimes = field(default_factory=StartTimes, init=False)
    # When each waiting trial began to wait for a score.
    _since: dict[str, float] = field(default_factory=dict, init=False)
    # The resources of each process of each trial, with the object that Ray keeps them in.
    _slots_of: dict[Trial, tuple[Any, Sequence[Mapping[str, float]]]] = field(
        default_factory=dict, init=False
    )
    # Trials that release their slots to validations that could not start otherwise.
    _relieved: set[str] = field(default_factory=set, init=False)
    # How many decisions the scheduler has made, and how many of them let trials continue.
    _decided: int = field(default=0, init=False)
    _continued: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.state = self.ledger.state
        self.pool = self.validator.pool
        self.executor = self.validator.executor
        self._traits = traits_of(self.scheduler)

    # Which scores count ------------------------------------------------------------------------

    @property
    def required(self) -> frozenset[str]:
        """See :class:`~tunekit.validating.validator.Hosts`."""
        return self.state.required

    # What a waiting trial does -----------------------------------------------------------------

    def reported(self, trial_id: str) -> None:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        self.starts.reported(trial_id, self.clock.monotonic())

    def decided(self, *, continues: bool) -> None:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        self._decided, self._continued = self._decided + 1, self._continued + continues

    def circumstances(self) -> Circumstances:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        lost, processes = self.controller.ending, self.controller.processes
        ending = frozenset(lost.ended_hosts | lost.leaving | self._relieved)
        reuses = processes.reuses_actors
        weighs = self.config.on_pending == "auto" or (self.shares.apart and not reuses)
        return Circumstances(
            "wait" if self.validates_each else self.config.on_pending,
            synchronous=self._traits.synchronous,
            others_wait=processes.has_new_trials,
            exclusive=self.exclusive,
            typical=self._typical_wait if weighs else UNMEASURED,
            rest=(ending, reuses),
        )

    def pop_moved(self) -> set[str]:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        return self.pool.pop_moved()

    def next(self, trial: Trial, queue: Queue, now: Circumstances) -> Next:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        what = self._next(trial, queue, now)
        if what is Next.TRAIN:
            self._waited(trial.trial_id)
            self.starts.trains(trial.trial_id, self.clock.monotonic())
        else:
            self._since.setdefault(trial.trial_id, self.clock.monotonic())
        if what is Next.RELEASE:
            self._relieved.discard(trial.trial_id)
        return what

    def _next(
        self, trial: Trial, queue: Queue, now: Circumstances, *, elsewhere: bool = False
    ) -> Next:
        wait = self._wait(trial, now.typical)
        elsewhere = elsewhere or self.pool.decides_elsewhere(trial.trial_id)
        return what_next(
            queue,
            now,
            self._process(trial, queue),
            wait,
            decides_again=self._decides_again(trial, queue),
            can_host=self._can_host(trial) and not elsewhere,
            can_release=self._can_release(trial, wait),
        )

    @property
    def _typical_wait(self) -> Wait:
        known, starts = self.pool.durations, self.starts
        continues = (self._continued + 1) / (self._decided + 1)
        return Wait(known.typical_s, known.late_s, starts.typical_s, starts.iteration_s, continues)

    def _wait(self, trial: Trial, typical: Wait) -> Wait:
        """Return how long a trial still waits.

        This decreases with time, so the trial has fewer and fewer reasons to do anything else.
        """
        now, trial_id = self.clock.monotonic(), trial.trial_id
        late_s = 0.0 if self.pool.decides_elsewhere(trial_id) else typical.late_s
        return typical._replace(wait_s=self.pool.wait_s(trial_id, now), late_s=late_s)

    def _process(self, trial: Trial, queue: Queue) -> Process:
        trial_id, ending = trial.trial_id, self.controller.ending
        if self.pool.runs_in(trial_id):
            return Process.VALIDATES
        if trial_id in ending.ended_hosts:
            return Process.ENDED
        leaves = trial_id in ending.leaving and self._can_leave(trial, queue)
        return Process.LEAVES if leaves or trial_id in self._relieved else Process.FREE

    def _decides_again(self, trial: Trial, queue: Queue) -> bool:
        rule = rule_for(self.scheduler, trial)
        return rule.decision_point(math.inf, queue.pending_points(math.inf)) is not None

    def _can_leave(self, trial: Trial, queue: Queue) -> bool:
        """Return whether a trial would continue elsewhere from its newest report."""
        if not self.controller.capabilities.can_resume(trial):
            return False
        if queue:
            return queue.resumable or queue.saves
        saved, reached = trial.latest_checkpoint_result, trial.last_result.get(TRAINING_ITERATION)
        return saved is not None and saved.metrics.get(TRAINING_ITERATION) == reached

    @property
    def validates_each(self) -> bool:
        """Return whether validations are so short that a trial waits for each, as if inline."""
        if self.config.on_pending == "continue" or not self.executor.in_trials:
            return False
        starts = self.starts
        trains_on = self.shares.dedicated and self._needs_no_score
        iteration_s = (starts.iteration_s or 0.0) if trains_on else None
        short = self.pool.durations.are_short(starts.typical_s, iteration_s)
        return self.config.where == "trial" or short

    @property
    def _needs_no_score(self) -> bool:
        """Return whether no decision depends on scores."""
        return type(self.scheduler) is FIFOScheduler and self.config.on_pending == "auto"

    @property
    def undecided(self) -> bool:
        """Return whether no trial has to wait for a score, because no decision depends on one."""
        return self._needs_no_score and not self.validates_each

    def stops_waiting(self, trial_id: str) -> None:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        self.starts.ends(trial_id)
        self._waited(trial_id)

    def _waited(self, trial_id: str) -> None:
        """Record how long a trial waited for its scores, if it did."""
        since = self._since.pop(trial_id, None)
        if since is not None and (seconds := round(self.clock.monotonic() - since, 4)):
            self.ledger.record(Waited(trial_id=trial_id, seconds=seconds))

    def host_ended(self, trial_id: str) -> None:
        """See :class:`~tunekit.validating.validator.Hosts`."""
        self.controller.ending.ended_hosts.add(trial_id)

    def waits(self, trial_id: str) -> bool:
        """Return whether a trial waits for a score now."""
        return trial_id in self._since

    # Where validations run ---------------------------------------------------------------------

    def _can_host(self, trial: Trial) -> bool:
        """Return whether a validation can run in the processes of a trial while it waits."""
        if self.config.on_pending == "continue":
            return False
        factory, processes = self._slots_of.get(trial, (None, ()))
        if factory is not trial.placement_group_factory:  # Ray copies bundles slowly
            factory = trial.placement_group_factory
            processes = self.shares.processes(factory.bundles)
            self._slots_of[trial] = factory, processes
        return self.executor.fits_in(processes)

    def _typically(self, rule: Callable[[Trial], bool]) -> bool:
        """Return whether something is true of the first trial, and thus probably of the others."""
        trials = self.controller.get_trials()
        return bool(trials) and rule(trials[0])

    @property
    def validate_themselves(self) -> bool:
        """Return whether checkpoints are validated in the processes of waiting trials."""
        return self._typically(self._can_host)

    @property
    def exclusive(self) -> bool:
        """Return whether validations can only run once a trial has released its resources."""
        return self.shares.exclusive and not self.validate_themselves

    def start(self, pool: Pool, executor: Executor, now: float) -> Iterator[Launch]:
        """See :class:`~tunekit.validating.validator.Hosts`."""
        promised = self.controller.processes.promised
        capacity = executor.capacity(promised()) if pool.needs_capacity else 0
        if pool.queued and executor.in_trials:
            yield self._start_in_trials(pool, elsewhere=capacity > 0)
        # Where trials validate, other validations wait for resources; otherwise, one always starts.
        waits = self.validate_themselves and bool(self.controller.processes.running)
        yield pool.start(capacity, now, waits=waits), {}
        if capacity > 0 and pool.queued and executor.in_trials:  # nothing is free elsewhere now
            yield self._start_in_trials(pool, elsewhere=False)

    def _start_in_trials(self, pool: Pool, *, elsewhere: bool) -> Launch:
        """Return the attempts to start now in the processes of waiting trials.

        If validations can also run elsewhere and are not short, they run only in trials that would
        otherwise be idle, because they end first there.
        """
        now, queue_of = self.circumstances(), self.controller.queues.of
        hosts = {
            trial.trial_id: trial
            for trial in self.controller.queues.waiting_in_place
            if self.controller.processes.has_actor(trial)
            and not pool.runs_in(trial.trial_id)
            and trial.trial_id not in self.controller.ending.leaving
            and self._can_host(trial)
            and (
                self.validates_each
                or not elsewhere
                or self._next(trial, queue_of(trial), now, elsewhere=True) is Next.WAIT
            )
        }
        attempts = pool.start_in_trials(
            hosts,
            each=now.on_pending == "wait" or self.undecided,
            others_wait=now.others_wait and self.typically_hand_over,
        )
        return attempts, hosts

    # Resources ---------------------------------------------------------------------------------

    def _can_release(self, trial: Trial, wait: Wait) -> bool:
        """Return whether another trial runs with the resources of a waiting one."""
        can_resume, processes = self.controller.capabilities.can_resume, self.controller.processes
        if processes.reuses_actors:  # a function must have asked for its checkpoint
            return can_resume(trial) or not is_checkpointable_function(trial.get_trainable_cls())
        return self.shares.apart and can_resume(trial) and wait.pays_to_release

    @property
    def typically_hand_over(self) -> bool:
        """Return whether other trials run with the resources of those that wait."""
        return self._typically(partial(self._can_release, wait=self._typical_wait))

    def _competes(self, trial: Trial) -> bool:
        """Return whether a trial and a validation need the same kind of resources."""
        needs = trial.placement_group_factory.required_resources
        return not needs.keys().isdisjoint(self.executor.need)

    @property
    def contend(self) -> bool:
        """Return whether trials and validations compete for resources."""
        return self._typically(self._competes)

    def has_pending(self) -> bool:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        return not self.pool.idle

    def slots(self) -> int | None:
        """See :class:`~tunekit._ray.processes.WaitingRules`.

        It is 0 while pending validations lack resources that trials would take. Only validations
        whose scores the scheduler will use count, unless none fits alongside a trial. (Trials that
        hand over their resources would lose these to the validations.)
        """
        wanted = not self.pool.idle if self.exclusive else self.pool.needs_slot
        if wanted and self.contend and not self.typically_hand_over:
            return 0  # no trial starts before them: running trials wait for these (decision 2)
        return self.shares.at_once if self.validate_themselves else self.shares.alongside

    def lacks_resources(self) -> bool:
        """See :class:`~tunekit._ray.processes.WaitingRules`."""
        waits = self.pool.queued > 0 or self.pool.unplaced > 0
        return waits and self.contend and not self.shares.apart

    def spare(self) -> None:
        """End idle evaluators if trials need their resources."""
        promised = self.controller.processes.promised
        if self.pool.idle and self.contend and any(True for _ in promised()):
            self.executor.spare(0 if self.validate_themselves else self.shares.validations)

    def relieve(self) -> None:
        """Release the slot of the first waiting trial if waiting trials starve validations.

        Otherwise, all trials would wait for scores while the validations wait for the trials'
        resources.
        """
        pool, now, queues = self.pool, self.clock.monotonic(), self.controller.queues
        waiting = queues.waiting_in_place
        if pool.starved_s(now) < _STARVED_S or not self.contend or not waiting:
            return
        processes = self.controller.processes
        running = [one for one in processes.running if processes.has_actor(one)]
        if len(waiting) < len(running):
            return
        first = min(waiting, key=lambda trial: self._since.get(trial.trial_id, now))
        if queues.of(first).resumable:
            logger.warning("%s", resources_advice(first.trial_id, trials=len(running)))
            self._relieved.add(first.trial_id)
            pool.relieved(now)
