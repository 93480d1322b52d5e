"""Where validations run, and how Ray's errors end them; Ray is not started."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch  # noqa: F401  (its settings are kept and put back)
from ray import train
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    OwnerDiedError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from tests.support.fakes import FakeClock
from tunekit import ValidationConfig
from tunekit._ray import cluster, worker_errors
from tunekit._ray.process_state import release_gpu_memory
from tunekit.core.executor import Began, Failed, HostEnded, Returned
from tunekit.core.failures import failure_kind
from tunekit.core.validation import Attempt, Request
from tunekit.distributed import TrainerValidation
from tunekit.validating import ray_executor
from tunekit.validating import ray_executor as module
from tunekit.validating.process import Evaluator, outcome_of, result_of
from tunekit.validating.ray_executor import RayExecutor, _Actor, _Flight, executor_of


class Stream:
    """A task's results: values, or errors that Ray raises when they are fetched."""

    def __init__(self, *results):
        self._results = iter(results)

    def __next__(self):
        return next(self._results)


ID = "a:0:1:1#1"


def get(result):
    if isinstance(result, Exception):
        raise result
    return result


def in_flight(executor, attempt, stream, **known):
    """Let an executor have an attempt that was started."""
    executor._flights[attempt.id] = module._Flight(attempt, stream=stream, **known)
    return executor._flights[attempt.id]


def events_of(monkeypatch, *results):
    executor = RayExecutor(lambda checkpoint: {}, {"num_cpus": 1})
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda streams, **options: (streams, []))
    in_flight(executor, Attempt(Request("a", 1), 1), Stream(*results))
    return list(executor.poll())


def test_nothing_comes_of_an_attempt_that_is_cancelled_meanwhile(monkeypatch):
    executor = RayExecutor(lambda checkpoint: {}, {"num_cpus": 1})
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda streams, **options: (streams, []))
    monkeypatch.setattr(ray, "cancel", lambda stream, **options: None)
    first, second = Attempt(Request("a", 1), 1), Attempt(Request("a", 2), 1)
    for one in (first, second):
        in_flight(executor, one, Stream(Returned(one.id, {})))
    events = executor.poll()
    assert next(events) == Returned(first.id, {})
    executor.cancel(second)
    assert not list(events)


LOST = [
    (ObjectLostError("ab" * 14, None, ""), "was lost: ObjectLostError"),
    (OwnerDiedError("ab" * 14, None, ""), "was lost: OwnerDiedError"),
    (NodeDiedError("gone"), "was lost: NodeDiedError"),
    (OutOfMemoryError("used up"), "its process was killed for running out of memory"),
    (WorkerCrashedError(), "its process died"),
]

TEXT = "a line\n" * 10**6


def test_what_is_kept_of_an_error_is_short(monkeypatch):
    for error in (ray.exceptions.RayError(TEXT), RayTaskError("validate", TEXT, ValueError(TEXT))):
        [failed] = events_of(monkeypatch, error)
        assert isinstance(failed, Failed) and failed.error is not None
        assert len(failed.reason) <= 1000 and len(failed.error) < 70_000


@pytest.mark.parametrize(("error", "reason"), LOST, ids=[type(e).__name__ for e, _ in LOST])
@pytest.mark.parametrize("begun", [True, False])
def test_what_ray_loses_is_a_failed_attempt_that_can_be_tried_again(
    monkeypatch, error, reason, begun
):
    results = [Began(ID), error] if begun else [error]
    *before, failed = events_of(monkeypatch, *results)
    assert before == ([Began(ID)] if begun else [])
    assert isinstance(failed, Failed)
    assert (failed.attempt_id, failed.reason) == (ID, reason)


def test_a_task_that_ends_with_and_without_a_result(monkeypatch):
    known = [Began(ID), Returned(ID, {"accuracy": 0.5})]
    assert events_of(monkeypatch, *known) == known
    *_, failed = events_of(monkeypatch, Began(ID))
    assert isinstance(failed, Failed) and failed.reason == "ended without a result"


