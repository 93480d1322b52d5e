"""Control a running Tune experiment."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import (
    LocalRayletDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)
from ray.train._internal.session import _TrainingResult
from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, TIME_THIS_ITER_S
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchAlgorithm,
)
from ray.tune.stopper import CombinedStopper, Stopper, TimeoutStopper

from tunekit._ray.cluster import ending_groups
from tunekit._ray.functions import CAN_SAVE, HAS_ASKED, can_be_resumed, can_be_saved
from tunekit._ray.proxies import Change
from tunekit._ray.stoppers import ValidatedStopper, reads_metrics
from tunekit._ray.tuner import has_workers
from tunekit.core.start_times import USUAL_S
from tunekit.errors import NotResumedError, StopperError

logger = logging.getLogger(__name__)

# Spot nodes end at least 30 s after the notice.
_LOOK_S = 2.0
#: Prefixes of the files in which Tune saves a sweep.
STATE_FILES = (
    "experiment_state-",
    "basic-variant-state-",
    "search_gen_state-",
    "searcher-state-",
    "callback-states-",
)
#: Prefixes of the search algorithm's files.
SEARCH_FILES = STATE_FILES[1:4]


class Controller:
    """A Tune experiment in progress.

    Args:
        tune_controller: The controller, or its wrapper, that Tune passes to a scheduler.
    """

    def __init__(self, tune_controller: Any):
        if isinstance(tune_controller, TrialRunnerWrapper):
            tune_controller = tune_controller._tune_controller
        self._tune: TuneController = tune_controller
        # Resources of waiting trials, by the identity of their placement group factory.
        self._needs: dict[int, tuple[Any, dict[str, float]]] = {}
        # The references that end Tune's wait in addition to its trials, and whether one has.
        self._awaited: set[Any] = set()
        self._woken = False
        # Whether each class can resume and save, and the trials whose functions have asked for a
        # checkpoint.
        self._capable: dict[str, tuple[bool, bool]] = {}
        self._asked: set[str] = set()
        # The trials whose functions have registered how to save.
        self._savers: set[str] = set()
        # The trials that start before all others that wait for resources.
        self._first: set[Trial] = set()
        # The actors that paused trials with workers keep, to continue in them, until something else
        # needs the resources: workers take seconds to start again, and no other trial may use them.
        self._kept: dict[Trial, Any] = {}
        # Returns how many trials may have a process at once.
        self._places: Callable[[], int | None] = lambda: None
        #: The trials with resources on a node that is about to end.
        self.leaving: set[str] = set()
        self._next_look = 0.0

    # The state of the experiment ---------------------------------------------------------------

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks, in the order in which they are called."""
        return list(self._tune._callbacks._callbacks)

    @property
    def search_alg(self) -> SearchAlgorithm:
        """The search algorithm."""
        return self._tune.search_alg

    @property
    def trials(self) -> list[Trial]:
        """All trials so far."""
        return list(self._tune.get_trials())

    @property
    def finished(self) -> bool:
        """Return whether all trials have ended and no more will come; validations do not count."""
        return bool(TuneController.is_finished(self._tune))

    @property
    def awaits_nothing(self) -> bool:
        """Return whether no trial is active, so that Tune's next step does not wait."""
        tune = self._tune
        actors = tune._actor_manager
        return not (
            actors.num_actor_tasks
            or actors.num_pending_actors
            or tune._staged_trials
            or tune._stopping_actors
        )

    @property
    def cuts_short(self) -> bool:
        """Return whether Tune has stopped all trials: no time is left, or one has failed."""
        out_of_time = any(stopper._budget <= 0 for stopper in self._time_budgets())
        return out_of_time or bool(self._tune._fail_fast and self._tune._has_errored)

    @property
    def to_come(self) -> int:
        """Return how many trials the search algorithm has still to create; 0 if unknown."""
        return max(0, self._tune.search_alg.total_samples - len(self._tune.get_trials()))

    def promised(self) -> Iterator[Mapping[str, float]]:
        """Yield the resources of each trial whose actor was requested and has not started.

        There may be many trials, and Ray adds up resources slowly, so sums are lazy and cached.
        """
        known, self._needs = self._needs, {}
        for trial in self._tune._staged_trials:
            if trial.status != Trial.PENDING:
                continue  # a stopped trial, which Tune leaves in the set
            factory = trial.placement_group_factory
            key = id(factory)
            if key not in self._needs:
                self._needs[key] = known.get(key) or (factory, dict(factory.required_resources))
            yield self._needs[key][1]

    def has_actor(self, trial: Trial) -> bool:
        """Return whether a trial has an actor; the actor ends after the calls already made."""
        return trial in self._tune._running_trials

    @property
    def without_actor(self) -> int:
        """Return how many trials wait for the resources that they start with."""
        return sum(not has_starting_actor(self._tune, one) for one in self._tune._pending_trials)

    def starting(self) -> Iterator[Trial]:
        """Yield each trial that has its resources and whose process is starting."""
        for trial in self._tune._staged_trials:
            if trial.status == Trial.PENDING and has_starting_actor(self._tune, trial):
                yield trial

    def can_resume(self, trial: Trial) -> bool:
        """Return whether a trial is known to resume from its checkpoint in another process.

        A class does if it can load checkpoints; a function, if it has asked for its checkpoint.
        """
        return self._capabilities(trial)[0] or trial.trial_id in self._asked

    def can_save(self, trial: Trial) -> bool:
        """Return whether a trial is known to save whenever Tune asks."""
        return self._capabilities(trial)[1] or trial.trial_id in self._savers

    def _capabilities(self, trial: Trial) -> tuple[bool, bool]:
        name = trial.trainable_name
        if name not in self._capable:
            cls = trial.get_trainable_cls()
            self._capable[name] = can_be_resumed(cls), can_be_saved(cls)
        return self._capable[name]

    def look_at_nodes(self, now: float) -> None:
        """Find the trials on nodes that are about to end, at most every 2 s."""
        if now < self._next_look:
            return
        self._next_look, tune = now + _LOOK_S, self._tune
        self.leaving.clear()
        if groups := ending_groups():
            tune._cleanup_cached_actors(force_all=True)  # no trial may start in one there
            for trial, actor in tune._trial_to_actor.items():
                acquired: Any = tune._actor_manager.get_actor_resources(actor)
                if acquired is not None and acquired.placement_group.id.hex() in groups:
                    self.leaving.add(trial.trial_id)

    @property
    def reuses_actors(self) -> bool:
        """Return whether other trials run in the actors of trials that pause or end."""
        return bool(self._tune._reuse_actors)

    def wrapped(self) -> TrialRunnerWrapper:
        """Return the controller as Tune passes it to schedulers."""
        return self._tune._wrapped()

    @property
    def still(self) -> bool:
        """Return whether no trial runs or is about to run."""
        return not (self._tune._running_trials or self._tune._pending_trials)

    @property
    def all_run(self) -> bool:
        """Return whether no trial waits to be started or resumed."""
        return not (self._tune._pending_trials or self._tune._paused_trials)

    @property
    def has_new_trials(self) -> bool:
        """Return whether a trial waits to be started."""
        return bool(self._tune._pending_trials)

    @property
    def running(self) -> Collection[Trial]:
        """The trials that have an actor."""
        return list(self._tune._running_trials)

    # Actions -----------------------------------------------------------------------------------

    def stop(self, trial: Trial) -> None:
        """End a trial that is not saving."""
        self._tune.stop_trial(trial)

    def pause(self, trial: Trial, *, save: bool, for_validations: bool = False) -> None:
        """Pause a running trial; without ``save``, it resumes from its last checkpoint.

        It must not be saving, and without ``save``, none of its tasks may be in progress. Its
        resources are released, unless actors are reused and a trial starts in the next step, or
        the trial keeps its actor until something else needs them.

        Args:
            trial: The trial.
            save: Whether to save first.
            for_validations: Whether validations need the resources.
        """
        # The trial may resume at once in the same actor.
        with contextlib.nullcontext() if for_validations else _keeping_actor(self._tune, trial):
            self._tune.pause_trial(trial, should_checkpoint=save)
        if for_validations:
            self._tune._cleanup_cached_actors(force_all=True)

    @property
    def is_full(self) -> bool:
        """Return whether no trial can get a process now, not even a cached one."""
        return self._left() == 0 and not self._tune._actor_cache.num_cached_objects

    def _left(self) -> int | None:
        """Return how many more processes trials may have; None if only resources limit them.

        Cached processes count, because the next trials reuse them.
        """
        tune = self._tune
        limits = (self._places(), _limit_of(tune.search_alg) if tune.resumed else None)
        most = min((limit for limit in limits if limit is not None), default=None)
        processes = len(tune._trial_to_actor) + tune._actor_cache.num_cached_objects
        return None if most is None else max(0, most - processes)

    def heed(
        self,
        *,
        pending: Callable[[], bool],
        places: Callable[[], int | None],
        lacking: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make Tune take validations into account from now on.

        Args:
            pending: Returns whether validations are pending. While they are, the sweep is not over:
                Tune continues to take steps, and does not warn that no trial runs.
            places: Returns how many trials may have a process at once; None if only resources limit
                them. While it is 0, resources that Tune has requested for trials, or holds in
                cached actors, are released.
            lacking: Returns whether a validation lacks resources that a cached actor may hold,
                while no trial waits for them.
        """

        goes_first, left, leaving = self._first, self._left, self.leaving
        self._places, kept = places, self._kept
        # The trials in processes that other trials have used, and those in an iteration.
        sharing: set[Trial] = set()
        in_iteration: set[Trial] = set()
        pausing: set[Trial] = set()

        class Heeding(type(self._tune)):  # type: ignore[misc]
            # The state is in the closure, because Tune saves attributes.

            def is_finished(self) -> bool:
                return super().is_finished() and not pending()

            def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:
                # Blocking would wait for a search algorithm that itself waits for scores.
                blocking = blocking and not pending()
                return bool(super()._update_trial_queue(blocking=blocking, timeout=timeout))

            def _maybe_update_trial_queue(self) -> None:
                # The search algorithm is recorded with each new trial: see SnapshotWriter.
                if not _has_enough(self):
                    super()._maybe_update_trial_queue()

            def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
                if trial in kept:
                    with _cached(self, trial, kept.pop(trial)):
                        return bool(super()._maybe_reuse_cached_actor(trial))
                # A trial whose own actor is starting leaves the cached one to another trial. Else
                # its own would end at once and another start for the next trial: none would ever
                # get ready where trials are shorter than the start of an actor.
                others = self._resources_to_pending_trials[trial.placement_group_factory]
                starts = trial not in self._resetting_trials and has_starting_actor(self, trial)
                if starts and others.first_without_actor is not None:
                    return False
                if trial not in self._staged_trials:
                    trial.init_local_path()  # Tune does so only when it schedules an actor
                reuses = bool(super()._maybe_reuse_cached_actor(trial))
                if reuses:
                    sharing.add(trial)
                return reuses

            def _on_trial_reset(self, trial: Trial, success: bool) -> None:
                if success:
                    super()._on_trial_reset(trial, success)
                else:
                    self._process_trial_failure(trial, _NotReset(trial.trial_id))

            def _process_trial_failure(self, trial: Trial, exception: Any) -> None:
                may_continue = trial.status in (Trial.PENDING, Trial.RUNNING)
                # A kept actor may have ended meanwhile.
                shared = trial in sharing or trial in self._resetting_trials
                shared = shared and may_continue and not _is_final(exception)
                with _in_its_own_process(self, trial) if shared else contextlib.nullcontext():
                    super()._process_trial_failure(trial, exception)

            def _schedule_trial_train(self, trial: Trial) -> None:
                in_iteration.add(trial)
                super()._schedule_trial_train(trial)

            def _on_training_result(self, trial: Trial, result: Any) -> None:
                in_iteration.discard(trial)
                super()._on_training_result(trial, result)

            def _schedule_trial_pause(self, trial: Trial, should_checkpoint: bool = True) -> None:
                pausing.add(trial)
                try:
                    super()._schedule_trial_pause(trial, should_checkpoint=should_checkpoint)
                finally:
                    pausing.discard(trial)

            def _maybe_cache_trial_actor(self, trial: Trial) -> bool:
                if trial not in pausing or self._reuse_actors or not has_workers(trial):
                    return bool(super()._maybe_cache_trial_actor(trial))
                if not has_starting_actor(self, trial):
                    return False
                kept[trial] = self._trial_to_actor.pop(trial)
                self._actor_to_trial.pop(kept[trial])
                trial.set_ray_actor(None)
                return True

            def _schedule_trial_stop(self, trial: Trial, exception: Any = None) -> None:
                how: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
                iteration_s = float((trial.last_result or {}).get(TIME_THIS_ITER_S, math.inf))
                # In the process of a long iteration, another trial would wait until its end.
                if trial.trial_id in leaving or (trial in in_iteration and iteration_s > USUAL_S):
                    leaving.discard(trial.trial_id)
                    pausing.discard(trial)
                    how = _with(self, _reuse_actors=False)
                elif self._resources_to_pending_trials[trial.placement_group_factory]:
                    how = _keeping_actor(self, trial)
                in_iteration.discard(trial)
                sharing.discard(trial)
                with how:
                    super()._schedule_trial_stop(trial, exception=exception)

            def _cleanup_cached_actors(self, force_all: bool = False) -> None:
                # Waiting trials with the same resources continue in cached actors in the next step.
                waiting, cached = self._resources_to_pending_trials, self._actor_cache
                used = [one for one in waiting if cached.has_cached_object(one)]
                if (used or kept) and not self._pending_trials:
                    force_all = force_all or lacking()
                others = any(not has_starting_actor(self, one) for one in self._pending_trials)
                for trial in list(kept):
                    if not (force_all or others or trial.is_finished()):
                        continue
                    actor = kept.pop(trial)
                    actor.set_on_stop(None)  # it is no trial's any more
                    actor.set_on_error(None)
                    self._remove_actor(tracked_actor=actor)
                if force_all or not all(len(waiting[one]) for one in used):
                    super()._cleanup_cached_actors(force_all=force_all)

            def _schedule_trial_actor(self, trial: Trial) -> None:
                super()._schedule_trial_actor(trial)
                if trial in goes_first:
                    goes_first.discard(trial)
                    _move_ahead(self, trial)

            def _maybe_add_actors(self) -> None:
                if pending():
                    self._insufficient_resources_manager._no_running_trials_since = -1
                if places() == 0:
                    _clear_the_way(self)
                    return
                most, more = self._max_pending_trials, left()
                if more is not None:
                    most = min(most, self._actor_manager.num_pending_actors + more)
                with _with(self, _max_pending_trials=most):
                    super()._maybe_add_actors()

        self._tune.__class__ = Heeding
        start_in_order(self._tune)
        fail_alone(self._tune._actor_manager)

    def wake_on(self, awaited: Iterable[Any]) -> None:
        """End Tune's step as soon as an awaited object is ready, rather than after 0.1 s.

        Args:
            awaited: References to all awaited objects, or streams of them.
        """
        now = set(awaited)
        if now == self._awaited:
            return
        events = self._tune._actor_manager._actor_task_events
        for former in self._awaited - now:
            events.discard_future(former)
        for one in now - self._awaited:
            there = functools.partial(self._wake, one)
            events.track_future(one, on_result=there, on_error=there)
        self._awaited = now

    def _wake(self, awaited: Any, _: Any) -> None:
        self._awaited.discard(awaited)
        self._woken = True

    def woken(self) -> bool:
        """Return whether an awaited object has become ready since the last call."""
        woken, self._woken = self._woken, False
        return woken

    def start_first(self, trial: Trial) -> None:
        """Start a trial, whose actor Tune is about to request, before all trials that wait.

        Tune starts trials in the order of its requests, of which there may be 200.
        """
        self._first.add(trial)

    def train(self, trial: Trial) -> None:
        """Run a held trial's next iteration."""
        self._tune._schedule_trial_train(trial)

    def change(self, trial: Trial, change: Change) -> None:
        """Change the hyperparameters, weights or resources of a trial; it pauses if it runs.

        It must not be saving. Its unsaved progress is dropped.
        """
        if trial.status == Trial.RUNNING:
            self.pause(trial, save=False)
        if change.tag is not None:
            trial.set_experiment_tag(change.tag)
        if change.config is not None:
            trial.set_config(change.config)
        if change.restored_from is not None:
            manager = trial.run_metadata.checkpoint_manager
            manager._latest_checkpoint_result = change.restored_from
            # A checkpoint that was written but not registered must not share its directory with
            # the next one.
            trial.storage.current_checkpoint_index += 1
        if change.resources is not None:
            trial.placement_group_factory = None
            trial.update_resources(change.resources)
        self.changed(trial)

    def begin_session(self) -> None:
        """Reset saved state of Tune that applies only to the former session.

        This is the rest of the time budget, whether a trial has failed (``fail_fast``), and the end
        of the search that follows; the decisions that were to be carried out after saves; and the
        files that Tune has fetched, which it would copy back repeatedly, in place, into the
        experiment's folder.
        """
        for path in Path(self._tune._storage.experiment_driver_staging_path).iterdir():
            own = self._tune._session_str in path.name
            if path.suffix in (".json", ".pkl") and path.is_file() and not own:
                path.unlink()
        self._tune._cached_trial_decisions.clear()
        self._tune._queued_trial_decisions.clear()
        if self.cuts_short:
            self._tune.search_alg._finished = False
        self._tune._has_errored = False
        for stopper in self._time_budgets():
            stopper._budget = stopper._timeout_seconds

    def _time_budgets(self) -> Iterator[TimeoutStopper]:
        """Yield ``time_budget_s`` and other stoppers that end all trials after some time."""
        stoppers: list[Stopper] = [self._tune._stopper]
        while stoppers:
            stopper = stoppers.pop()
            if isinstance(stopper, TimeoutStopper):
                yield stopper
            elif isinstance(stopper, CombinedStopper):
                stoppers += stopper._stoppers

    def save(self) -> None:
        """Write the experiment's state to storage, now."""
        self._tune.checkpoint(force=True, wait=True)

    # Reports and saved state -------------------------------------------------------------------

    def look_at_reports_first(self, look: Callable[[Trial, dict[str, Any]], None]) -> None:
        """Call ``look`` with each report, and that of each save, before Tune receives it.

        ``look`` may change the report. Tune prints and flattens reports before it passes them on,
        and fails if that raises or never ends.
        """
        tune, actors = self._tune, self._tune._actor_manager
        if "schedule_actor_task" in vars(actors):  # it is set below
            return
        schedule = actors.schedule_actor_task

        def scheduled(*args: Any, on_result: Any = None, **known: Any) -> Any:
            own = on_result
            if on_result is not None and known.get("method_name") in ("train", "save"):

                def own(actor: Any, result: Any) -> None:
                    for one in result if isinstance(result, list) else [result]:
                        report = one.metrics if isinstance(one, _TrainingResult) else one
                        if isinstance(report, dict) and actor in tune._actor_to_trial:
                            trial = tune._actor_to_trial[actor]
                            if report.pop(HAS_ASKED, False):
                                self._asked.add(trial.trial_id)
                            if report.pop(CAN_SAVE, False):
                                self._savers.add(trial.trial_id)
                            look(trial, report)
                    on_result(actor, result)

            return schedule(*args, on_result=own, **known)

        actors.schedule_actor_task = scheduled

    @property
    def storage(self) -> Any:
        """Return the experiment's storage context."""
        return self._tune._storage

    @property
    def resumed(self) -> bool:
        """Return whether the experiment continues from a saved state."""
        return bool(self._tune.resumed)

    def bring_home(self, trial: Trial) -> None:
        """Store a trial in the experiment's current folder.

        A restored search algorithm creates trials in the folder in which it was saved, but the
        experiment may have moved since, or be reached by another path.
        """
        names = ("storage_filesystem", "storage_fs_path", "experiment_dir_name")
        current = {name: getattr(self._tune._storage, name) for name in names}
        if any(getattr(trial.storage, name) != value for name, value in current.items()):
            moved = copy.copy(trial.storage)
            vars(moved).update(current)
            trial.set_storage(moved)
            trial.invalidate_json_state()

    def saved_files(self) -> dict[str, bytes]:
        """Return the files of Tune's last save in this session."""
        return _files_in(
            Path(self._tune._storage.experiment_driver_staging_path), self._tune._session_str
        )

    def search_files(self) -> dict[str, bytes]:
        """Return the files of the search algorithm's current state."""
        session = self._tune._session_str
        with tempfile.TemporaryDirectory() as folder:
            self._tune.search_alg.save_to_dir(folder, session_str=session)
            return _files_in(Path(folder), session)

    @staticmethod
    def record_of(trial: Trial) -> tuple[str, str]:
        """Return a trial's definition and metadata, as Tune saves them."""
        state, metadata = trial.get_json_state()
        return state, metadata

    def tell_search_of_end(self, trial: Trial, *, failed: bool) -> None:
        """Notify the search algorithm that a trial has ended."""
        result = None if failed else trial.last_result
        self._tune.search_alg.on_trial_complete(trial.trial_id, result=result, error=failed)

    def set_status(self, trial: Trial, status: str) -> None:
        """Change the status of a trial that has no actor."""
        self._tune._set_trial_status(trial, status)

    def changed(self, trial: Trial) -> None:
        """Include a trial's changed metadata in the next saved state."""
        trial.run_metadata.invalidate_cache()
        self._tune._mark_trial_to_checkpoint(trial)

    def take_over_stopper(
        self, validated: Callable[[], Collection[str]], fail: Callable[[StopperError], None]
    ) -> ValidatedStopper | None:
        """Call stoppers that read validated metrics with validated results.

        Args:
            validated: Returns the metrics for which only validated values count.
            fail: Ends the sweep with the error of a stopper.

        Returns:
            The stopper to call with validated results; None if no stopper reads a metric.
        """
        stopper = self._tune._stopper  # in a restored sweep, the saved one
        if not isinstance(stopper, ValidatedStopper):
            if not reads_metrics(stopper):
                return None
            stopper = self._tune._stopper = ValidatedStopper(stopper)
        stopper.attach(validated, fail)
        return stopper

    def take_over_metric_check(self) -> set[str]:
        """Stop Tune from requiring the metric in every report; return what it required.

        Tune looks for the metrics of ``TuneConfig`` and of the search algorithm in each report
        (``TuneController._validate_result_metrics``). Metrics that only validation produces are
        never there; the caller must check the validated results instead.
        """
        required = set()
        owners = [self._tune, self._tune.search_alg]
        outermost = getattr(self._tune.search_alg, "searcher", None)
        if hasattr(outermost, "searcher"):  # it wraps searchers, which need theirs
            owners.append(outermost)
        for owner in owners:
            metric = getattr(owner, "_metric", None)
            names = metric if isinstance(metric, list) else [metric]
            required |= {n for n in names if isinstance(n, str) and n != DEFAULT_METRIC}
            if metric is not None:
                owner._metric = None
        return required


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


def _has_enough(tune: TuneController) -> bool:
    """Return whether enough trials wait for more to be created later, several at once.

    Tune creates one for each that starts. The time does not matter if the search algorithm learns
    nothing from results.
    """
    return (
        isinstance(tune.search_alg, BasicVariantGenerator)
        and len(tune._pending_trials) > tune._max_pending_trials * 3 // 4
    )


def _move_ahead(tune: TuneController, trial: Trial) -> None:
    """Move a trial's requested actor ahead of others with the same resources."""
    actor = tune._trial_to_actor.get(trial)
    waiting = tune._actor_manager._resource_request_to_pending_actors[trial.placement_group_factory]
    if actor in waiting:  # otherwise, the trial continues in a cached actor
        waiting.remove(actor)
        waiting.insert(0, actor)


@contextlib.contextmanager
def _with(owner: Any, **values: Any) -> Iterator[None]:
    """Change attributes of an object for some time."""
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


@contextlib.contextmanager
def _in_its_own_process(tune: TuneController, trial: Trial) -> Iterator[None]:
    """Restart a trial that failed in a reused process, in a process of its own.

    State that the other trial left may be the cause, so the failure does not count, and each
    process runs one trial from now on.
    """
    if tune._reuse_actors:
        logger.warning(
            "Trial %s failed in a process that another trial had used. It continues in a process "
            "of its own, as do all trials from now on. To run each trial in its own process from "
            "the start, leave reuse_actors=True out of TuneConfig.",
            trial.trial_id,
        )
    tune._reuse_actors = False
    tune._resetting_trials.discard(trial)
    if trial.status != Trial.RUNNING:  # it was about to start
        tune._unstage_trial_with_resources(trial)
        tune._set_trial_status(trial, Trial.RUNNING)
    failures, errored = trial.run_metadata.num_failures, tune._has_errored
    try:
        with _with(trial, max_failures=-1):
            yield
    finally:
        if trial.status == Trial.PENDING:
            trial.run_metadata.num_failures, tune._has_errored = failures, errored
        tune._cleanup_cached_actors(force_all=True)


@contextlib.contextmanager
def _keeping_actor(tune: TuneController, trial: Trial) -> Iterator[None]:
    """Keep the actor that a trial leaves until the next step, if Tune reuses actors.

    Tune keeps it only if another actor is requested, which a limit may not have allowed.
    """
    resources = trial.placement_group_factory
    if not tune._reuse_actors or trial in tune._staged_trials:
        yield
        return
    tune._staged_trials.add(trial)
    tune._actor_cache.increase_max(resources)
    try:
        yield
    finally:
        tune._staged_trials.discard(trial)
        tune._actor_cache.decrease_max(resources)


@contextlib.contextmanager
def _cached(tune: TuneController, trial: Trial, actor: Any) -> Iterator[None]:
    """Make an actor the one that Tune finds in its cache for a trial."""
    resources = trial.placement_group_factory
    tune._actor_cache.increase_max(resources)
    tune._actor_cache.cache_object(resources, actor)
    try:
        yield
    finally:
        tune._actor_cache.decrease_max(resources)


def _withdraw(tune: TuneController, trial: Trial) -> None:
    """Cancel the request for an actor of a trial that has not started."""
    actor = tune._trial_to_actor.pop(trial, None)
    if actor is not None:
        tune._actor_to_trial.pop(actor)
        tune._actor_manager.remove_actor(actor)
        tune._staged_trials.discard(trial)
        tune._actor_cache.decrease_max(trial.placement_group_factory)


def _clear_the_way(tune: TuneController) -> None:
    """Cancel the requests of trials that have not started, and end cached actors."""
    requested = [
        trial
        for trial in tune._staged_trials
        if trial.status == Trial.PENDING  # otherwise, a stopped trial, which Tune leaves in the set
        and trial in tune._trial_to_actor
        and not tune._actor_manager.is_actor_started(tune._trial_to_actor[trial])
    ]
    for trial in requested:
        _withdraw(tune, trial)
    if requested:
        again = set(requested)
        tune._pending_trials_list[:0] = [trial for trial in tune._trials if trial in again]
    tune._cleanup_cached_actors(force_all=True)


def _files_in(folder: Path, session: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob(f"*{session}*"))
        if path.suffix in (".json", ".pkl") and path.is_file() and not path.name.startswith(".")
    }


