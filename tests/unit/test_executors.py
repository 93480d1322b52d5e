"""A failed or lost validation is an event with a reason; none disturbs the next, nor its trial.

Ray is not started: doubles of its functions record what an executor starts and kills.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

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
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from tests.support.fakes import FakeClock
from tunekit import ValidationConfig
from tunekit._ray import cluster, worker_errors
from tunekit._ray.process_state import release_gpu_memory
from tunekit.core.executor import Began, Failed, HostEnded, Returned
from tunekit.core.validation import Attempt, Request
from tunekit.distributed import TrainerValidation
from tunekit.validating import ray_executor as module
from tunekit.validating.process import Evaluator, outcome_of
from tunekit.validating.ray_executor import RayExecutor, executor_of

ID = "a:0:1:1#1"
CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}
HOST: Any = SimpleNamespace(trial_id="host_7", has_workers=False)
WITH_WORKERS: Any = SimpleNamespace(trial_id="host_7", has_workers=True)


def validate(checkpoint):
    return {"accuracy": 0.5}


def by_workers(workers: int, **options: Any) -> TrainerValidation:
    return TrainerValidation(lambda config: {}, train.ScalingConfig(num_workers=workers), **options)


def attempt(number: int = 1, iteration: int = 1) -> Attempt:
    return Attempt(Request("a", iteration), number)


RETURNED = Returned(ID, {"accuracy": 0.5})
WRONG = Failed(ID, "raised ValueError: once")
HOST_ENDED = Failed(ID, "damaged it", host_ended=True)


def out_of(memory: str) -> Failed:
    return Failed(ID, f"raised {memory}: 2 GiB", kind=memory)


class Stream:
    """What comes from an attempt: events, or errors that Ray raises; with ``...``, it hangs."""

    def __init__(self, results: list[Any]):
        self.results = list(results)

    def __next__(self) -> Any:
        if not self.results:
            raise StopIteration
        return self.results.pop(0)


class FakeRay:
    """Ray as an executor uses it; records what is started and killed."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.killed: list[Any] = []
        self.clock = FakeClock()
        #: What comes from each attempt that is started next.
        self.results: tuple[Any, ...] = ()
        #: Whether the placement groups of evaluators have their resources.
        self.placed = True

    def start(
        self, executor: RayExecutor, *results: Any, host: Any = None, one: Attempt | None = None
    ) -> list[Any]:
        """Start an attempt from which these results come; return the events."""
        self.results = results
        executor.start(one or attempt(), host=host)
        return list(executor.poll())

    def run(self, place: str) -> Stream:
        self.started.append(place)
        return Stream(list(self.results))

    def run_in(self, actor: str, how: Any, *given: Any) -> Stream:
        if isinstance(how, partial):
            assert how.func is module.validate_in_workers
            actor = f"rank 0 of {actor}" if how.keywords["alone"] else f"all of {actor}"
        return self.run(actor)

    def remote(self, **options: Any) -> Any:
        def evaluator(first_bundle: Any) -> Any:
            release = SimpleNamespace(remote=Evaluator().release)
            return SimpleNamespace(
                evaluate=remote(lambda call: self.run("evaluator")), release=release
            )

        def remote(call: Any) -> Any:
            made = SimpleNamespace(remote=call)
            made.options = lambda **options: made
            return made

        return lambda kind: remote(
            evaluator if kind is Evaluator else lambda call: self.run("task")
        )

    def put(self, value: Any) -> Any:
        return value

    def get(self, result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    def wait(self, streams: list[Stream], **options: Any) -> Any:
        return [one for one in streams if one.results[:1] != [...]], []

    def cancel(self, stream: Stream, force: bool) -> None: ...

    def kill(self, process: Any) -> None:
        self.killed.append(process)


@pytest.fixture
def rays(monkeypatch) -> FakeRay:
    rays = FakeRay()
    for name, double in {
        "ray": rays,
        "time": rays.clock,
        "generator_in": lambda actor, name: partial(rays.run_in, actor),
        "actor_of": lambda trial: trial.trial_id,
        "has_workers": lambda trial: trial.has_workers,
        "has_died": lambda actor: actor in rays.killed,
        "placement_group": lambda bundles, **options: "a group",
        "PlacementGroupSchedulingStrategy": lambda group, **options: group,
        "placement_group_table": lambda group: {"state": "CREATED" if rays.placed else "PENDING"},
    }.items():
        monkeypatch.setattr(module, name, double)
    return rays


# The events of an attempt -------------------------------------------------------------------------


def test_attempt_cancelled_during_a_poll_has_no_further_event(rays):
    executor, first, second = RayExecutor(validate, {}), attempt(), attempt(iteration=2)
    rays.results = (RETURNED,)
    executor.start(first)
    executor.start(second)
    events = executor.poll()
    next(events)
    executor.cancel(second)
    assert not list(events)


def test_reason_and_traceback_of_a_very_long_error_are_shortened(rays):
    text = "a line\n" * 10**5
    for error in (RayError(text), RayTaskError("validate", text, ValueError(text))):
        [failed] = rays.start(RayExecutor(validate, {}), error)
        assert len(failed.reason) <= 1000 and len(failed.error) < 70_000


@pytest.mark.parametrize("begun", [(Began(ID),), ()], ids=["begun", "not begun"])
def test_task_that_ray_loses_is_a_failed_attempt_whose_reason_differs_by_cause(rays, begun):
    lost = [ObjectLostError("ab" * 14, None, ""), OwnerDiedError("ab" * 14, None, "")]
    lost += [NodeDiedError("gone")]
    others = [OutOfMemoryError("used up"), WorkerCrashedError(), TaskCancelledError(), ...]
    reasons = []
    for error in (*lost, *others):
        results = (*begun, *([error] if error is not ... else []))
        *before, failed = rays.start(RayExecutor(validate, {}), *results)
        assert before == [*begun] and isinstance(failed, Failed) and failed.attempt_id == ID
        reasons.append(failed.reason)
    assert len(set(reasons)) == len(reasons), "the last one ended without a result"
    assert all(type(one).__name__ in reason for one, reason in zip(lost, reasons, strict=False))


def terminated() -> SystemExit:
    """What Ray raises in a worker that gets a SIGTERM."""
    error: Any = SystemExit(1)
    error.ray_terminate_msg = "The process receives a SIGTERM."
    return error


@pytest.mark.parametrize(
    ("error", "cancelled", "fails"),
    [
        pytest.param(KeyboardInterrupt(), False, True, id="interrupt of the function's own"),
        pytest.param(SystemExit(3), False, True, id="sys.exit"),
        pytest.param(GeneratorExit(), False, True, id="GeneratorExit"),
        pytest.param(KeyboardInterrupt(), True, False, id="cancelled by the driver"),
        pytest.param(terminated(), False, False, id="ended by Ray"),
    ],
)
def test_exit_raised_in_a_worker_fails_the_attempt_unless_the_driver_or_ray_caused_it(
    monkeypatch, error, cancelled, fails
):
    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        outcome_of(function)  # in a driver, it is a Ctrl-C
    context = SimpleNamespace(is_canceled=lambda: cancelled)
    monkeypatch.setattr(worker_errors, "in_worker", lambda: True)
    monkeypatch.setattr(worker_errors.ray, "get_runtime_context", lambda: context)
    with nullcontext() if fails else pytest.raises(type(error)):
        assert type(error).__name__ in outcome_of(function).reason


# What waits for resources -------------------------------------------------------------------------


def test_waiting_tasks_are_counted_by_rays_control_service_or_estimated_without_its_answer(
    monkeypatch,
):
    demand = SimpleNamespace(
        shape=CPU, num_ready_requests_queued=3, num_infeasible_requests_queued=4
    )
    load = SimpleNamespace(resource_demands=[demand])
    answer = SimpleNamespace(resource_usage_data=SimpleNamespace(resource_load_by_shape=load))
    client = mock.Mock()
    client.get_all_resource_usage.side_effect = [answer, answer, TimeoutError, TimeoutError]
    monkeypatch.setattr(cluster.global_worker, "gcs_client", client, raising=False)
    assert (cluster.unplaced_like(CPU), cluster.unplaced_like(GPU)) == (7, 0)
    for free, many in ((0.5, True), (6.0, False)):
        monkeypatch.setattr(ray, "available_resources", lambda free=free: {"CPU": free})
        assert (cluster.unplaced_like(CPU) > 100) is many


TASKS: dict[str, Any] = {"fn": validate}
EVALUATORS = {"fn": validate, "evaluators": 9}
GROUPS = {"fn": by_workers(2), "evaluators": 9, "ray_remote_kwargs": {"num_cpus": 1}}
STARTS, RUNS, ENDED = [...], [Began(ID), ...], [Began(ID), RETURNED]


@pytest.mark.parametrize(
    ("settings", "attempts", "placed", "waiting", "expected"),
    [
        pytest.param(TASKS, [STARTS, STARTS], True, 0, 0, id="processes start"),
        pytest.param(TASKS, [STARTS, STARTS], True, 1, 1, id="one waits for a CPU"),
        pytest.param(TASKS, [RUNS, STARTS, STARTS], True, 9, 2, id="others wait for a CPU, too"),
        pytest.param(TASKS, [RUNS] * 3, True, 9, 0, id="all have begun"),
        pytest.param(EVALUATORS, [RUNS, STARTS], True, 1, 1, id="one evaluator runs"),
        pytest.param(EVALUATORS, [ENDED, STARTS], True, 1, 0, id="its evaluator is up"),
        pytest.param(GROUPS, [STARTS], True, 1, 0, id="a placement group is there"),
        pytest.param(GROUPS, [STARTS], False, 1, 1, id="a placement group is not there"),
    ],
)
def test_attempts_without_resources_are_those_that_ray_has_not_placed(
    rays, monkeypatch, settings, attempts, placed, waiting, expected
):
    rays.placed = placed
    monkeypatch.setattr(module, "unplaced_like", lambda need: waiting if need == CPU else 0)
    executor = executor_of(ValidationConfig(**settings))
    for n, results in enumerate(attempts):
        rays.start(executor, *results, one=attempt(iteration=n))
    assert executor.unplaced() == expected


# Evaluators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_calls", "last", "ends"),
    [
        (0, [RETURNED], False),
        (1, [RETURNED], True),
        (2, [RETURNED], False),
        (0, [], True),
        (0, [TaskCancelledError()], True),
        (0, [WRONG], True),
    ],
)
def test_evaluator_ends_after_max_calls_and_after_a_failure(rays, max_calls, last, ends):
    executor = RayExecutor(validate, {"max_calls": max_calls}, evaluators=1)
    assert len(rays.start(executor, Began(ID), *last)) == 2
    assert len(rays.killed) == ends