# What waits for resources -----------------------------------------------------------------------


def demands(*shapes):
    """What Ray's control service says of what waits: shapes, and by how many."""
    return SimpleNamespace(
        resource_usage_data=SimpleNamespace(
            resource_load_by_shape=SimpleNamespace(
                resource_demands=[
                    SimpleNamespace(
                        shape=shape,
                        num_ready_requests_queued=ready,
                        num_infeasible_requests_queued=0,
                    )
                    for shape, ready in shapes
                ]
            )
        )
    )


@pytest.fixture
def ray_says(monkeypatch):
    """Set what waits for resources, and what is free; an error is raised."""

    def says(*shapes, free=None):
        def usage(timeout):
            if isinstance(shapes[0], Exception):
                raise shapes[0]
            return demands(*shapes)

        client = SimpleNamespace(get_all_resource_usage=usage)
        monkeypatch.setattr(cluster.global_worker, "gcs_client", client, raising=False)
        monkeypatch.setattr(ray, "available_resources", lambda: free or {})

    return says


def handed_over(attempts, begun=0):
    executor = RayExecutor(lambda checkpoint: {}, {"num_cpus": 1})
    for n in range(attempts):
        in_flight(executor, Attempt(Request("a", n), 1), object(), begun=n < begun)
    return executor


def test_tasks_whose_processes_start_do_not_wait_for_resources(ray_says):
    ray_says(({"CPU": 1.0}, 0))  # none is free, for they have them
    assert handed_over(2).unplaced() == 0
    ray_says(({"CPU": 1.0}, 1), ({"CPU": 1.0, "GPU": 1.0}, 7))
    assert handed_over(2).unplaced() == 1
    ray_says(({"CPU": 1.0}, 9))  # others' among them
    assert handed_over(3, begun=1).unplaced() == 2
    assert handed_over(3, begun=3).unplaced() == 0


def test_where_ray_does_not_say_what_waits_it_goes_by_what_is_free(ray_says):
    ray_says(TimeoutError(), free={"CPU": 0.5})
    assert handed_over(2).unplaced() == 2
    ray_says(TimeoutError(), free={"CPU": 6.0})
    assert handed_over(2).unplaced() == 0


class Handle:
    """Stands in for an actor's handle, whose method yields this."""

    def __init__(self, *yields: Any):
        self.yields, self.killed = list(yields), False
        self.evaluate = SimpleNamespace(options=lambda **options: self)

    def remote(self, *args: Any) -> Any:
        return Stream(*self.yields)


@dataclass
class Known:
    """An evaluator: whether its process is up, whether it has work, its placement group."""

    up: bool = True
    works: bool = True
    group: str | None = None
    handle: Handle = field(default_factory=Handle)


def evaluators(monkeypatch, *known, count=9, **options):
    executor = RayExecutor(lambda checkpoint: {}, {"num_cpus": 1, **options}, evaluators=count)
    monkeypatch.setattr(ray, "kill", lambda handle: setattr(handle, "killed", True))
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "cancel", lambda stream, force: None)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(module, "has_died", lambda handle: handle.killed)
    monkeypatch.setattr(module, "placement_group_table", lambda group: {"state": group})
    executor._remote = SimpleNamespace(remote=lambda first_bundle: Handle())
    for n, one in enumerate(known):
        actor = module._Actor(one.handle, one.group, up=one.up)
        executor._actors.append(actor)
        if one.works:
            attempt = Attempt(Request("a", n), 1)
            actor.flight = in_flight(executor, attempt, one.handle.remote(), actor=actor)
            actor.calls = 1
    return executor


