"""What Tune's controller heeds besides trials; Tune itself does not run."""

from __future__ import annotations

from collections import defaultdict
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
from ray.tune.search import BasicVariantGenerator

from tunekit._ray.controller import Controller
from tunekit._ray.failures import fail_alone
from tunekit._ray.processes import start_in_order


class Tune:
    """As much of Tune's controller as its part that heeds validations looks at."""

    def __init__(self):
        self.over, self.blocked, self.added, self.evicted = False, [], 0, 0
        self._insufficient_resources_manager = SimpleNamespace(_no_running_trials_since=12.0)
        self._staged_trials, self._trial_to_actor, self._actor_to_trial = set(), {}, {}
        self._pending_trials_list, self._trials = [], []
        self.cancelled, self.may_wait = [], None
        self._actor_manager = SimpleNamespace(
            is_actor_started=lambda actor: actor == "started",
            remove_actor=self.cancelled.append,
            num_pending_actors=1,
        )
        self._actor_cache = SimpleNamespace(
            decrease_max=lambda resources: None,
            num_cached_objects=0,
            has_cached_object=lambda resources: False,
        )
        self.search_alg, self._max_pending_trials = BasicVariantGenerator(), 8
        self.resumed = False
        self._pending_trials, self.asked = set(), []
        self._resources_to_pending_trials = defaultdict(set)
        self._resetting_trials, self.reused = set(), []

    def is_finished(self):
        return self.over

    def _update_trial_queue(self, blocking=False, timeout=600):
        self.blocked.append(blocking)
        return False

    def _maybe_update_trial_queue(self):
        self.asked.append(len(self._pending_trials))

    def _maybe_add_actors(self):
        self.added += 1
        self.may_wait = self._max_pending_trials

    def _maybe_reuse_cached_actor(self, trial):
        self.reused.append(trial)
        return True

    def _cleanup_cached_actors(self, force_all=False):
        self.evicted += force_all


class Heeding(Controller):
    """The rules for processes, over that much of Tune's controller."""

    def __init__(self, room):
        vars(self).update(vars(Tune()))
        self.begin(room)

    search_alg = resumed = None


for _name in ("is_finished", "_update_trial_queue"):
    setattr(Heeding, _name, getattr(Tune, _name))


@pytest.fixture
def heeding(monkeypatch):
    """A controller, and what may be said to it."""
    for name in ("_maybe_update_trial_queue", "_maybe_add_actors", "_maybe_reuse_cached_actor"):
        monkeypatch.setattr(TuneController, name, getattr(Tune, name))
    monkeypatch.setattr(TuneController, "_cleanup_cached_actors", Tune._cleanup_cached_actors)
    says = SimpleNamespace(waits=False, may=None)
    says.pending, says.places = lambda: says.waits, lambda: says.may
    says.lacking = lambda: False
    return Heeding(says), says


def test_tune_does_not_warn_that_no_trial_runs_while_validations_are_pending(heeding):
    tune, says = heeding
    tune._maybe_add_actors()
    assert tune._insufficient_resources_manager._no_running_trials_since == 12.0
    says.waits = True
    tune._maybe_add_actors()
    assert tune._insufficient_resources_manager._no_running_trials_since == -1
    assert tune.added == 2


def test_what_is_kept_for_trials_that_are_to_start_is_given_back(heeding):
    tune, says = heeding
    trials = [
        SimpleNamespace(number=n, status="PENDING", placement_group_factory=None) for n in range(4)
    ]
    trials = [Hashable(trial) for trial in trials]
    tune._trials = list(trials)
    tune._staged_trials = set(trials[:3])
    tune._trial_to_actor = {trials[0]: "started", trials[1]: "b", trials[2]: "c"}
    tune._actor_to_trial = {actor: trial for trial, actor in tune._trial_to_actor.items()}
    tune._pending_trials_list = [trials[3]]
    says.waits, says.may = True, 0
    tune._maybe_add_actors()
    assert not tune.added
    assert sorted(tune.cancelled) == ["b", "c"]
    assert tune._staged_trials == {trials[0]}, "it has its resources"
    assert tune._actor_to_trial == {"started": trials[0]}
    assert tune._pending_trials_list == trials[1:], "in the order in which they were made"
    assert tune.evicted == 1


@pytest.mark.parametrize(("places", "may_wait"), [(None, 8), (2, 1), (4, 2), (40, 8)])
def test_no_more_trials_have_a_process_than_may(heeding, places, may_wait):
    """Three have one, or have requested one; one of these waits for it."""
    tune, says = heeding
    tune._trial_to_actor = {"a": "started", "b": "started", "c": "c"}
    says.may = places
    tune._maybe_add_actors()
    assert (tune.may_wait, tune._max_pending_trials) == (may_wait, 8)
    # Another one goes on in a process that is kept.
    tune._trial_to_actor.pop("a")
    tune._actor_cache.num_cached_objects = 1
    tune._maybe_add_actors()
    assert (tune.may_wait, tune._max_pending_trials) == (may_wait, 8)


