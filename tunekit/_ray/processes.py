"""Tune's controller, with rules that decide which process each trial runs in.

They cover trials that continue in the processes of others (``reuse_actors=True``), workers that
stay with their trial, and resources that validations need.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import TIME_THIS_ITER_S
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater

from tunekit._ray.tuner import has_workers
from tunekit._ray.worker_errors import fail_alone, is_final
from tunekit.core.queue import Circumstances, Next, Queue
from tunekit.core.timing import USUAL_S

logger = logging.getLogger(__name__)


class WaitingRules(Protocol):
    """What trials do while their scores are pending, and which resources validations leave them."""

    def reported(self, trial_id: str) -> None:
        """Record that a trial has finished an iteration."""

    def decided(self, *, continues: bool) -> None:
        """Count a decision of the scheduler, and whether the trial continues."""

    def circumstances(self) -> Circumstances:
        """Return the circumstances that all waiting trials share until one of them moves on."""

    def pop_moved(self) -> Collection[str]:
        """Return and clear the trials whose validations were started or will be retried."""

    def next(self, trial: Trial, queue: Queue, now: Circumstances) -> Next:
        """Return what a trial does next."""

    def stops_waiting(self, trial_id: str) -> None:
        """Record that a trial has ended or paused, so that it waits for nothing."""

    def has_pending(self) -> bool:
        """Return whether validations are pending, so that Tune does not warn that no trial runs."""

    def slots(self) -> int | None:
        """Return how many trials may have a process at once; None if only resources limit them.

        While it is 0, resources that Tune has requested for trials, or holds in cached actors, are
        released.
        """

    def lacks_resources(self) -> bool:
        """Return whether a validation lacks resources that a cached actor may hold."""


class ProcessController(TuneController):
    """Tune's controller, which decides in which process each trial runs."""

    # Tune's own.
    _reuse_actors: bool
    _has_errored: bool

    def begin(self, rules: WaitingRules) -> None:
        """Begin to follow the rules; the controller has not processed a result.

        Args:
            rules: What validations leave to trials.
        """
        self._rules = rules
        # The trials in processes that other trials have used, those in an iteration, and those that
        # are being paused.
        self._sharing: set[Trial] = set()
        self._training: set[Trial] = set()
        self._pausing: set[Trial] = set()
        # The actors that paused trials with workers keep, to continue in them, until something else
        # needs the resources: workers take seconds to start again, and no other trial may use them
        # (decision 4).
        self._kept: dict[Trial, Any] = {}
        # How many trials had a slot when one last released its own.
        self._slots = 0
        #: How many more processes trials may have in this step; None if only resources limit them.
        self.left: int | None = None
        #: The trials that start before all others that wait for resources, in order.
        self.starts_first: dict[Trial, None] = {}
        #: The trials with resources on a node that is about to end.
        self.leaving: set[str] = set()
        #: The trials whose processes were ended by a validation.
        self.ended_hosts: set[str] = set()
        start_in_order(self)
        fail_alone(self._actor_manager)

    def host_ended(self, trial_id: str) -> None:
        """Record that a validation has ended the process of a trial."""
        self.ended_hosts.add(trial_id)

    @property
    def _occupied(self) -> int:
        """Return how many trials have a slot."""
        return len(self._trial_to_actor) - int(self._actor_manager.num_pending_actors)

    def _maybe_update_trial_queue(self) -> None:
        # Create several trials at once, not one for each that starts, because the search algorithm
        # is recorded each time (decision 3). The time matters only if it learns from results.
        has_enough = len(self._pending_trials) > self._max_pending_trials * 3 // 4
        if not (has_enough and isinstance(self.search_alg, BasicVariantGenerator)):
            super()._maybe_update_trial_queue()

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        if trial in self._kept:  # it gets its own, through Tune's cache
            resources, cache = trial.placement_group_factory, self._actor_cache
            cache.increase_max(resources)
            cache.cache_object(resources, self._kept.pop(trial))
            try:
                return bool(super()._maybe_reuse_cached_actor(trial))
            finally:
                cache.decrease_max(resources)
        if not self._actor_cache.num_cached_objects:
            return trial in self._resetting_trials
        # A trial whose own actor is starting leaves the cached one to another trial. Otherwise, its
        # own would end immediately and another would start for the next trial: where trials are
        # shorter than an actor's start, none would ever get ready.
        others = self._resources_to_pending_trials[trial.placement_group_factory]
        starts = trial not in self._resetting_trials and has_starting_actor(self, trial)
        if starts and others.first_without_actor is not None:
            return False
        reuses = bool(super()._maybe_reuse_cached_actor(trial))
        if reuses:
            self._sharing.add(trial)
        return reuses

    def _on_trial_reset(self, trial: Trial, success: bool) -> None:
        if success:
            super()._on_trial_reset(trial, success)
        else:
            self._process_trial_failure(trial, _NotReset(trial.trial_id))

    def restarts_after(self, trial: Trial, exception: Any) -> bool:
        """Return whether a trial restarts after a failure."""
        failures, most = trial.run_metadata.num_failures, trial.max_failures
        retried = most < 0 or failures < most
        return not is_final(exception) and (retried or self._is_shared(trial, exception))

    def _is_shared(self, trial: Trial, exception: Any) -> bool:
        """Return whether another trial in the same process may have caused a failure."""
        may_continue = trial.status in (Trial.PENDING, Trial.RUNNING)
        # A kept actor may have ended in the meantime.
        shared = trial in self._sharing or trial in self._resetting_trials
        return shared and may_continue and not is_final(exception)

    def _process_trial_failure(self, trial: Trial, exception: Any) -> None:
        if not self._is_shared(trial, exception):
            super()._process_trial_failure(trial, exception)
            return
        # State that the other trial left may be the cause, so the failure does not count.
        if self._reuse_actors:
            logger.warning(
                "Trial %s failed in a process that another trial had used. It continues in a "
                "process of its own, as do all trials from now on. To run each trial in its own "
                "process from the start, leave reuse_actors=True out of TuneConfig.",
                trial.trial_id,
            )
        self._reuse_actors = False
        self._resetting_trials.discard(trial)
        if trial.status != Trial.RUNNING:  # it was about to start
            self._unstage_trial_with_resources(trial)
            self._set_trial_status(trial, Trial.RUNNING)
        failures, errored = trial.run_metadata.num_failures, self._has_errored
        with overriding(trial, max_failures=-1):
            super()._process_trial_failure(trial, exception)
        if trial.status == Trial.PENDING:
            trial.run_metadata.num_failures, self._has_errored = failures, errored
        self._cleanup_cached_actors(force_all=True)

    def _schedule_trial_train(self, trial: Trial) -> None:
        self._training.add(trial)
        super()._schedule_trial_train(trial)

    def _schedule_trial_pause(self, trial: Trial, should_checkpoint: bool = True) -> None:
        self._pausing.add(trial)
        try:
            super()._schedule_trial_pause(trial, should_checkpoint=should_checkpoint)
        finally:
            self._pausing.discard(trial)
        # Tune starts none that is in this set, and leaves one there that was waiting for its actor.
        if trial in self._staged_trials and trial not in self._trial_to_actor:
            self._unstage_trial_with_resources(trial)

    def _maybe_cache_trial_actor(self, trial: Trial) -> bool:
        if trial not in self._pausing or self._reuse_actors or not has_workers(trial):
            return bool(super()._maybe_cache_trial_actor(trial))
        if not has_starting_actor(self, trial):
            return False
        self._kept[trial] = self._trial_to_actor.pop(trial)
        self._actor_to_trial.pop(self._kept[trial])
        trial.set_ray_actor(None)
        return True

    def _schedule_trial_stop(self, trial: Trial, exception: Any = None) -> None:
        iteration_s = float((trial.last_result or {}).get(TIME_THIS_ITER_S, math.inf))
        # In the process of a long iteration, another trial would wait until its end.
        long = trial in self._training and iteration_s > USUAL_S
        ends = long or trial.trial_id in self.leaving or trial.trial_id in self.ended_hosts
        if ends:
            self.leaving.discard(trial.trial_id)
            self.ended_hosts.discard(trial.trial_id)
            self._pausing.discard(trial)
        self._training.discard(trial)
        self._sharing.discard(trial)
        # Tune keeps an actor only if another one is requested, which a limit may not have allowed.
        resources = trial.placement_group_factory
        keeps = (
            self._reuse_actors
            and not ends
            and trial not in self._staged_trials
            and len(self._resources_to_pending_trials[resources]) > 0
        )
        if keeps:
            self._staged_trials.add(trial)
            self._actor_cache.increase_max(resources)
        with overriding(self, _reuse_actors=self._reuse_actors and not ends):
            super()._schedule_trial_stop(trial, exception=exception)
        if keeps:
            self._staged_trials.discard(trial)
            self._actor_cache.decrease_max(resources)

    def _cleanup_cached_actors(self, force_all: bool = False) -> None:
        pending, cached = self._resources_to_pending_trials, self._actor_cache
        if not (self._kept or cached.num_cached_objects):
            return
        # Pending trials with the same resources continue in cached actors in the next step.
        used = [one for one in pending if cached.has_cached_object(one)]
        if (used or self._kept) and not self._pending_trials:
            force_all = force_all or self._rules.lacks_resources()
        others = any(not has_starting_actor(self, one) for one in self._pending_trials)
        for trial in list(self._kept):
            if not (force_all or others or trial.is_finished()):
                continue
            actor = self._kept.pop(trial)
            actor.set_on_stop(None)  # it no longer belongs to a trial
            actor.set_on_error(None)
            self._remove_actor(tracked_actor=actor)
        if force_all or not all(len(pending[one]) for one in used):
            super()._cleanup_cached_actors(force_all=force_all)

    def _schedule_trial_actor(self, trial: Trial) -> None:
        super()._schedule_trial_actor(trial)
        if trial in self.starts_first:
            del self.starts_first[trial]
            actor, requests = self._trial_to_actor.get(trial), self._actor_manager
            pending = requests._resource_request_to_pending_actors[trial.placement_group_factory]
            if actor in pending:  # otherwise, the trial continues in a cached actor
                pending.remove(actor)
                pending.insert(0, actor)

    def _maybe_add_actors(self) -> None:
        if self._rules.has_pending():
            self._insufficient_resources_manager._no_running_trials_since = -1
        slots = self._rules.slots()
        # Tune requests the resources of many trials in advance. Ray would grant these requests
        # first, and the validations that running trials wait for would not start (decision 2).
        if slots == 0:
            _clear_the_way(self)
            return
        if self.resumed and (limit := _limit_of(self._search_alg)) is not None:
            slots = limit if slots is None else min(slots, limit)
        if slots is None:
            self.left = None
            super()._maybe_add_actors()
            return
        # Cached processes count, because the next trials reuse them.
        processes = len(self._trial_to_actor) + self._actor_cache.num_cached_objects
        self.left = max(0, slots - processes)
        most = self._actor_manager.num_pending_actors + self.left
        with overriding(self, _max_pending_trials=min(self._max_pending_trials, most)):
            super()._maybe_add_actors()