def test_cancelled_attempt_ends_its_evaluator(rays):
    executor = RayExecutor(validate, {}, evaluators=1)
    rays.start(executor, Began(ID), ...)
    assert executor.cancel(attempt()) is None
    assert len(rays.killed) == 1 and not executor.awaited()


@pytest.mark.parametrize(("keep", "left"), [(0, 1), (2, 2), (3, 3)])
def test_only_idle_evaluators_end_when_their_resources_are_needed(rays, keep, left):
    executor = RayExecutor(validate, {}, evaluators=3)
    for n in range(3):
        rays.start(executor, Began(ID), ..., RETURNED, one=attempt(iteration=n))
    busy, *others = executor.awaited()
    for stream in others:
        stream.results.pop(0)
    assert len(list(executor.poll())) == 2
    executor.spare(keep)
    assert len(rays.killed) == 3 - left
    assert list(executor.awaited()) == [busy]


# Where they run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "in_trials"),
    [
        ({"ray_remote_kwargs": {"num_cpus": 0.5, "num_gpus": 1}}, True),
        ({"evaluators": 2}, False),
        ({"where": "elsewhere"}, False),
        # What these options ask of a process, that of a trial does not have.
        ({"ray_remote_kwargs": {"runtime_env": {}}}, False),
        ({"ray_remote_kwargs": {"max_calls": 1}}, False),
        ({"fn": by_workers(2)}, True),
        # Those of a trial have other data, or another backend.
        ({"fn": by_workers(2, datasets={"rows": [1]})}, False),
    ],
)
def test_validation_runs_in_trials_unless_its_settings_concern_its_process(settings, in_trials):
    executor = executor_of(ValidationConfig(**{"fn": validate, **settings}))
    assert executor.in_trials == executor.fits_in([GPU, GPU]) == in_trials