class Hashable:
    """A trial that can be in a set."""

    def __init__(self, what):
        self.__dict__.update(vars(what))


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
    controller.wake_on([one, other])
    assert events.get_futures() == {one, other} and not controller.woken()
    events.resolve_future(one)
    assert events.get_futures() == {other}
    assert controller.woken() and not controller.woken()


def test_a_stream_is_waited_for_again_and_what_is_gone_is_not(waiting):
    controller, events = waiting
    stream, cancelled = Awaited(), Awaited()
    controller.wake_on([stream, cancelled])
    events.resolve_future(stream)
    controller.wake_on([stream])
    assert events.get_futures() == {stream}
    controller.wake_on([])
    assert not events.get_futures()


# Failures of trials -------------------------------------------------------------------------------


@pytest.fixture
def failing():
    """What a controller is told when a task of a trial's actor ends with an error of Ray's."""
    tune = Tune()
    resources = SimpleNamespace(free_resources=lambda acquired_resource: None)
    tune._actor_manager = RayActorManager(resource_manager=resources)
    fail_alone(tune._actor_manager)

    def told(error):
        heard = []
        actor = TrackedActor(1, on_error=lambda actor, error: heard.append(("actor", error)))
        tune._actor_manager._live_actors_to_ray_actors_resources[actor] = None, None
        task = TrackedActorTask(actor, on_error=lambda actor, error: heard.append(("task", error)))
        tune._actor_manager._actor_task_failed(task, error)
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
    tune = Tune()
    trials = [SimpleNamespace(name=n, placement_group_factory="cpu") for n in range(8)]
    hashable = [type("Made", (), vars(trial))() for trial in trials]
    tune._trials = hashable
    tune._resources_to_pending_trials["cpu"] = set(hashable[2:])
    start_in_order(tune)
    waiting = tune._resources_to_pending_trials["cpu"]
    assert waiting.pop() is hashable[2]
    waiting.add(hashable[1])
    waiting.discard(hashable[4])
    assert [waiting.pop().name for _ in range(len(waiting))] == [3, 5, 6, 7, 1]
    assert not tune._resources_to_pending_trials["gpu"]


def test_a_trial_whose_own_actor_starts_is_not_given_another(heeding):
    """Its own would be ended, the next trial's be started, and so on: none would ever be there."""
    tune, _ = heeding
    starts, waits, new = (SimpleNamespace(placement_group_factory="cpu") for _ in range(3))
    starts, waits, new = (
        type("Made", (), {**vars(one), "init_local_path": lambda self: None})()
        for one in (starts, waits, new)
    )
    tune._trial_to_actor = {starts: "started", waits: "requested"}
    for trial in (waits, new):
        tune._resources_to_pending_trials["cpu"].add(trial)
    assert not tune._maybe_reuse_cached_actor(starts)
    assert tune._maybe_reuse_cached_actor(waits) and tune._maybe_reuse_cached_actor(new)
    assert tune.reused == [waits, new]
    tune._resetting_trials = {starts}  # it goes on in another one already
    assert tune._maybe_reuse_cached_actor(starts)


def test_the_only_trial_that_waits_does_not_wait_for_its_own_actor(heeding):
    tune, _ = heeding
    trial = type(
        "Made", (), {"placement_group_factory": "cpu", "init_local_path": lambda self: None}
    )()
    tune._trial_to_actor = {trial: "started"}
    tune._resources_to_pending_trials["cpu"].add(trial)
    assert tune._maybe_reuse_cached_actor(trial), "nobody else can use what has become free"


def test_what_tune_has_fetched_of_other_sessions_is_not_copied_back(heeding, tmp_path):
    """Tune would write it over what is in the experiment's folder, in place, again and again."""
    own, other = "2026-11-24_10-00-00", "2026-11-23_09-00-00"
    kept = [f"experiment_state-{own}.json", f"callback-states-{own}.pkl", "trial_1/params.pkl"]
    fetched = ["tuner.pkl", f"experiment_state-{other}.json", f"callback-states-{other}.pkl"]
    for name in (*kept, *fetched):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    tune, _ = heeding
    tune._storage = SimpleNamespace(experiment_driver_staging_path=str(tmp_path))
    tune._session_str, tune._stopper, tune._fail_fast = own, None, False
    tune._cached_trial_decisions, tune._queued_trial_decisions = {}, {}
    tune.begin_session()
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")]
    assert sorted(left) == sorted(kept)
