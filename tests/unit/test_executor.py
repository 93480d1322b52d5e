"""What Ray may do to a validation, and what becomes of it; Ray itself is not started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    OwnerDiedError,
    WorkerCrashedError,
)

from tunekit._ray import cluster, raised
from tunekit.core.failures import kind_of
from tunekit.core.validation import Attempt, Request
from tunekit.core.values import Raised
from tunekit.validating import evaluators as module
from tunekit.validating.evaluators import EvaluatorExecutor
from tunekit.validating.executor import (
    Began,
    Estimated,
    Failed,
    RayExecutor,
    Returned,
    Yielded,
    outcome_of,
    produced,
)


class Stream:
    """A task's results: values, or errors that Ray raises when they are fetched."""

    def __init__(self, *results):
        self._results = iter(results)

    def __next__(self):
        return next(self._results)


def events_of(monkeypatch, *results):
    def get(result):
        if isinstance(result, Exception):
            raise result
        return result

    stream, executor = Stream(*results), RayExecutor(lambda checkpoint: {}, {"num_cpus": 1})
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda streams, **options: (streams, []))
    attempt = Attempt(Request("a", 1), 1)
    executor._streams[stream], executor._by_id[attempt.id] = attempt, stream
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
    results = [None, error] if begun else [error]
    *before, failed = events_of(monkeypatch, *results)
    assert before == ([Began("a:0:1:1#1")] if begun else [])
    assert isinstance(failed, Failed)
    assert (failed.attempt_id, failed.reason) == ("a:0:1:1#1", reason)


def test_a_result_that_arrives(monkeypatch):
    events = events_of(monkeypatch, None, {"accuracy": 0.5})
    assert events == [Began("a:0:1:1#1"), Returned("a:0:1:1#1", {"accuracy": 0.5})]


def test_a_task_that_ends_without_a_result(monkeypatch):
    *_, failed = events_of(monkeypatch, None)
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
        attempt, stream = Attempt(Request("a", n), 1), object()
        executor._streams[stream], executor._by_id[attempt.id] = attempt, stream
    executor._begun = set(list(executor._by_id)[:begun])
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


def test_what_waits_elsewhere_moves_to_a_reserve_that_nobody_uses(monkeypatch):
    """A reserve moves when its node is lost, and takes what another validation waits for."""
    executor = handed_over(4, begun=1)
    _begun, one, two, three = executor._by_id
    cancelled, started = [], []
    monkeypatch.setattr(ray, "cancel", lambda stream, force: cancelled.append(stream))
    monkeypatch.setattr(executor, "start", lambda attempt: started.append(attempt.id))
    executor._lent = {one}

    executor.use_reserve()
    assert not started, "there is no reserve"

    executor._slots, first = 1, executor._by_id[two]
    executor.use_reserve()
    assert (cancelled, started) == ([first], [two])

    executor._in_group = {three}
    executor.use_reserve()
    assert started == [two], "the reserve is full"


class Call:
    """Stands in for an actor's method, which yields this."""

    yields: tuple[Any, ...] = (None,)

    def options(self, **options):
        return self

    def remote(self, *args):
        return iter(self.yields)


class Actor:
    """Stands in for an actor's handle."""

    evaluate = Call()


def evaluators(monkeypatch, *known):
    """An executor with evaluators: (how far, whether it has work, state of its placement group)."""
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    monkeypatch.setattr(module, "placement_group_table", lambda group: {"state": group})
    executor = EvaluatorExecutor(lambda checkpoint: {}, 9, {"num_cpus": 1})
    for stage, works, group in known:
        evaluator = module._Evaluator(Actor(), group, None, module._Phase(stage))
        evaluator.attempt = Attempt(Request("a", len(executor._evaluators)), 1) if works else None
        executor._evaluators.append(evaluator)
    return executor


def test_evaluators_whose_processes_start_do_not_wait_for_resources(monkeypatch, ray_says):
    ray_says(({"CPU": 1.0}, 1))
    assert evaluators(monkeypatch, ("starting", True, None), ("built", True, None)).queued() == 1
    assert evaluators(monkeypatch, ("building", True, None)).queued() == 0
    assert evaluators(monkeypatch, ("starting", True, "CREATED")).queued() == 0
    assert evaluators(monkeypatch, ("starting", True, "PENDING")).queued() == 1
    ray_says(({"CPU": 1.0}, 0))  # after one was killed, another starts
    assert evaluators(monkeypatch, ("starting", True, None)).queued() == 0


def test_evaluators_in_the_place_of_trials_do_not_count_as_those_that_are_kept(monkeypatch):
    executor = evaluators(monkeypatch, ("built", False, "kept"), ("built", False, None))
    executor._kept = 1
    kept, lent = executor._evaluators
    lent.place = "10.0.0.1"
    executor.spare()
    assert executor._evaluators == [kept, lent], "one is kept, the other takes no resources"
    executor._end(kept)  # it has died: its placement group is for the one that replaces it
    assert executor._spare == ["kept"]