def _limit_of(search_alg: Any) -> int | None:
    """Return how many trials a search algorithm may have at once; None if it has no limit.

    It does not create more, but a restored sweep also has the trials that Tune continues.
    """
    while search_alg is not None and not isinstance(
        search_alg, Repeater
    ):  # it has several for each
        if isinstance(search_alg, (BasicVariantGenerator, ConcurrencyLimiter)):
            return int(search_alg.max_concurrent) or None
        search_alg = getattr(search_alg, "searcher", None)
    return None


@contextlib.contextmanager
def overriding(owner: Any, **values: Any) -> Iterator[None]:
    """Change attributes of an object temporarily."""
    former = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            setattr(owner, name, value)


class _NotReset(Exception):
    """A trial could not start in another trial's process."""

    def __init__(self, trial_id: str):
        super().__init__(
            f"trial {trial_id} was to reuse the process of another trial, which did not end, or "
            "whose reset_config did not return True"
        )


def _clear_the_way(tune: TuneController) -> None:
    """Cancel the requests of trials that have not started, and end cached actors."""
    requested = {
        trial
        for trial in tune._staged_trials
        if trial.status == Trial.PENDING  # otherwise, a stopped trial, which Tune leaves in the set
        and trial in tune._trial_to_actor
        and not has_starting_actor(tune, trial)
    }
    for trial in requested:
        actor = tune._trial_to_actor.pop(trial)
        tune._actor_to_trial.pop(actor)
        tune._actor_manager.remove_actor(actor)
        tune._staged_trials.discard(trial)
        tune._actor_cache.decrease_max(trial.placement_group_factory)
    if requested:
        tune._pending_trials_list[:0] = [trial for trial in tune._trials if trial in requested]
    tune._cleanup_cached_actors(force_all=True)


