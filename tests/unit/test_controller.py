"""Tune's controller leaves room for validations, fails trials alone, and starts them in order."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.event_manager import RayEventManager
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
from tests.support.sweeps import Plan
from tunekit._ray.processes import start_in_order
from tunekit._ray.worker_errors import fail_alone

CPU = "the resources of any of them"


@pytest.fixture
def limited(tmp_path):
    """The controller of four trials, of which one runs, and how many slots validations leave."""
    ran = Plan(tmp_path, trials=4).training(slots=1).start()
    while not (ran.trials and ran.sweep.controller._running_trials):
        ran.sweep.step()
    waiting = SimpleNamespace(slots_left=None, pool=SimpleNamespace(idle=True))
    waiting.slots = lambda situation: waiting.slots_left
    waiting.lacks_resources = lambda situation: False
    ran.sweep.controller.waiting = waiting
    return ran.sweep.controller, waiting


@pytest.mark.parametrize(("slots", "may"), [(None, 1000), (2, 3), (4, 3), (5, 4), (40, 39)])
def test_trials_request_no_more_processes_than_there_are_slots(limited, monkeypatch, slots, may):
    """One trial has a process, and three have requested one."""
    asked: list[int] = []

    def look(tune: TuneController) -> None:
        asked.append(tune._max_pending_trials)

    monkeypatch.setattr(TuneController, "_maybe_add_actors", look)
    tune, waiting = limited
    waiting.slots_left = slots
    tune._maybe_add_actors()
    if slots:  # another one continues in a cached process
        tune._actor_cache.increase_max(CPU)
        tune._actor_cache.cache_object(CPU, "an actor")
        waiting.slots_left += 1
        tune._maybe_add_actors()
    assert set(asked) == {may} and tune._max_pending_trials == 1000


# What ends a step -------------------------------------------------------------------------------


class Awaited:
    """A reference to an object of Ray's, or a stream of them."""


def test_step_ends_when_an_awaited_object_is_ready_unless_it_was_cancelled(limited, monkeypatch):
    """Its events are those of Ray's own manager, which fetches nothing from a stream."""
    controller, _ = limited
    monkeypatch.setattr(ray, "get", lambda awaited: 1 / 0)
    controller._actor_manager._actor_task_events = events = RayEventManager()
    stream, other, wakes = Awaited(), Awaited(), controller.waker
    wakes.wake_on([stream, other])
    assert events.get_futures() == {stream, other} and not wakes.woken()
    events.resolve_future(stream)
    assert events.get_futures() == {other}
    assert wakes.woken() and not wakes.woken()
    wakes.wake_on([stream])
    assert events.get_futures() == {stream}, "the stream is awaited again, the other was cancelled"


# Failures of trials -------------------------------------------------------------------------------


def errors_told(error: Exception) -> list[tuple[str, Exception]]:
    """What Tune is told when a task of a trial's actor ends with an error of Ray's."""
    resources = SimpleNamespace(free_resources=lambda acquired_resource: None)
    manager, told = RayActorManager(resource_manager=resources), []
    fail_alone(manager)
    actor = TrackedActor(1, on_error=lambda actor, error: told.append(("actor", error)))
    manager._live_actors_to_ray_actors_resources[actor] = None, None
    task = TrackedActorTask(actor, on_error=lambda actor, error: told.append(("task", error)))
    manager._actor_task_failed(task, error)
    return told


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("2 worker(s) were killed"), ObjectLostError("aa", None, "")]
)
def test_trial_that_ray_loses_fails_alone(error):
    """Tune knows no other errors than those of actors and of their code, and ended the sweep."""
    told = errors_told(error)
    assert [of for of, _ in told] == ["actor", "task"]
    assert all(isinstance(one, RayActorError) and str(error) in str(one) for _, one in told)


def test_error_of_a_trials_actor_reaches_tune_unchanged_and_one_of_ray_ends_the_sweep():
    died = ActorDiedError()
    assert errors_told(died) == [("actor", died), ("task", died)]
    with pytest.raises(RuntimeError):
        errors_told(RaySystemError("the GCS does not answer"))


# The order in which trials continue in reused actors ----------------------------------------------


class Made:
    """A trial, as far as processes are concerned."""

    status, placement_group_factory = "PENDING", CPU

    def init_local_path(self) -> None: ...


def test_waiting_trials_continue_in_reused_actors_in_the_order_of_creation():
    trials = [Made() for _ in range(8)]
    tune = SimpleNamespace(_trials=trials, _trial_to_actor={})
    tune._resources_to_pending_trials = defaultdict(set, {CPU: set(trials[2:])})
    start_in_order(tune)
    pending = tune._resources_to_pending_trials[CPU]
    pending.add(trials[1])
    pending.discard(trials[4])
    assert [trials.index(pending.pop()) for _ in range(len(pending))] == [2, 3, 5, 6, 7, 1]
    assert not tune._resources_to_pending_trials["gpu"]


def test_trial_whose_own_actor_starts_leaves_a_free_one_to_trials_that_wait(limited, monkeypatch):
    """Its own would be ended, the next trial's be started, and so on: none would ever be there."""
    tune, starts, waits, new = limited[0], Made(), Made(), Made()
    tune._actor_cache = SimpleNamespace(num_cached_objects=1)
    monkeypatch.setattr(TuneController, "_maybe_reuse_cached_actor", lambda tune, trial: True)
    monkeypatch.setattr(tune._actor_manager, "is_actor_started", "started".__eq__)
    tune._trial_to_actor = {starts: "started", waits: "requested"}
    pending = tune._resources_to_pending_trials[CPU]
    pending.add(starts)
    assert tune._maybe_reuse_cached_actor(starts), "no other trial can use what has become free"
    pending.add(waits)
    pending.add(new)
    reused = [tune._maybe_reuse_cached_actor(trial) for trial in (starts, waits, new)]
    assert reused == [False, True, True]
    tune._resetting_trials = {starts}  # it continues in another one already
    assert tune._maybe_reuse_cached_actor(starts)


def test_files_that_tune_fetched_from_other_sessions_are_deleted_at_a_sessions_start(limited):
    """Tune would write it over what is in the experiment's folder, in place, again and again."""
    tune, _ = limited
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
