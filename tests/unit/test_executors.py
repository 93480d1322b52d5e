"""Where validations run: in tasks, in the processes of trials, or on evaluators."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import train
from ray.exceptions import RayActorError

from tests.unit.test_executor import ID, Stream, get
from tunekit import ValidationConfig
from tunekit.core.validation import Attempt, Request
from tunekit.distributed import TrainerValidation
from tunekit.validating import ray_executor as module
from tunekit.validating.executor import Began, Failed, Lost, Returned
from tunekit.validating.ray_executor import RayExecutor, executor_of

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
def test_what_options_allow(settings, in_trials):
    config = ValidationConfig(**{"fn": validate, **settings})
    executor = executor_of(config)
    assert executor.in_trials == in_trials
    assert config.where != "elsewhere" or not executor.fits_in([CPU])


@pytest.mark.parametrize(
    ("fn", "place", "fits"),
    [
        (validate, [CPU], True),
        (validate, [CPU, CPU], True),
        (by_workers(2), [CPU, CPU], True),
        (by_workers(2), [CPU] * 3, False),
        (by_workers(1), [CPU, CPU], False),
        (by_workers(2), [{"CPU": 0.5}, CPU], False),
        (validate, [], False),
    ],
)
def test_in_which_trials_validations_fit(fn, place, fits):
    assert executor_of(ValidationConfig(fn=fn)).fits_in(place) is fits
    nowhere = executor_of(ValidationConfig(fn=fn, evaluators=1))
    assert not nowhere.fits_in(place)


@pytest.mark.parametrize(
    ("options", "place", "fits"),
    [
        ({"num_gpus": 1}, {"GPU": 1.0}, True),  # as tune.with_resources(train, {"gpu": 1}) has it
        ({"num_gpus": 1}, {"CPU": 1.0}, False),
        ({"num_cpus": 1, "num_gpus": 1}, {"GPU": 1.0}, False),
        ({}, {"CPU": 0.5}, True),
    ],
)
def test_a_trial_that_stands_still_has_the_core_that_nobody_has_asked_for(options, place, fits):
    config = ValidationConfig(fn=validate, ray_remote_kwargs=options)
    assert executor_of(config).fits_in([place]) is fits


def test_one_worker_s_validation_does_not_fit_in_a_trial_without_workers():
    """It would start workers in there, for which there is no room."""
    executor = executor_of(ValidationConfig(fn=by_workers(1)))
    assert executor.fits_in([CPU])
    executor.without_workers()
    assert not executor.fits_in([CPU])
    function = executor_of(ValidationConfig(fn=validate))
    function.without_workers()
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
            assert how.func is module.in_workers
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


def test_what_a_trial_hosts_runs_in_its_process(started):
    started.results += [Began(ID), Returned(ID, {"accuracy": 0.5})]
    executor, one = RayExecutor(validate, {}), attempt()
    executor.start(one, host=HOST)
    assert executor.poll() == [Began(one.id), Returned(one.id, {"accuracy": 0.5})]
    executor.start(attempt(iteration=2))
    executor.start(attempt(number=2), host=HOST)
    assert [place for place, _ in started.started] == ["b", "task", "b"]


def test_what_is_tried_again_needs_no_resources_that_its_trial_holds(started):
    """A task in the place of a trial would wait for the trial's GPU, and the trial for the task."""
    started.results += [Began(ID), Failed(ID, "raised ValueError: once")]
    executor, one = RayExecutor(validate, {"num_gpus": 1}), attempt()
    executor.start(one, host=HOST)
    began, failed = executor.poll()
    assert began == Began(one.id) and isinstance(failed, Failed)
    assert executor.fits_in([GPU])
    executor.start(attempt(number=2), host=HOST)
    assert [place for place, _ in started.started] == ["b", "b"]