class PendingTrials:
    """A set of trials that pops the first added one for which no actor is starting.

    Tune keeps a plain set, so that any trial may be the next to continue in a free actor, even
    one whose own actor is about to start.

    Args:
        starts: Returns whether a trial has an actor that is starting.
        trials: The waiting trials.

    Example:
        >>> pending = PendingTrials(lambda trial: False, "abc")
        >>> first = pending.pop()
        >>> pending.add(first)  # there was no free actor
        >>> pending.pop(), len(pending)
        ('a', 2)
    """

    def __init__(self, starts: Callable[[Trial], bool], trials: Iterable[Trial] = ()):
        self._trials: OrderedDict[Trial, None] = OrderedDict.fromkeys(trials)
        self._starts = starts
        self._popped: Trial | None = None

    def __len__(self) -> int:
        return len(self._trials)

    @property
    def first_without_actor(self) -> Trial | None:
        """Return the first trial for which no actor is starting, or None."""
        return next((trial for trial in self._trials if not self._starts(trial)), None)

    def pop(self) -> Trial:
        """Remove and return the first trial for which no actor is starting, or else the first."""
        self._popped = trial = self.first_without_actor or next(iter(self._trials))
        del self._trials[trial]
        return trial

    def add(self, trial: Trial) -> None:
        """Add a trial at the end, or at the front if it was the last one popped."""
        self._trials[trial] = None
        if trial is self._popped:
            self._trials.move_to_end(trial, last=False)

    def discard(self, trial: Trial) -> None:
        """Remove a trial that no longer waits."""
        self._trials.pop(trial, None)
        if trial is self._popped:
            self._popped = None


def has_starting_actor(tune: TuneController, trial: Trial) -> bool:
    """Return whether a waiting trial's actor has its resources and is starting."""
    actor = tune._trial_to_actor.get(trial)
    return actor is not None and bool(tune._actor_manager.is_actor_started(actor))


def start_in_order(tune: TuneController) -> None:
    """Start trials in cached actors in the order in which they began to wait."""
    pending = tune._resources_to_pending_trials
    if pending.default_factory is not set:
        return
    starts = functools.partial(has_starting_actor, tune)
    in_order = defaultdict[Any, PendingTrials](functools.partial(PendingTrials, starts))
    for trial in tune._trials:
        if trial in pending[trial.placement_group_factory]:
            in_order[trial.placement_group_factory].add(trial)
    tune._resources_to_pending_trials = in_order
