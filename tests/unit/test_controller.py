"""What Tune's controller takes into account besides trials."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import (
    ActorDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
)
from ray.tune.execution.tune_controller import TuneController

from tests.support.restores import contents
from tests.support.sweeps import sweep
from tunekit._ray.processes import start_in_order
from tunekit._ray.worker_errors import fail_alone

CPU = "the resources of any of them"


class Made:
    """A trial, as far as processes are concerned."""

    status, placement_group_factory = "PENDING", CPU

    def init_local_path(self) -> None: ...


@pytest.fixture
def heeding(tmp_path):
    """The controller of four trials, of which one runs, and what validations say to it."""
    ran = sweep(tmp_path, trials=4, slots=1, run=False)
    while not (ran.trials and ran.sweep.controller._running_trials):
        ran.sweep.step()
    says = SimpleNamespace(may=None, pool=SimpleNamespace(idle=True))
    says.slots, says.lacks_resources = lambda situation: says.may, lambda situation: False
    ran.sweep.controller.waiting = says
    return ran.sweep.controller, says


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """How many trials may have asked for an actor, each time that Tune looks for more."""
    found: list[int] = []
    look = lambda tune: found.append(tune._max_pending_trials)  # noqa: E731
    monkeypatch.setattr(TuneController, "_maybe_add_actors", look)
    return found


def test_tune_does_not_warn_that_no_trial_runs_while_validations_are_pending(heeding, asked):
    tune, says = heeding
    tune._insufficient_resources_manager._no_running_trials_since = 12.0
    for says.pool.idle, since in ((True, 12.0), (False, -1)):
        tune._maybe_add_actors()
        assert tune._insufficient_resources_manager._no_running_trials_since == since
    assert len(asked) == 2


def test_what_is_kept_for_trials_that_are_to_start_is_given_back(heeding, asked):
    tune, says = heeding
    first, *others = tune.get_trials()
    cache = tune._actor_cache
    cache.increase_max(CPU)
    cache.cache_object(CPU, actor := next(iter(tune._trial_to_actor.values())))
    assert tune._actor_manager.num_pending_actors == 3 and cache.num_cached_objects
    says.may = 0
    tune._maybe_add_actors()
    assert asked == [] and tune._actor_manager.num_pending_actors == 0
    assert tune._trial_to_actor == {first: actor}, "it has its resources"
    assert tune._pending_trials_list[:3] == others, "in the order in which they were made"
    assert not cache.num_cached_objects


@pytest.mark.parametrize(("places", "may"), [(None, 1000), (2, 3), (4, 3), (5, 4), (40, 39)])
def test_no_more_trials_have_a_process_than_may(heeding, asked, places, may):
    """One has one, and three have requested one."""
    tune, says = heeding
    says.may = places
    tune._maybe_add_actors()
    if places:  # another one goes on in a process that is kept
        tune._actor_cache.increase_max(CPU)
        tune._actor_cache.cache_object(CPU, "an actor")
        says.may += 1
        tune._maybe_add_actors()
    assert set(asked) == {may} and tune._max_pending_trials == 1000


# What ends a step -------------------------------------------------------------------------------


class Awaited:
    """A reference to an object of Ray's, or a stream of them."""


@pytest.fixture
def waiting(heeding, monkeypatch):
    """A controller whose steps end with events of Ray's own manager; nothing is fetched."""
    from ray.air.execution._internal.event_manager import RayEventManager

    def get(awaited):
        raise ValueError("a stream is no reference to an object")

    monkeypatch.setattr(ray, "get", get)
    controller, _ = heeding
    controller._actor_manager._actor_task_events = events = RayEventManager()
    return controller, events


def test_a_step_ends_when_something_is_there_that_is_waited_for(waiting):
    controller, events = waiting
    one, other = Awaited(), Awaited()
    controller.waker.wake_on([one, other])
    assert events.get_futures() == {one, other} and not controller.waker.woken()
    events.resolve_future(one)
    assert events.get_futures() == {other}
    assert controller.waker.woken() and not controller.waker.woken()


def test_a_stream_is_awaited_again_and_what_was_cancelled_is_not(waiting):
    controller, events = waiting
    stream, cancelled = Awaited(), Awaited()
    controller.waker.wake_on([stream, cancelled])
    events.resolve_future(stream)
    controller.waker.wake_on([stream])
    assert events.get_futures() == {stream}
    controller.waker.wake_on([])
    assert not events.get_futures()