# Errors that Tune handles, and errors after which Ray itself is gone.
_THEIRS = (RayActorError, RayTaskError, RaySystemError, LocalRayletDiedError)


def _is_final(error: Any) -> bool:
    return isinstance(getattr(error, "cause", error), NotResumedError)


class _Final(Trial):
    """A trial that is not retried if every attempt would fail in the same way."""

    def handle_error(self, exc: Any = None) -> None:
        # Tune does not save the temporary state.
        self.temporary_state.is_final = _is_final(exc)
        super().handle_error(exc)

    def should_recover(self) -> bool:
        final = getattr(self.temporary_state, "is_final", False)
        return not final and bool(super().should_recover())


def fail_for_good(trial: Trial) -> None:
    """Do not retry a trial after a failure that every retry would repeat.

    ``FailureConfig(max_failures=...)`` is for other failures; -1 would retry forever.
    """
    if type(trial) is Trial:
        trial.__class__ = _Final


class _FailingAlone(RayActorManager):
    """Treat every loss of an actor as a failure of that actor."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, _THEIRS):
            text = f"{type(exception).__name__}: {exception}"
            exception = RayActorError(tracked_actor_task._tracked_actor.actor_id, text)
        super()._actor_task_failed(tracked_actor_task, exception)


def fail_alone(actors: RayActorManager) -> None:
    """Fail only the trial of an actor that is lost, for example to Ray's memory monitor.

    Tune ends the sweep with any error that is not of an actor or of its code, such as Ray's
    ``OutOfMemoryError``.
    """
    if type(actors) is RayActorManager:
        actors.__class__ = _FailingAlone


class PendingTrials:
    """A set of trials that pops the first added one for which no actor is starting.

    Tune keeps a plain set, so that any trial may be the next to continue in a free actor, even
    one whose own actor is about to start.

    Args:
        trials: The waiting trials.
        starts: Returns whether a trial has an actor that is starting.

    Example:
        >>> pending = PendingTrials("abc")
        >>> first = pending.pop()
        >>> pending.add(first)  # there was no free actor
        >>> pending.pop(), len(pending)
        ('a', 2)
    """

    def __init__(
        self, trials: Iterable[Trial] = (), starts: Callable[[Trial], bool] = lambda trial: False
    ):
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
        """Remove and return the first trial for which no actor is starting, else the first."""
        self._popped = trial = self.first_without_actor or next(iter(self._trials))
        del self._trials[trial]
        return trial

    def add(self, trial: Trial) -> None:
        """Add a trial at the end, but the one popped last at the front."""
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
    waiting = tune._resources_to_pending_trials
    if waiting.default_factory is not set:
        return
    starts = functools.partial(has_starting_actor, tune)
    in_order: defaultdict[Any, PendingTrials] = defaultdict(lambda: PendingTrials(starts=starts))
    for trial in tune._trials:
        if trial in waiting[trial.placement_group_factory]:
            in_order[trial.placement_group_factory].add(trial)
    tune._resources_to_pending_trials = in_order
