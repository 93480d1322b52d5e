"""What Ray may do to a validation, and what becomes of it; Ray itself is not started."""

from __future__ import annotations

import pytest
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    OwnerDiedError,
    WorkerCrashedError,
)

from tunekit.core.validation import Attempt, Request
from tunekit.executor import Began, Failed, RayExecutor, Returned


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
    executor._streams[stream], executor._by_id[attempt.id] = attempt.id, stream
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