def test_evaluators_whose_processes_start_do_not_wait_for_resources(monkeypatch, ray_says):
    ray_says(({"CPU": 1.0}, 1))
    assert evaluators(monkeypatch, Known(up=False), Known()).unplaced() == 1
    assert evaluators(monkeypatch, Known()).unplaced() == 0
    assert evaluators(monkeypatch, Known(up=False, group="CREATED")).unplaced() == 0
    assert evaluators(monkeypatch, Known(up=False, group="PENDING")).unplaced() == 1
    ray_says(({"CPU": 1.0}, 0))  # after one was killed, another starts
    assert evaluators(monkeypatch, Known(up=False)).unplaced() == 0


def step_by_step(monkeypatch, executor):
    """Let each poll take one thing from each stream."""

    def poll() -> list[Any]:
        left = [True]

        def wait(streams: Any, **options: Any) -> Any:
            return (streams, []) if left and left.pop() else ([], [])

        monkeypatch.setattr(ray, "wait", wait)
        return list(executor.poll())

    return poll


@pytest.mark.parametrize(("most", "left"), [(0, 1), (1, 0), (2, 1)])
def test_an_evaluator_is_replaced_after_so_many_calls(monkeypatch, most, left):
    known = Known(handle=Handle(Returned(ID, {})))
    executor = evaluators(monkeypatch, known, max_calls=most)
    assert [type(event) for event in step_by_step(monkeypatch, executor)()] == [Returned]
    assert len(executor._actors) == left


@pytest.mark.parametrize("last", [(), (TaskCancelledError(),), (Failed(ID, "CUDA error"),)])
def test_an_evaluator_whose_validation_has_failed_is_replaced(monkeypatch, last):
    known = Known(handle=Handle(*last))
    executor = evaluators(monkeypatch, known)
    assert [type(event) for event in step_by_step(monkeypatch, executor)()] == [Failed]
    assert known.handle.killed and not executor._actors


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [True]), (2, [False, True]), (3, [False, True, False])]
)
def test_evaluators_without_work_end_when_their_resources_are_needed(monkeypatch, keep, left):
    executor = evaluators(monkeypatch, Known(works=False), Known(), Known(up=False, works=False))
    executor.spare(keep)
    assert len(executor._actors) == len(left)
    assert sum(actor.flight is not None for actor in executor._actors) == 1


def test_what_a_function_raises_is_why_it_has_failed():
    def raises():
        raise RuntimeError("no data here")

    found = result_of(ID, raises)
    assert isinstance(found, Failed) and found.reason == "raised RuntimeError: no data here"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_a_function_raises_in_a_worker_is_its_own(monkeypatch, error):
    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        outcome_of(function)  # in a driver somebody presses Ctrl-C
    monkeypatch.setattr(worker_errors, "in_worker", lambda: True)
    cancelled = SimpleNamespace(is_canceled=lambda: False)
    monkeypatch.setattr(worker_errors.ray, "get_runtime_context", lambda: cancelled)
    found = outcome_of(function)
    assert found.reason.startswith(f"raised {type(error).__name__}")
    assert failure_kind(found.reason) == failure_kind(outcome_of(function).reason), (
        "they are counted as one"
    )


def test_an_interrupt_of_the_drivers_and_an_exit_of_rays_end_the_task(monkeypatch):
    exit_of_rays = SystemExit(1)
    exit_of_rays.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]
    monkeypatch.setattr(worker_errors, "in_worker", lambda: True)
    cancelled = SimpleNamespace(is_canceled=lambda: True)
    monkeypatch.setattr(worker_errors.ray, "get_runtime_context", lambda: cancelled)
    for error in (KeyboardInterrupt(), exit_of_rays):
        with pytest.raises(type(error)):
            outcome_of(lambda error=error: (_ for _ in ()).throw(error))


# Where they run ----------------------------------------------------------------------------------


CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def validate(checkpoint):
    return {"accuracy": 0.5}


def by_workers(workers: int, **options: Any) -> TrainerValidation:
    return TrainerValidation(lambda config: {}, train.ScalingConfig(num_workers=workers), **options)


