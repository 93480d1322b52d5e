"""Which actors several trials use in turn, and which stay with a trial that pauses.

Trials continue in the actors of others with ``reuse_actors=True``. Workers stay with their trial.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import TIME_THIS_ITER_S

from tunekit._ray.compat import overriding
from tunekit._ray.processes import has_starting_actor
from tunekit._ray.tuner import has_workers
from tunekit._ray.worker_errors import is_final
from tunekit.core.timing import USUAL_S

logger = logging.getLogger(__name__)


class ActorReuse:
    """Decide which trial uses an actor after the trial that it was started for.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        # The trials in actors that other trials have used, and those that are being paused.
        self._sharing: set[Trial] = set()
        self._pausing: set[Trial] = set()
        # The actors that paused trials with workers keep, to continue in them, until something else
        # needs the resources: workers take seconds to start again, and no other trial may use them
        # (decision 4).
        self._kept: dict[Trial, Any] = {}

    # A trial starts in one ---------------------------------------------------------------------

    def take(self, trial: Trial) -> bool:
        """Start a trial in a cached actor, or in its own; return whether there is one."""
        tune, cache = self._tune, self._tune._actor_cache
        if trial in self._kept:  # it gets its own, through Tune's cache
            resources = trial.placement_group_factory
            cache.increase_max(resources)
            cache.cache_object(resources, self._kept.pop(trial))
            try:
                return bool(TuneController._maybe_reuse_cached_actor(tune, trial))
            finally:
                cache.decrease_max(resources)
        if not cache.num_cached_objects:
            return trial in tune._resetting_trials
        # A trial whose own actor is starting leaves the cached one to another trial. Otherwise, its
        # own would end immediately and another would start for the next trial: where trials are
        # shorter than an actor's start, none would ever get ready.
        others = tune._resources_to_pending_trials[trial.placement_group_factory]
        starts = trial not in tune._resetting_trials and has_starting_actor(tune, trial)
        if starts and others.first_without_actor is not None:
            return False
        reuses = bool(TuneController._maybe_reuse_cached_actor(tune, trial))
        if reuses:
            self._sharing.add(trial)
        return reuses

    # A trial fails in one ----------------------------------------------------------------------

    def restarts_after(self, trial: Trial, exception: Any) -> bool:
        """Return whether a trial restarts after a failure."""
        failures, most = trial.run_metadata.num_failures, trial.max_failures
        retried = most < 0 or failures < most
        return not is_final(exception) and (retried or self._is_shared(trial, exception))

    def _is_shared(self, trial: Trial, exception: Any) -> bool:
        """Return whether another trial in the same process may have caused a failure."""
        may_continue = trial.status in (Trial.PENDING, Trial.RUNNING)
        # A kept actor may have ended in the meantime.
        shared = trial in self._sharing or trial in self._tune._resetting_trials
        return shared and may_continue and not is_final(exception)

    def fail(self, trial: Trial, exception: Any) -> None:
        """Process a failure; it does not count if another trial's state may be the cause."""
        tune = self._tune
        if not self._is_shared(trial, exception):
            TuneController._process_trial_failure(tune, trial, exception)
            return
        if tune._reuse_actors:
            logger.warning(
                "Trial %s failed in a process that another trial had used. It continues in a "
                "process of its own, as do all trials from now on. To run each trial in its own "
                "process from the start, leave reuse_actors=True out of TuneConfig.",
                trial.trial_id,
            )
        tune._reuse_actors = False
        tune._resetting_trials.discard(trial)
        if trial.status != Trial.RUNNING:  # it was about to start
            tune._unstage_trial_with_resources(trial)
            tune._set_trial_status(trial, Trial.RUNNING)
        failures, errored = trial.run_metadata.num_failures, tune._has_errored
        with overriding(trial, max_failures=-1):
            TuneController._process_trial_failure(tune, trial, exception)
        if trial.status == Trial.PENDING:
            trial.run_metadata.num_failures, tune._has_errored = failures, errored
        tune._cleanup_cached_actors(force_all=True)

    # A trial leaves one ------------------------------------------------------------------------

    @contextlib.contextmanager
    def pausing(self, trial: Trial) -> Iterator[None]:
        """Let a trial with workers keep its actor while it is paused within the context."""
        tune = self._tune
        self._pausing.add(trial)
        try:
            yield
        finally:
            self._pausing.discard(trial)
        # Tune starts none that is in this set, and leaves one there that was waiting for its actor.
        if trial in tune._staged_trials and trial not in tune._trial_to_actor:
            tune._unstage_trial_with_resources(trial)

    def keep(self, trial: Trial) -> bool:
        """Keep the actor of a trial that leaves it, if it will be used; return whether it is."""
        tune = self._tune
        if trial not in self._pausing or tune._reuse_actors or not has_workers(trial):
            return bool(TuneController._maybe_cache_trial_actor(tune, trial))
        if not has_starting_actor(tune, trial):
            return False
        self._kept[trial] = tune._trial_to_actor.pop(trial)
        tune._actor_to_trial.pop(self._kept[trial])
        trial.set_ray_actor(None)
        return True

    @contextlib.contextmanager
    def stopping(self, trial: Trial) -> Iterator[None]:
        """Decide whether the actor of a trial that is stopped within the context may be kept."""
        tune, training = self._tune, self._tune.processes.training
        iteration_s = float((trial.last_result or {}).get(TIME_THIS_ITER_S, math.inf))
        # In the process of a long iteration, another trial would wait until its end.
        long = trial in training and iteration_s > USUAL_S
        ends = tune.ending.pop(trial.trial_id) or long
        if ends:
            self._pausing.discard(trial)
        training.discard(trial)
        self._sharing.discard(trial)
        # Tune keeps an actor only if another one is requested, which a limit may not have allowed.
        resources = trial.placement_group_factory
        keeps = (
            tune._reuse_actors
            and not ends
            and trial not in tune._staged_trials
            and len(tune._resources_to_pending_trials[resources]) > 0
        )
        if keeps:
            tune._staged_trials.add(trial)
            tune._actor_cache.increase_max(resources)
        with overriding(tune, _reuse_actors=tune._reuse_actors and not ends):
            yield
        if keeps:
            tune._staged_trials.discard(trial)
            tune._actor_cache.decrease_max(resources)

    def clean_up(self, *, force_all: bool) -> None:
        """End the cached and kept actors that no trial will use, or all of them."""
        tune = self._tune
        pending, cached = tune._resources_to_pending_trials, tune._actor_cache
        if not (self._kept or cached.num_cached_objects):
            return
        # Pending trials with the same resources continue in cached actors in the next step.
        used = [one for one in pending if cached.has_cached_object(one)]
        if (used or self._kept) and not tune._pending_trials:
            force_all = force_all or tune.waiting.lacks_resources(tune.facts.situation())
        others = any(not has_starting_actor(tune, one) for one in tune._pending_trials)
        for trial in list(self._kept):
            if not (force_all or others or trial.is_finished()):
                continue
            actor = self._kept.pop(trial)
            actor.set_on_stop(None)  # it no longer belongs to a trial
            actor.set_on_error(None)
            tune._remove_actor(tracked_actor=actor)
        if force_all or not all(len(pending[one]) for one in used):
            TuneController._cleanup_cached_actors(tune, force_all=force_all)


class NotReset(Exception):
    """A trial could not start in another trial's process."""

    def __init__(self, trial_id: str):
        super().__init__(
            f"trial {trial_id} was to reuse the process of another trial, which did not end, or "
            "whose reset_config did not return True"
        )
