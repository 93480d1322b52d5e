"""What Ray may do to a validation, and what becomes of it; Ray itself is not started."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    OwnerDiedError,
    TaskCancelledError,
    WorkerCrashedError,
)

from tunekit._ray import cluster, raised
from tunekit.core.failures import kind_of
from tunekit.core.validation import Attempt, Request
from tunekit.validating import ray_executor as module
from tunekit.validating.executor import Began, Failed, Returned
from tunekit.validating.process import outcome_of, result_of
from tunekit.validating.ray_executor import RayExecutor


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
    return executor.poll()


LOST = [
    (ObjectLostError("ab" * 14, None, ""), "was lost: ObjectLostError"),
    (OwnerDiedError("ab" * 14, None, ""), "was lost: OwnerDiedError"),
    (NodeDiedError("gone"), "was lost: NodeDiedError"),
    (OutOfMemoryError("used up"), "its process was killed for running out of memory"),
    (WorkerCrashedError(), "its process died"),
]


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


def test_a_result_that_arrives(monkeypatch):
    known = [Began(ID), Returned(ID, {"accuracy": 0.5})]
    assert events_of(monkeypatch, *known) == known


def test_a_task_that_ends_without_a_result(monkeypatch):
    *_, failed = events_of(monkeypatch, Began(ID))
    assert isinstance(failed, Failed) and failed.reason == "ended without a result"


# What waits for resources -----------------------------------------------------------------------


def demands(*waiting):
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
                    for shape, ready in waiting
                ]
            )
        )
    )


@pytest.fixture
def ray_says(monkeypatch):
    """Set what waits for resources, and what is free; an error is raised."""

    def says(*waiting, free=None):
        def usage(timeout):
            if isinstance(waiting[0], Exception):
                raise waiting[0]
            return demands(*waiting)

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
    assert handed_over(2).queued() == 0
    ray_says(({"CPU": 1.0}, 1), ({"CPU": 1.0, "GPU": 1.0}, 7))
    assert handed_over(2).queued() == 1
    ray_says(({"CPU": 1.0}, 9))  # others' among them
    assert handed_over(3, begun=1).queued() == 2
    assert handed_over(3, begun=3).queued() == 0


def test_where_ray_does_not_say_what_waits_it_goes_by_what_is_free(ray_says):
    ray_says(TimeoutError(), free={"CPU": 0.5})
    assert handed_over(2).queued() == 2
    ray_says(TimeoutError(), free={"CPU": 6.0})
    assert handed_over(2).queued() == 0


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
    assert evaluators(monkeypatch, Known(up=False), Known()).queued() == 1
    assert evaluators(monkeypatch, Known()).queued() == 0
    assert evaluators(monkeypatch, Known(up=False, group="CREATED")).queued() == 0
    assert evaluators(monkeypatch, Known(up=False, group="PENDING")).queued() == 1
    ray_says(({"CPU": 1.0}, 0))  # after one was killed, another starts
    assert evaluators(monkeypatch, Known(up=False)).queued() == 0


def step_by_step(monkeypatch, executor):
    """Let each poll take one thing from each stream."""

    def poll() -> list[Any]:
        left = [True]

        def wait(streams: Any, **options: Any) -> Any:
            return (streams, []) if left and left.pop() else ([], [])

        monkeypatch.setattr(ray, "wait", wait)
        return executor.poll()

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


def raises():
    raise RuntimeError("no data here")


def test_what_a_function_raises_is_why_it_has_failed():
    found = result_of(ID, raises)
    assert isinstance(found, Failed) and found.reason == "raised RuntimeError: no data here"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_a_function_raises_in_a_worker_is_its_own(monkeypatch, error):
    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        outcome_of(function)  # in a driver somebody presses Ctrl-C
    monkeypatch.setattr(raised, "in_worker", lambda: True)
    cancelled = SimpleNamespace(is_canceled=lambda: False)
    monkeypatch.setattr(raised.ray, "get_runtime_context", lambda: cancelled)
    found = outcome_of(function)
    assert found.reason.startswith(f"raised {type(error).__name__}")
    assert kind_of(found.reason) == kind_of(outcome_of(function).reason), "they are counted as one"


def test_an_interrupt_of_the_drivers_and_an_exit_of_rays_end_the_task(monkeypatch):
    exit_of_rays = SystemExit(1)
    exit_of_rays.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]
    monkeypatch.setattr(raised, "in_worker", lambda: True)
    cancelled = SimpleNamespace(is_canceled=lambda: True)
    monkeypatch.setattr(raised.ray, "get_runtime_context", lambda: cancelled)
    for error in (KeyboardInterrupt(), exit_of_rays):
        with pytest.raises(type(error)):
            outcome_of(lambda error=error: (_ for _ in ()).throw(error))