@pytest.mark.parametrize(
    ("settings", "in_trials"),
    [
        ({}, True),
        ({"ray_remote_kwargs": {"num_cpus": 0.5, "num_gpus": 1}}, True),
        ({"evaluators": 2}, False),
        ({"where": "elsewhere"}, False),
        # What these options ask of a process, that of a trial does not have.
        ({"ray_remote_kwargs": {"runtime_env": {}}}, False),
        ({"ray_remote_kwargs": {"max_calls": 1}}, False),
        ({"fn": by_workers(2)}, True),
        ({"fn": by_workers(2), "evaluators": 1}, False),
        # Those of a trial have other data, or another backend.
        ({"fn": by_workers(2, datasets={"rows": [1]})}, False),
    ],
)
def test_which_options_allow_validation_in_a_trials_process(settings, in_trials):
    config = ValidationConfig(**{"fn": validate, **settings})
    executor = executor_of(config)
    assert executor.in_trials == in_trials
    assert config.where != "elsewhere" or not executor.fits_in([CPU])


@pytest.mark.parametrize(
    ("fn", "options", "place", "fits"),
    [
        (validate, {}, [CPU], True),
        (validate, {}, [CPU, CPU], True),
        (by_workers(2), {}, [CPU, CPU], True),
        (by_workers(2), {}, [CPU] * 3, False),
        (by_workers(1), {}, [CPU, CPU], False),
        (by_workers(2), {}, [{"CPU": 0.5}, CPU], False),
        (validate, {}, [], False),
        # A trial that waits has the core that nobody has asked for.
        (validate, {}, [{"CPU": 0.5}], True),
        (validate, {"num_gpus": 1}, [{"GPU": 1.0}], True),  # tune.with_resources(..., {"gpu": 1})
        (validate, {"num_gpus": 1}, [CPU], False),
        (validate, {"num_cpus": 1, "num_gpus": 1}, [{"GPU": 1.0}], False),
    ],
)
def test_which_validations_fit_in_a_trials_process(fn, options, place, fits):
    config = ValidationConfig(fn=fn, ray_remote_kwargs=options)
    assert executor_of(config).fits_in(place) is fits
    nowhere = executor_of(ValidationConfig(fn=fn, ray_remote_kwargs=options, evaluators=1))
    assert not nowhere.fits_in(place)


def test_one_worker_s_validation_does_not_fit_in_a_trial_without_workers():
    """It would start workers in it, for which it has no resources."""
    executor = executor_of(ValidationConfig(fn=by_workers(1)))
    assert executor.fits_in([CPU])
    executor.forbid_workers_in_trials()
    assert not executor.fits_in([CPU])
    function = executor_of(ValidationConfig(fn=validate))
    function.forbid_workers_in_trials()
    assert function.fits_in([CPU])


@pytest.fixture
def started(monkeypatch) -> Any:
    """Where attempts are started, each with the stream of what comes from it; and who is killed."""
    found: list[tuple[str, Any]] = []

    class Task:
        def options(self, **options: Any) -> Any:
            return SimpleNamespace(remote=lambda *told: run("task"))

    def run(place: str) -> Any:
        found.append((place, Stream(*results)))
        return found[-1][1]

    def run_in(actor: str, how: Any, *told: Any) -> Any:
        if isinstance(how, partial):
            assert how.func is module.validate_in_workers
            actor = f"rank 0 of {actor}" if how.keywords["alone"] else f"all of {actor}"
        return run(actor)

    results: list[Any] = []
    found_results = SimpleNamespace(started=found, results=results)
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda streams, **options: (streams, []))
    monkeypatch.setattr(ray, "remote", lambda **options: lambda fn: Task())
    monkeypatch.setattr(module, "generator_in", lambda actor, name: partial(run_in, actor))
    monkeypatch.setattr(module, "actor_of", lambda trial: trial.trial_id)
    monkeypatch.setattr(module, "has_workers", lambda trial: trial.has_workers)
    monkeypatch.setattr(ray, "kill", lambda actor: found.append(("killed", actor)))
    return found_results


