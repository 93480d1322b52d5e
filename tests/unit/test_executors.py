"""Where validations run: in tasks, or on evaluators that live on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray

from tunekit import ValidationConfig
from tunekit.core.validation import Attempt, Request
from tunekit.testing import FakeClock, FakeExecutor
from tunekit.validating import evaluators as module
from tunekit.validating.evaluators import EvaluatorExecutor
from tunekit.validating.executor import Began, RayExecutor, Returned
from tunekit.validating.executors import TasksAndEvaluators, executor_of

TRIAL = SimpleNamespace(node_ip="10.0.0.1")


def validate(checkpoint):
    return {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, TasksAndEvaluators),
        ({"ray_remote_kwargs": {"num_cpus": 0.5, "runtime_env": {}}}, TasksAndEvaluators),
        ({"evaluators": 2}, EvaluatorExecutor),
        # A process for each call, and tries of Ray's own, are what tasks have.
        ({"ray_remote_kwargs": {"max_calls": 1}}, RayExecutor),
        ({"ray_remote_kwargs": {"retry_exceptions": True, "max_retries": 2}}, RayExecutor),
    ],
)
def test_what_options_allow(settings, kind):
    assert type(executor_of(ValidationConfig(fn=validate, **settings))) is kind


@pytest.fixture
def both():
    """Tasks that take a second, evaluators that take three, and what runs attempts on them."""
    clock = FakeClock()
    tasks = FakeExecutor(clock, lambda attempt: {"by": "task"}, lambda attempt: 1.0, slots=2)
    evaluators = FakeExecutor(
        clock, lambda attempt: {"by": "evaluator"}, lambda attempt: 3.0, lends=True
    )
    return clock, tasks, evaluators, TasksAndEvaluators(tasks, evaluators)


def test_what_is_in_the_place_of_a_trial_runs_on_an_evaluator(both):
    clock, tasks, evaluators, executor = both
    own, lent = Attempt(Request("a", 1), 1), Attempt(Request("b", 1), 1)
    executor.start(own)
    executor.start(lent, lender=TRIAL)
    assert (tasks.started, evaluators.started) == ([own], [lent])
    assert executor.capacity([]) == 1, "the other one takes no resources"
    assert executor.fits_in({"CPU": 1.0})
    events = executor.poll()
    for _ in range(3):
        clock.sleep(1.0)
        events += executor.poll()
    assert [event for event in events if isinstance(event, Returned)] == [
        Returned(own.id, {"by": "task"}),
        Returned(lent.id, {"by": "evaluator"}),
    ]
    assert {event.attempt_id for event in events if isinstance(event, Began)} == {own.id, lent.id}


def test_whichever_it_runs_on_an_attempt_can_be_cancelled(both):
    _, tasks, evaluators, executor = both
    own, lent = Attempt(Request("a", 1), 1), Attempt(Request("b", 1), 1)
    executor.start(own)
    executor.start(lent, lender=TRIAL)
    executor.cancel(lent)
    executor.cancel(own)
    assert (tasks.cancelled, evaluators.cancelled) == ([own], [lent])


def test_all_that_is_waited_for_wakes_the_loop(monkeypatch, both):
    *_, executor = both
    executor._tasks.awaited, executor._evaluators.awaited = (lambda: {"stream"}), (lambda: ["ref"])
    assert sorted(executor.awaited()) == ["ref", "stream"]


def test_nothing_is_left_when_it_is_closed(monkeypatch):
    ended = []
    monkeypatch.setattr(ray, "kill", ended.append)
    executor = executor_of(ValidationConfig(fn=validate))

    executor._evaluators._evaluators.append(
        module._Evaluator("actor", None, None, module._Phase.BUILT, place="10.0.0.1")
    )
    executor.spare()
    assert not ended, "it holds nothing that others could need"
    executor.close()
    assert ended == ["actor"]