@pytest.mark.parametrize("kind", ["OutOfMemoryError", "MemoryError"])
def test_what_lacks_memory_in_a_trials_process_is_tried_again_elsewhere(started, caplog, kind):
    started.results += [Began(ID), Failed(ID, f"raised {kind}: 2 GiB", kind=kind)]
    executor = RayExecutor(validate, {"num_gpus": 1})
    executor.start(attempt(), host=HOST)
    assert isinstance(executor.poll()[-1], Failed)
    assert not executor.in_trials and not executor.fits_in([GPU])
    assert "in the process of b. From now on, validations run in separate" in caplog.text


def test_a_validation_that_ends_a_trials_process_is_the_last_in_any(started, caplog):
    started.results += [Began(ID), RayActorError()]
    executor, one = RayExecutor(validate, {}), attempt()
    executor.start(one, host=HOST)
    began, lost, failed = executor.poll()
    assert (began, lost) == (Began(one.id), Lost("b"))
    assert isinstance(failed, Failed) and failed.reason == "its process died"
    assert not executor.fits_in([CPU])
    executor.start(attempt(iteration=2))
    assert [place for place, _ in started.started] == ["b", "task"]
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert (
        "validation of a@1 ended the process of trial b (its process died), which continues" in told
    )


def test_what_has_to_end_at_once_ends_the_process_of_its_trial(started):
    started.results += [Began(ID)]
    executor, one = RayExecutor(validate, {}), attempt()
    executor.start(one, host=HOST)
    assert executor.cancel(one) == "b"
    assert started.started[-1] == ("killed", "b")
    assert executor.poll() == [] and not executor.awaited() and not executor.in_trials


def test_what_is_not_needed_any_more_does_not_keep_others_out_of_trials(started):
    started.results += [Began(ID)]
    executor, one = RayExecutor(validate, {}), attempt()
    executor.start(one, host=HOST)
    assert executor.cancel(one, too_long=False) == "b"
    assert started.started[-1] == ("killed", "b") and executor.in_trials


@pytest.mark.parametrize(
    ("fn", "where"), [(validate, "rank 0 of b"), (by_workers(2), "all of b")], ids=["fn", "loop"]
)
def test_trials_with_workers_validate_in_these(started, fn, where):
    started.results += [Began(ID), Returned(ID, {"accuracy": 0.5})]
    executor = RayExecutor(fn, {})
    executor.start(attempt(), host=WITH_WORKERS)
    assert len(executor.poll()) == 2
    assert [place for place, _ in started.started] == [where]


@pytest.mark.parametrize("fn", [validate, by_workers(2)], ids=["fn", "loop"])
def test_after_one_that_ends_the_workers_of_a_trial_none_runs_there(started, caplog, fn):
    died = Failed(ID, "a worker of its trial died", lost=True)
    started.results += [Began(ID), died]
    executor, one = RayExecutor(fn, {}), attempt()
    executor.start(one, host=WITH_WORKERS)
    assert executor.poll() == [Began(one.id), died], "the trial keeps its own process"
    assert not executor.in_trials
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "ended the workers of trial b (a worker of its trial died), which continues" in told


def test_what_fails_on_rank_0_before_any_has_returned_there_is_tried_elsewhere(started, caplog):
    """Something in that process may take it for one of several."""
    started.results += [Began(ID), Failed(ID, "raised RuntimeError: no process group")]
    executor = RayExecutor(validate, {})
    executor.start(attempt(), host=WITH_WORKERS)
    assert len(executor.poll()) == 2 and not executor.in_trials
    assert "raised RuntimeError: no process group, in a worker of trial b" in caplog.text


def test_once_one_has_returned_on_rank_0_an_exception_is_the_functions(started):
    executor = RayExecutor(validate, {})
    for ends in (Returned(ID, {"accuracy": 0.5}), Failed(ID, "raised ValueError: odd")):
        started.results[:] = [Began(ID), ends]
        executor.start(attempt(), host=WITH_WORKERS)
        assert len(executor.poll()) == 2
    assert executor.in_trials
