"""Control a running Tune experiment."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ray.train._internal.session import _TrainingResult
from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.search import SearchAlgorithm
from ray.tune.stopper import Stopper, TimeoutStopper

from tunekit._ray.cluster import ending_groups
from tunekit._ray.functions import CAN_SAVE, HAS_ASKED, can_be_resumed, can_be_saved
from tunekit._ray.processes import ProcessController, WaitingRules, has_starting_actor
from tunekit._ray.scheduler_kinds import controller_in
from tunekit._ray.stoppers import parts

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


class Parts(NamedTuple):
    """What a controller was created with."""

    callbacks: list[Any]
    search_alg: SearchAlgorithm
    reuses_actors: bool


def parts_of(tune_controller: Any) -> Parts:
    """Return the parts of the controller that Tune has passed to a scheduler."""
    tune = controller_in(tune_controller)
    return Parts(tune._callbacks._callbacks, tune._search_alg, bool(tune._reuse_actors))


class Controller(ProcessController):
    """Tune's controller, with access to what a driver reads and changes in a running experiment."""

    def begin(self, rules: WaitingRules) -> None:
        """Begin, before the controller has processed a result."""
        super().begin(rules)
        # The references that end Tune's wait in addition to its trials, and whether one has.
        self._awaited: set[Any] = set()
        self._woken = False
        # Whether each class can resume and save, and the trials whose functions have asked for a
        # checkpoint.
        self._capable: dict[str, tuple[bool, bool]] = {}
        self._asked: set[str] = set()
        # The trials whose functions have registered how to save.
        self._savers: set[str] = set()
        self._next_look = 0.0
        # The newest process when this was last checked.
        self._newest: Any = None
        # ``time_budget_s`` and other stoppers that end all trials after a certain time.
        stoppers = parts(self._stopper)
        self._time_budgets = [one for one in stoppers if isinstance(one, TimeoutStopper)]

    # The state of the experiment ---------------------------------------------------------------

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks, in the order in which they are called."""
        return list(self._callbacks._callbacks)

    @property
    def has_cached_actors(self) -> bool:
        """Return whether a trial can continue in the process of another one."""
        return bool(self._actor_cache.num_cached_objects)

    @property
    def awaits_nothing(self) -> bool:
        """Return whether no trial is active, so that Tune's next step does not wait."""
        actors = self._actor_manager
        return not (
            actors.num_actor_tasks
            or actors.num_pending_actors
            or self._staged_trials
            or self._stopping_actors
        )

    @property
    def cuts_short(self) -> bool:
        """Return whether Tune has stopped all trials: no time is left, or one has failed."""
        out_of_time = any(stopper._budget <= 0 for stopper in self._time_budgets)
        return out_of_time or bool(self._fail_fast and self._has_errored)

    @property
    def trials_to_come(self) -> int:
        """Return how many trials the search algorithm has yet to create; 0 if unknown."""
        return max(0, self.search_alg.total_samples - len(self.get_trials()))

    def promised(self) -> Iterator[tuple[Mapping[str, float], int]]:
        """Yield the resources of trials whose actors were requested and have not started.

        Each comes with the number of such trials.
        """
        for request, actors in self._actor_manager._resource_request_to_pending_actors.items():
            if actors:
                yield request.required_resources, len(actors)
        for trial in self.starting():
            yield trial.placement_group_factory.required_resources, 1

    def has_actor(self, trial: Trial) -> bool:
        """Return whether a trial has an actor or one is starting: it has not released its slot."""
        return trial in self._trial_to_actor

    def begun(self) -> Iterable[Trial]:
        """Return the trials that are starting if any may have begun since the last call."""
        newest = next(reversed(self._actor_manager._live_actors_to_ray_actors_resources), None)
        if newest is self._newest and not self._resetting_trials:
            return ()
        self._newest = newest
        return self.starting()

    def starting(self) -> Iterator[Trial]:
        """Yield each trial that has its resources but whose process is still starting."""
        count = self._occupied - len(self._running_trials & self._trial_to_actor.keys())
        newest_first = reversed(self._actor_manager._live_actors_to_ray_actors_resources)
        trials = (self._actor_to_trial.get(actor) for actor in newest_first)
        starting = (one for one in trials if one is not None and one.status == Trial.PENDING)
        yield from itertools.islice(starting, max(0, count))

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

    def check_nodes(self, now: float) -> None:
        """Find the trials on nodes that are about to end, at most every 2 s."""
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        self.leaving.clear()
        if groups := ending_groups():
            self._cleanup_cached_actors(force_all=True)  # no trial may start in one there
            for trial, actor in self._trial_to_actor.items():
                acquired: Any = self._actor_manager.get_actor_resources(actor)
                if acquired is not None and acquired.placement_group.id.hex() in groups:
                    self.leaving.add(trial.trial_id)

    @property
    def reuses_actors(self) -> bool:
        """Return whether other trials run in the actors of trials that pause or end."""
        return bool(self._reuse_actors)

    def wrapped(self) -> TrialRunnerWrapper:
        """Return the controller as Tune passes it to schedulers."""
        return self._wrapped()

    @property
    def has_new_trials(self) -> bool:
        """Return whether a trial waits for a slot that no other one has released for it."""
        if self.reuses_actors:
            return bool(self._pending_trials)
        released = max(0, self._slots - self._occupied)
        pending = (one for one in self._pending_trials if not has_starting_actor(self, one))
        return next(itertools.islice(pending, released, None), None) is not None

    @property
    def running(self) -> Collection[Trial]:
        """The trials that Tune has running, including those that have released their slots."""
        return list(self._running_trials)

    @property
    def stopper(self) -> Stopper:
        """What stops trials, or the sweep, based on results."""
        return self._stopper

    # Actions -----------------------------------------------------------------------------------

    def wake_on(self, awaited: Iterable[Any]) -> None:
        """End Tune's step as soon as an awaited object is ready, not after 0.1 s (decision 2).

        Args:
            awaited: References to all awaited objects, or streams of them.
        """
        now = set(awaited)
        if now == self._awaited:
            return
        events = self._actor_manager._actor_task_events
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

    def begin_session(self) -> None:
        """Reset saved state of Tune that applies only to the former session.

        These are the rest of the time budget; whether a trial has failed (``fail_fast``), which
        ends the search; the decisions to be carried out after saves; and the files that Tune has
        fetched, which it would repeatedly copy back, in place, into the experiment's folder.
        """
        for path in Path(self._storage.experiment_driver_staging_path).iterdir():
            own = self._session_str in path.name
            if path.suffix in (".json", ".pkl") and path.is_file() and not own:
                path.unlink()
        self._cached_trial_decisions.clear()
        self._queued_trial_decisions.clear()
        if self.cuts_short:
            self.search_alg._finished = False
        self._has_errored = False
        for stopper in self._time_budgets:
            stopper._budget = stopper._timeout_seconds

    def save(self) -> None:
        """Write the experiment's state to storage, now."""
        self.checkpoint(force=True, wait=True)

    # Reports and saved state -------------------------------------------------------------------

    def preprocess_reports(self, convert: Callable[..., None]) -> None:
        """Call ``convert`` with each report, including that of each save, before Tune receives it.

        ``convert(trial, report, saved=...)`` may change the report. Tune prints and flattens
        reports before it passes them on, and fails if that raises or never ends.
        """
        actors = self._actor_manager
        schedule = actors.schedule_actor_task

        def scheduled(*args: Any, on_result: Any = None, **known: Any) -> Any:
            own, method = on_result, known.get("method_name")
            if on_result is not None and method in ("train", "save"):

                def own(actor: Any, result: Any) -> None:
                    for one in result if isinstance(result, list) else [result]:
                        report = one.metrics if isinstance(one, _TrainingResult) else one
                        if isinstance(report, dict) and actor in self._actor_to_trial:
                            trial = self._actor_to_trial[actor]
                            if report.pop(HAS_ASKED, False):
                                self._asked.add(trial.trial_id)
                            if report.pop(CAN_SAVE, False):
                                self._savers.add(trial.trial_id)
                            convert(trial, report, saved=method == "save")
                    on_result(actor, result)

            return schedule(*args, on_result=own, **known)

        actors.schedule_actor_task = scheduled

    @property
    def storage(self) -> Any:
        """Return the experiment's storage context."""
        return self._storage

    def use_current_folder(self, trial: Trial) -> None:
        """Store a trial in the experiment's current folder.

        A restored search algorithm creates trials in the folder in which it was saved, but the
        experiment may have moved since, or be reached by another path.
        """
        names = ("storage_filesystem", "storage_fs_path", "experiment_dir_name")
        current = {name: getattr(self._storage, name) for name in names}
        if any(getattr(trial.storage, name) != value for name, value in current.items()):
            moved = copy.copy(trial.storage)
            vars(moved).update(current)
            trial.set_storage(moved)
            trial.invalidate_json_state()

    def saved_files(self) -> dict[str, bytes]:
        """Return the files of Tune's last save in this session."""
        return _files_in(Path(self._storage.experiment_driver_staging_path), self._session_str)

    def search_files(self) -> dict[str, bytes]:
        """Return the files of the search algorithm's current state."""
        session = self._session_str
        with tempfile.TemporaryDirectory() as folder:
            self.search_alg.save_to_dir(folder, session_str=session)
            return _files_in(Path(folder), session)

    def set_status(self, trial: Trial, status: str) -> None:
        """Change the status of a trial that has no actor."""
        self._set_trial_status(trial, status)

    def mark_changed(self, trial: Trial) -> None:
        """Include a trial's changed metadata in the next saved state."""
        trial.run_metadata.invalidate_cache()
        self._mark_trial_to_checkpoint(trial)

    def required_metrics(self) -> set[str]:
        """Return the metrics that ``TuneConfig`` and the search algorithm name."""
        required = set()
        owners = [self, self.search_alg]
        outermost = getattr(self.search_alg, "searcher", None)
        if hasattr(outermost, "searcher"):  # it wraps searchers, which need theirs
            owners.append(outermost)
        for owner in owners:
            metric = getattr(owner, "_metric", None)
            names = metric if isinstance(metric, list) else [metric]
            required |= {n for n in names if isinstance(n, str) and n != DEFAULT_METRIC}
        return required


def _files_in(folder: Path, session: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob(f"*{session}*"))
        if path.suffix in (".json", ".pkl") and path.is_file() and not path.name.startswith(".")
    }