def returns(monkeypatch, executor, value):
    """What comes of it when an evaluator calls its function, and that returns a value."""
    monkeypatch.setattr(executor, "_configs", SimpleNamespace(told=lambda attempt: None))
    monkeypatch.setattr(ray, "wait", lambda refs, **options: (refs, []))
    monkeypatch.setattr(ray, "get", lambda ref: value)
    (evaluator,) = executor._evaluators
    executor._call(evaluator)
    return executor.poll()


@pytest.mark.parametrize(("most", "left"), [(0, 1), (1, 0), (2, 1)])
def test_an_evaluator_is_replaced_after_so_many_calls(monkeypatch, most, left):
    executor = evaluators(monkeypatch, ("built", True, None))
    executor._max_calls = most
    assert [type(event) for event in returns(monkeypatch, executor, {})] == [Returned]
    assert len(executor._evaluators) == left


def yielding(monkeypatch, *yields):
    """An executor whose only evaluator has been called, and yields this."""
    executor = evaluators(monkeypatch, ("built", True, None))
    monkeypatch.setattr(executor, "_configs", SimpleNamespace(told=lambda attempt: None))
    monkeypatch.setattr(Call, "yields", yields)
    monkeypatch.setattr(ray, "get", lambda ref: ref)
    monkeypatch.setattr(ray, "cancel", lambda stream: None)
    ready = []
    monkeypatch.setattr(ray, "wait", lambda refs, **options: (refs if ready else [], []))
    (evaluator,) = executor._evaluators
    executor._call(evaluator)

    def poll() -> list[Any]:
        ready.append(True)
        monkeypatch.setattr(
            ray, "wait", lambda refs, **options: ([ready.pop()] and refs if ready else [], [])
        )
        return executor.poll()

    return executor, evaluator, poll


def test_what_an_evaluator_yields_comes_out_one_by_one(monkeypatch):
    executor, evaluator, poll = yielding(monkeypatch, Yielded({"accuracy": 0.5}), {"accuracy": 0.6})
    assert [(type(one), one.value) for one in poll()] == [(Estimated, {"accuracy": 0.5})]
    assert evaluator.attempt is not None
    assert [(type(one), one.value) for one in poll()] == [(Returned, {"accuracy": 0.6})]
    assert evaluator.attempt is None and executor._evaluators == [evaluator]


@pytest.mark.parametrize("rest", [(), (Yielded({}),), ({"accuracy": 0.6},)])
def test_an_evaluator_that_has_yielded_enough_works_until_its_next_yield_and_lives_on(
    monkeypatch, rest
):
    executor, evaluator, poll = yielding(monkeypatch, Yielded({"accuracy": 0.5}), *rest)
    assert len(poll()) == 1
    executor.stop(evaluator.attempt)
    assert evaluator.attempt is not None, "it takes nothing else before"
    assert [poll(), poll()] == [[], []], "nothing more is said of it"
    assert evaluator.attempt is None and executor._evaluators == [evaluator]


def test_an_evaluator_whose_call_is_cancelled_from_outside_fails_its_attempt(monkeypatch):
    executor, _, poll = yielding(monkeypatch)
    assert [(type(one), one.reason) for one in poll()] == [(Failed, "ended without a result")]
    assert executor._evaluators == []


def test_an_evaluator_whose_validation_has_failed_is_replaced(monkeypatch):
    executor = evaluators(monkeypatch, ("built", True, None))
    raised = Raised("RuntimeError", "CUDA error: device-side assert triggered", "Traceback")
    assert [type(event) for event in returns(monkeypatch, executor, raised)] == [Failed]
    assert executor._evaluators == []


def test_evaluators_without_work_end_when_their_resources_are_needed(monkeypatch):
    executor = evaluators(
        monkeypatch, ("built", False, None), ("built", True, None), ("building", False, None)
    )
    executor.spare()
    assert [evaluator.attempt is not None for evaluator in executor._evaluators] == [True]


def raises():
    raise RuntimeError("no data here")


def yields_and_raises():
    yield {"accuracy": 0.5}
    raises()


@pytest.mark.parametrize(("fn", "before"), [(raises, 0), (yields_and_raises, 1)])
def test_what_a_function_raises_comes_last_and_as_it_is(fn, before):
    *yielded, last = produced(fn)
    assert yielded == [Yielded({"accuracy": 0.5})] * before
    assert isinstance(last, Raised) and last.reason == "raised RuntimeError: no data here"
    with pytest.raises(RuntimeError, match="no data here"):
        list(produced(fn, raises=True))


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