HOST: Any = SimpleNamespace(trial_id="b", has_workers=False)
WITH_WORKERS: Any = SimpleNamespace(trial_id="b", has_workers=True)


def attempt(number: int = 1, iteration: int = 1) -> Attempt:
    return Attempt(Request("a", iteration), number)


def ran(started: Any, executor: RayExecutor, *results: Any, host: Any = HOST) -> list[Any]:
    """Start an attempt in the process of a trial; return its events."""
    started.results[:] = [Began(ID), *results]
    executor.start(attempt(), host=host)
    began, *others = executor.poll()
    assert began == Began(ID)
    return others


def places(started: Any) -> list[str]:
    return [place for place, _ in started.started]


def test_what_a_trial_hosts_runs_in_its_process(started):
    executor, returned = RayExecutor(validate, {}), Returned(ID, {"accuracy": 0.5})
    assert ran(started, executor, returned) == [returned]
    executor.start(attempt(iteration=2))
    executor.start(attempt(number=2), host=HOST)
    assert places(started) == ["b", "task", "b"]


def test_what_is_tried_again_needs_no_resources_that_its_trial_holds(started):
    """A task in the place of a trial would wait for the trial's GPU, and the trial for the task."""
    executor = RayExecutor(validate, {"num_gpus": 1})
    [failed] = ran(started, executor, Failed(ID, "raised ValueError: once"))
    assert isinstance(failed, Failed) and executor.fits_in([GPU])
    executor.start(attempt(number=2), host=HOST)
    assert places(started) == ["b", "b"]


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "MemoryError"])
def test_what_lacks_memory_in_a_trials_process_is_tried_again_elsewhere(started, caplog, kind):
    executor = RayExecutor(validate, {"num_gpus": 1})
    ran(started, executor, Failed(ID, f"raised {kind}: 2 GiB", kind=kind))
    assert not executor.in_trials and not executor.fits_in([GPU])
    assert "in the process of b. From now on, validations run in separate" in caplog.text


def test_a_validation_that_ends_a_trials_process_is_the_last_in_any(started, caplog):
    executor = RayExecutor(validate, {})
    lost, failed = ran(started, executor, RayActorError())
    assert lost == HostEnded("b") and failed.reason == "its process died"
    assert not executor.fits_in([CPU])
    executor.start(attempt(iteration=2))
    assert places(started) == ["b", "task"]
    [told] = caplog.messages
    assert (
        "validation of a@1 ended the process of trial b (its process died), which continues" in told
    )


def test_a_validation_that_damages_a_trials_process_ends_it(started, caplog):
    executor, failed = RayExecutor(validate, {}), Failed(ID, "damaged it", host_ended=True)
    assert ran(started, executor, failed) == [HostEnded("b"), failed]
    assert started.started[-1] == ("killed", "b") and not executor.in_trials
    [told] = caplog.messages
    assert "validation of a@1 ended the process of trial b (damaged it), which continues" in told


@pytest.mark.parametrize("too_long", [True, False])
def test_what_has_to_end_at_once_ends_the_process_of_its_trial(started, too_long):
    started.results += [Began(ID)]
    executor, one = RayExecutor(validate, {}), attempt()
    executor.start(one, host=HOST)
    assert executor.cancel(one, too_long=too_long) == "b"
    assert started.started[-1] == ("killed", "b")
    assert not list(executor.poll()) and not executor.awaited()
    assert executor.in_trials is not too_long, "what is not needed keeps no other out of trials"