@pytest.mark.parametrize(
    ("fn", "options", "place", "fits"),
    [
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
def test_validation_fits_in_a_trial_whose_processes_have_its_resources(fn, options, place, fits):
    executor = executor_of(ValidationConfig(fn=fn, ray_remote_kwargs=options))
    assert executor.fits_in(place) is fits


def test_validation_with_workers_does_not_fit_in_a_trial_without_workers():
    """It would start workers in it, for which it has no resources."""
    for fn, fits in ((by_workers(1), False), (validate, True)):
        executor = executor_of(ValidationConfig(fn=fn))
        assert executor.fits_in([CPU])
        executor.forbid_workers_in_trials()
        assert executor.fits_in([CPU]) is fits


def test_attempt_with_a_host_runs_in_its_process_and_others_in_tasks(rays):
    executor = RayExecutor(validate, {})
    assert rays.start(executor, Began(ID), RETURNED, host=HOST) == [Began(ID), RETURNED]
    executor.start(attempt(iteration=2))
    executor.start(attempt(number=2), host=HOST)
    assert rays.started == ["host_7", "task", "host_7"]


@pytest.mark.parametrize(
    ("host", "endings", "ends", "leaves"),
    [
        pytest.param(HOST, [WRONG], "", False, id="failure"),
        pytest.param(HOST, [out_of("MemoryError")], "", True, id="out of memory"),
        pytest.param(HOST, [out_of("OutOfMemoryError")], "", True, id="out of GPU memory"),
        pytest.param(HOST, [RayActorError()], "died", True, id="process died"),
        pytest.param(HOST, [HOST_ENDED], "killed", True, id="process damaged"),
        pytest.param(WITH_WORKERS, [HOST_ENDED], "", True, id="worker of the trial died"),
        pytest.param(WITH_WORKERS, [WRONG], "", True, id="first one on rank 0 failed"),
        pytest.param(WITH_WORKERS, [RETURNED, WRONG], "", False, id="later one on rank 0 failed"),
    ],
)
def test_validations_leave_trials_after_an_ending_that_others_would_repeat_there(
    rays, caplog, host, endings, ends, leaves
):
    """On rank 0, a library may take the process for one of several; later, it is the function."""
    executor = RayExecutor(validate, {})
    for ending in endings:
        *before, last = rays.start(executor, Began(ID), ending, host=host)
    assert before == [Began(ID), *[HostEnded("host_7")] * bool(ends)]
    assert rays.killed == ["host_7"] * (ends == "killed")
    assert executor.in_trials == executor.fits_in([CPU]) == (not leaves)
    facts = ("a@1", "host_7", last.reason)
    assert [all(fact in one for fact in facts) for one in caplog.messages] == [True] * leaves


@pytest.mark.parametrize("too_long", [True, False])
def test_cancelled_attempt_ends_its_host_and_bars_others_only_if_too_long(rays, too_long):
    executor, one = RayExecutor(validate, {}), attempt()
    rays.start(executor, Began(ID), ..., host=HOST, one=one)
    assert executor.cancel(one, too_long=too_long) == "host_7"
    assert rays.killed[-1:] == ["host_7"]
    assert not list(executor.poll()) and not executor.awaited()
    assert executor.in_trials is not too_long


@pytest.mark.parametrize(
    ("fn", "where"),
    [(validate, "rank 0 of host_7"), (by_workers(2), "all of host_7")],
    ids=["function", "loop"],
)
def test_function_is_validated_on_rank_0_of_a_trial_and_a_loop_on_all(rays, fn, where):
    executor = RayExecutor(fn, {})
    rays.start(executor, Began(ID), RETURNED, host=WITH_WORKERS)
    assert rays.started == [where] and executor.in_trials


# GPU memory that nothing uses ---------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch) -> mock.Mock:
    """A double of torch.cuda, which the process has used."""
    cuda = mock.Mock()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


def test_release_of_gpu_memory_neither_imports_torch_nor_starts_cuda(cuda, monkeypatch):
    cuda.is_initialized.return_value = False
    release_gpu_memory()
    assert cuda.mock_calls == [mock.call.is_initialized()]
    monkeypatch.delitem(sys.modules, "torch")
    release_gpu_memory()
    assert "torch" not in sys.modules


def test_evaluator_releases_gpu_memory_once_it_has_been_idle_for_a_second(cuda, rays):
    executor = RayExecutor(validate, {}, evaluators=1)
    for before in (0, 1):
        rays.start(executor, Began(ID), RETURNED)
        for second, emptied in ((0.5, 0), (0.4, 0), (0.2, 1), (5.0, 1)):
            rays.clock.sleep(second)
            list(executor.poll())
            assert cuda.empty_cache.call_count == before + emptied
    assert not rays.killed
