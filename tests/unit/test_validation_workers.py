"""Both sides of a validation in workers, without Ray: each worker is a thread of this process."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tunekit._ray import worker_group
from tunekit._ray import workers as in_workers
from tunekit._ray.raised import LoopError
from tunekit._ray.worker_group import (
    Finished,
    TrialWorkerGroup,
    ValidationWorkerGroup,
    WorkersLost,
    _Link,
    _Work,
)
from tunekit._ray.workers import TAG, Assignment, SideTask, _Post
from tunekit.core.yields import YieldProgress
from tunekit.errors import ConfigError

# For as long a worker waits for the others between two yields; it should never come to that.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Context:
    """What is to be run."""

    train_load: Any = None
    train_loop_config: Any = None


class Threads:
    """What :class:`~tunekit._ray.worker_group.TrialWorkerGroup` does, with threads for workers.

    Between two yields, the workers wait for each other, as they do in an ``all_reduce``.
    """

    def __init__(
        self, ranks: int = 2, apart: bool = False, batch: Callable[[int], object] = lambda n: None
    ):
        self.posts = [_Post() for _ in range(ranks)]
        self.barrier, self.apart, self.batch = threading.Barrier(ranks), apart, batch
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.link, self.job = _Link(self.events, ahead=0, validates=False), 0
        self.link._group = self  # type: ignore[assignment]
        #: By rank, how often each loop has yielded that has ended.
        self.yields: list[list[int]] = [[] for _ in self.posts]
        self.dismissed, self.leaves = False, lambda: None
        self._link, self._meanwhile = self.link, deque[Any]()
        self._loop = SimpleNamespace(call_soon_threadsafe=lambda fn, *args: fn(*args))
        for rank in range(ranks):
            threading.Thread(target=self._serve, args=(rank,), daemon=True).start()

    def _serve(self, rank: int) -> None:
        with suppress(threading.BrokenBarrierError):  # the test is over
            self._validate(rank)

    def _validate(self, rank: int) -> None:
        post = self.posts[rank]
        while True:
            assignment: Assignment = post.take()
            lengths = assignment.run_context.train_loop_config
            n = 0
            for n in range(1, lengths[rank] + 1):
                self.batch(n)
                if not self.apart:
                    self.barrier.wait(PATIENCE_S)
                if not post.yielded([n] if rank == 0 else []):
                    break
            self.yields[rank].append(n)
            post.ended(assignment.number, n)

    beside = TrialWorkerGroup.beside

    # The group, as the link sees it

    def get_workers(self) -> list[Any]:
        return self.posts

    def execute_async(self, fn: Callable[..., Any], *args: Any) -> None:
        for rank in range(len(self.posts)):
            self.execute_single_async(rank, fn, *args)

    def execute_single_async(self, rank: int, fn: Callable[..., Any], *args: Any) -> None:
        if isinstance(args[0], SideTask):  # each worker knows its own rank
            args = (replace(args[0], call=partial(args[0].call, rank)),)
        getattr(self.posts[rank], fn.__name__)(*args)

    # The workers, as a validation sees them

    def assign(self, context: Any, checkpoint: Any, iteration: int, token: str) -> None:
        self.job += 1
        self.link.assign(_Work(self.job, context, token), checkpoint, iteration)

    def leave(self) -> None:
        self.link.leave()
        self.leaves()

    def dismiss(self) -> None:
        self.dismissed = True

    def next_event(self, timeout_s: float | None = None) -> Any:
        for _ in range(10_000):
            self._poll()
            try:
                event = self.events.get(timeout=0.001)
            except queue.Empty:
                if timeout_s is not None:
                    return None
                continue
            if event.job == self.job:
                return event
        raise AssertionError("nothing happens any more")

    def _poll(self) -> None:
        statuses = {}
        for rank, post in enumerate(self.posts):
            statuses[rank] = SimpleNamespace()
            post.say_into(statuses[rank], post.finished)  # type: ignore[arg-type]
        self.link.after_worker_group_poll_status(SimpleNamespace(worker_statuses=statuses))


@pytest.fixture
def group(monkeypatch) -> Iterator[Callable[..., tuple[ValidationWorkerGroup, Threads]]]:
    def make(**options: Any) -> tuple[ValidationWorkerGroup, Threads]:
        threads = Threads(**options)
        monkeypatch.setattr(worker_group, "TrialWorkerGroup", lambda *args, **kwargs: threads)
        trainer: Any = SimpleNamespace(train_run_context=Context())
        return ValidationWorkerGroup(trainer, 0), threads

    return make


def told(steps: Iterator[int]) -> tuple[list[int], int]:
    """Return what a validation yields, and what it returns."""
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return found, end.value


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_estimates_come_in_order_and_then_what_rank_0_returns(group, ranks):
    validation, threads = group(ranks=ranks)
    for length in (5, 0, 3):  # the same workers run one after another
        steps = validation.run([length] * ranks)
        assert told(steps) == ([*range(1, length + 1)], length)
    assert threads.yields == [[5, 0, 3]] * ranks


def test_a_score_is_not_lost_when_rank_0_is_slow_to_answer_the_last_poll(group):
    """It has said what it returned; when the other one has returned, it does not answer in time."""
    _, threads = group()
    threads.assign(Context(train_loop_config=[0, 0]), None, 0, "validation")
    told = {"begun": 1, "progress": YieldProgress(1), "yielded": []}
    returned = SimpleNamespace(**told, finished=1, value=0.9)
    computes = SimpleNamespace(**told, finished=0, value=None)
    for statuses in (returned, computes), (SimpleNamespace(), returned):
        by_rank = SimpleNamespace(worker_statuses=dict(enumerate(statuses)))
        threads.link.after_worker_group_poll_status(by_rank)
    events = [threads.events.get_nowait() for _ in range(threads.events.qsize())]
    assert [event.value for event in events if isinstance(event, Finished)] == [0.9]


@pytest.mark.parametrize("enough", [1, 4])
def test_all_leave_at_the_same_yield_and_the_next_validation_begins_anew(group, enough):
    validation, threads = group(ranks=3)
    for _ in range(3):
        with closing(validation.run([10**9] * 3)) as steps:
            assert [next(steps) for _ in range(enough)] == [*range(1, enough + 1)]
    assert threads.yields[0] == threads.yields[1] == threads.yields[2]
    assert len(threads.yields[0]) == 3 and min(threads.yields[0]) > enough
    assert told(validation.run([2, 2, 2])) == ([1, 2], 2)
    assert not threads.dismissed


def test_one_that_is_cancelled_in_a_long_batch_is_left_after_that_batch(group):
    ends, taken = threading.Event(), []
    validation, threads = group(batch=lambda n: n < 2 or ends.wait(PATIENCE_S))
    threads.leaves = ends.set
    steps = validation.run([10**9, 10**9], is_cancelled=lambda: bool(taken))
    taken.append(next(steps))
    assert told(steps) == ([], None)
    assert threads.yields == [[2], [2]]


def test_workers_that_yield_unequally_often_are_ended_with_the_reason(group):
    validation, threads = group(apart=True)
    with pytest.raises(ConfigError, match="rank 1 has ended after 2 yields, and that of rank 0"):
        told(validation.run([3, 2]))
    assert threads.dismissed


def test_workers_that_leave_and_cannot_are_ended(group, monkeypatch):
    """One has returned, and another waits for it in an exchange of data."""
    monkeypatch.setattr(worker_group, "_LEAVE_S", 0.0)
    validation, threads = group()
    with closing(validation.run([10**9, 1])) as steps:
        next(steps)
    assert threads.dismissed
    threads.barrier.abort()


@pytest.fixture
def standing(monkeypatch) -> Callable[..., Threads]:
    """Workers that stand between two assignments, as they do in a report."""
    monkeypatch.setattr(in_workers, "get_train_fn_utils", lambda: None)
    monkeypatch.setattr(in_workers, "set_train_fn_utils", lambda utils: None)

    def make(ranks: int = 2) -> Threads:
        threads = Threads(ranks)
        threads.assign(Context(train_loop_config=[0] * ranks), None, 0, "training")
        while not isinstance(threads.next_event(), Finished):
            pass
        return threads

    return make


@pytest.mark.parametrize(("alone", "ranks"), [(True, [0]), (False, [0, 1, 2])])
def test_side_tasks_run_on_rank_0_or_on_all_and_return_what_rank_0_does(standing, alone, ranks):
    threads, ran = standing(3), []
    for n in (1, 2):
        steps = threads.beside(lambda rank, n=n: ran.append(rank) or (n, rank), alone=alone)
        assert told(steps) == ([], (n, 0))
    assert sorted(ran) == sorted(ranks * 2)


@pytest.mark.parametrize("alone", [True, False])
def test_side_tasks_yield_and_are_left_by_all_at_the_same_yield(standing, alone):
    threads, yielded = standing(), Counter()

    def task(rank: int, length: int) -> int:
        for n in range(length):
            yielded[rank] += 1
            if not threads.posts[rank].yielded([n] if rank == 0 else []):
                break
        return length

    assert told(threads.beside(partial(task, length=3), alone=alone)) == ([0, 1, 2], 3)
    with closing(threads.beside(partial(task, length=10**9), alone=alone)) as steps:
        assert [next(steps), next(steps)] == [0, 1]
    assert yielded[1] == (0 if alone else yielded[0])
    assert told(threads.beside(lambda rank: rank, alone=alone)) == ([], 0), "they go on"
    assert not threads.dismissed


def fails(rank: int, of: int) -> None:
    if rank == of:
        raise ValueError("no such class")


def test_an_exception_of_rank_0_alone_leaves_the_workers(standing):
    threads = standing()
    with pytest.raises(LoopError, match="ValueError: no such class"):
        told(threads.beside(partial(fails, of=0), alone=True))
    assert not threads.dismissed
    assert told(threads.beside(lambda rank: rank, alone=True)) == ([], 0)


def test_an_exception_of_one_of_several_ends_the_workers(standing):
    """The others may wait for it for ever, or have exchanged more than it has."""
    threads = standing()
    with pytest.raises(LoopError, match="ValueError: no such class"):
        told(threads.beside(partial(fails, of=1), alone=False))
    assert threads.dismissed


def test_a_worker_that_dies_meanwhile_ends_them_all(standing):
    threads, ends = standing(), threading.Event()
    steps = threads.beside(
        lambda rank: ends.wait(PATIENCE_S), alone=True, is_cancelled=die(threads)
    )
    with pytest.raises(WorkersLost, match="a worker of its trial died"):
        told(steps)
    assert threads.dismissed
    ends.set()


def die(threads: Threads) -> Callable[[], bool]:
    return lambda: bool(threads.link.before_worker_group_shutdown(threads))  # type: ignore[arg-type]


def test_what_happens_to_training_meanwhile_is_kept_for_later(standing):
    threads = standing()
    threads.events.put(Finished(threads.job, "training"))
    assert told(threads.beside(lambda rank: rank, alone=True)) == ([], 0)
    assert list(threads._meanwhile) == [Finished(threads.job, "training")]


@pytest.mark.parametrize("stands", [True, False])
def test_workers_wait_in_the_reports_that_may_be_validated_there(stands):
    allowed: list[int] = []

    class Group:
        def get_workers(self) -> list[Any]:
            return [None]

        def execute_async(self, fn: Callable[..., Any], *args: Any) -> None:
            allowed.append(args[-1])

    link = _Link(queue.SimpleQueue(), ahead=1, validates=True, stands=stands)
    link.assign(_Work(1, Context(), "token"), None, 0)  # type: ignore[arg-type]
    link.after_worker_group_training_start(Group())  # type: ignore[arg-type]
    assert allowed == [0 if stands else 1], "from how many reports they may return at once"

    def report(number: int, checkpoint: Any) -> None:
        own = SimpleNamespace(checkpoint=checkpoint, validation=False)
        link.after_report(own, [{TAG: (1, number, False)}])  # type: ignore[arg-type]

    def decide(number: int) -> None:
        link.decided(SimpleNamespace(number=1, report=number))  # type: ignore[arg-type]

    report(1, checkpoint=None)
    report(2, checkpoint="a checkpoint")
    decide(1)
    assert allowed[1:] == ([1, 1] if stands else [2]), "it waits in the second"
    decide(2)
    assert allowed[-1] == (2 if stands else 3)


def holds(rank: int, kept: list[Any], as_loop_error: bool) -> None:
    memory = Context()
    kept.append(weakref.ref(memory))
    try:
        raise ValueError("no such class")
    except ValueError as error:
        if as_loop_error:
            raise LoopError.of(error) from None
        raise


@pytest.mark.parametrize("as_loop_error", [True, False])
def test_what_a_side_task_that_raised_had_in_memory_is_given_back(standing, as_loop_error):
    threads, kept = standing(), []
    with pytest.raises(LoopError):
        told(threads.beside(partial(holds, kept=kept, as_loop_error=as_loop_error), alone=True))
    assert kept[0]() is None