# Failures of trials -------------------------------------------------------------------------------


@pytest.fixture
def failing():
    """What a controller is told when a task of a trial's actor ends with an error of Ray's."""
    resources = SimpleNamespace(free_resources=lambda acquired_resource: None)
    manager = RayActorManager(resource_manager=resources)
    fail_alone(manager)

    def told(error):
        heard = []
        actor = TrackedActor(1, on_error=lambda actor, error: heard.append(("actor", error)))
        manager._live_actors_to_ray_actors_resources[actor] = None, None
        task = TrackedActorTask(actor, on_error=lambda actor, error: heard.append(("task", error)))
        manager._actor_task_failed(task, error)
        return heard

    return told


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("2 worker(s) were killed"), ObjectLostError("aa", None, "")]
)
def test_a_trial_that_is_lost_to_ray_fails_alone(failing, error):
    """Tune knows no other errors than those of actors and of their code, and ended the sweep."""
    heard = failing(error)
    assert [who for who, _ in heard] == ["actor", "task"]
    assert all(isinstance(told, RayActorError) for _, told in heard)
    assert str(error) in str(heard[0][1])


def test_errors_that_tune_knows_stay_as_they_are_and_those_of_ray_itself_end_the_sweep(failing):
    died = ActorDiedError()
    assert failing(died) == [("actor", died), ("task", died)]
    with pytest.raises(RuntimeError):
        failing(RaySystemError("the GCS does not answer"))


# The order in which trials go on in reused actors -------------------------------------------------


def test_trials_that_wait_are_taken_in_the_order_in_which_they_were_made():
    trials = [Made() for _ in range(8)]
    tune = SimpleNamespace(_trials=trials, _trial_to_actor={})
    tune._resources_to_pending_trials = defaultdict(set, {CPU: set(trials[2:])})
    start_in_order(tune)
    pending = tune._resources_to_pending_trials[CPU]
    assert pending.pop() is trials[2]
    pending.add(trials[1])
    pending.discard(trials[4])
    assert [trials.index(pending.pop()) for _ in range(len(pending))] == [3, 5, 6, 7, 1]
    assert not tune._resources_to_pending_trials["gpu"]


@pytest.fixture
def reusing(heeding, monkeypatch):
    """A controller in which Tune would give a cached actor to any trial, and one that starts."""
    tune, starts = heeding[0], Made()
    tune._actor_cache = SimpleNamespace(num_cached_objects=1)
    monkeypatch.setattr(TuneController, "_maybe_reuse_cached_actor", lambda tune, trial: True)
    monkeypatch.setattr(tune._actor_manager, "is_actor_started", "started".__eq__)
    tune._trial_to_actor = {starts: "started"}
    return tune, starts


def test_a_trial_whose_own_actor_starts_is_not_given_another(reusing):
    """Its own would be ended, the next trial's be started, and so on: none would ever be there."""
    tune, starts = reusing
    waits, new = Made(), Made()
    tune._trial_to_actor[waits] = "requested"
    for trial in (waits, new):
        tune._resources_to_pending_trials[CPU].add(trial)
    assert not tune._maybe_reuse_cached_actor(starts)
    assert tune._maybe_reuse_cached_actor(waits) and tune._maybe_reuse_cached_actor(new)
    tune._resetting_trials = {starts}  # it goes on in another one already
    assert tune._maybe_reuse_cached_actor(starts)


def test_the_only_trial_that_waits_does_not_wait_for_its_own_actor(reusing):
    tune, starts = reusing
    tune._resources_to_pending_trials[CPU].add(starts)
    assert tune._maybe_reuse_cached_actor(starts), "nobody else can use what has become free"


def test_what_tune_has_fetched_of_other_sessions_is_not_copied_back(heeding):
    """Tune would write it over what is in the experiment's folder, in place, again and again."""
    tune, _ = heeding
    staged, own, other = Path(tune._storage.experiment_driver_staging_path), "1-10-00", "2-09-00"
    kept = [f"experiment_state-{own}.json", f"callback-states-{own}.pkl", "trial_1/params.pkl"]
    fetched = ["tuner.pkl", f"experiment_state-{other}.json", f"callback-states-{other}.pkl"]
    shutil.rmtree(staged)
    for name in (*kept, *fetched):
        (staged / name).parent.mkdir(exist_ok=True, parents=True)
        (staged / name).touch()
    tune._session_str = own
    tune.session.begin()
    assert sorted(contents(staged)) == sorted(kept)