@pytest.mark.parametrize(
    ("fn", "where"), [(validate, "rank 0 of b"), (by_workers(2), "all of b")], ids=["fn", "loop"]
)
def test_trials_with_workers_validate_in_these(started, caplog, fn, where):
    executor = RayExecutor(fn, {})
    ran(started, executor, Returned(ID, {"accuracy": 0.5}), host=WITH_WORKERS)
    assert places(started) == [where] and executor.in_trials
    died = Failed(ID, "a worker of its trial died", host_ended=True)
    assert ran(started, executor, died, host=WITH_WORKERS) == [died], "it keeps its own process"
    assert not executor.in_trials
    [told] = caplog.messages
    assert "ended the workers of trial b (a worker of its trial died), which continues" in told


def test_what_fails_on_rank_0_before_any_has_returned_there_is_tried_elsewhere(started, caplog):
    """Something in that process may take it for one of several; later it is the function's."""
    wrong = Failed(ID, "raised RuntimeError: no process group")
    executor = RayExecutor(validate, {})
    for event in (Returned(ID, {"accuracy": 0.5}), wrong):
        ran(started, executor, event, host=WITH_WORKERS)
    assert executor.in_trials
    executor = RayExecutor(validate, {})
    ran(started, executor, wrong, host=WITH_WORKERS)
    assert not executor.in_trials
    assert "raised RuntimeError: no process group, in a worker of trial b" in caplog.text


# GPU memory that nothing uses -------------------------------------------------------------------


class Cuda:
    """torch.cuda, as far as it is used here."""

    def __init__(self, used: bool):
        self.used, self.emptied = used, 0

    def is_initialized(self) -> bool:
        return self.used

    def empty_cache(self) -> None:
        assert self.used, "it would begin to use CUDA"
        self.emptied += 1

    def reset_peak_memory_stats(self) -> None:
        assert self.used


@pytest.fixture
def cuda(monkeypatch):
    def use(used: bool = True) -> Cuda:
        double = Cuda(used)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=double))
        return double

    return use


def test_a_process_that_has_not_used_a_gpu_does_not_begin_to(cuda, monkeypatch):
    double = cuda(used=False)
    release_gpu_memory()
    assert double.emptied == 0
    monkeypatch.delitem(sys.modules, "torch")
    release_gpu_memory()
    assert "torch" not in sys.modules


def test_what_nothing_refers_to_any_more_is_collected_before(cuda):
    double, freed = cuda(), []

    class Network:
        def __del__(self):
            freed.append(double.emptied)

    network = Network()
    network.optimizer = network  # a circle
    del network
    release_gpu_memory()
    assert freed == [0]


class Actor:
    """The handle of an evaluator's process; what is called on it is done at once."""

    def __init__(self):
        inside = Evaluator()
        self.release = SimpleNamespace(remote=inside.release)


@pytest.fixture
def evaluator(monkeypatch):
    """An executor whose only evaluator has just ended an attempt, and its clock."""
    clock = FakeClock()
    monkeypatch.setattr(ray_executor, "time", clock)
    executor = RayExecutor(lambda checkpoint: {}, {}, evaluators=1)
    one = _Actor(Actor(), None, up=True, calls=1)
    executor._actors.append(one)
    has_ended(executor, one)
    return executor, one, clock


def has_ended(executor, actor):
    actor.flight = _Flight(Attempt(Request("a", 1), 1), actor=actor)
    executor._end_flight(actor.flight)


def test_an_evaluator_gives_it_back_once_it_has_had_nothing_to_do_for_a_second(cuda, evaluator):
    double, (executor, one, clock) = cuda(), evaluator
    for second in (0.5, 0.4):
        clock.sleep(second)
        list(executor.poll())
    assert double.emptied == 0, "the next attempt may be about to start"
    for second in (0.2, 1.0, 5.0):
        clock.sleep(second)
        list(executor.poll())
    assert double.emptied == 1, "once, and it lives on"
    has_ended(executor, one)
    clock.sleep(1.1)
    list(executor.poll())
    assert double.emptied == 2
