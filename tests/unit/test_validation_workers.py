"""What workers do beside training, and what is heard of them, without Ray."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tunekit._ray import worker_group, workers
from tunekit._ray.worker_group import Begun, Finished, TrialWorkerGroup, WorkersLost, _Link
from tunekit._ray.workers import TAG, Assignment, _Post
from tunekit.core.values import Raised

RAISED = Raised("ValueError", "no such class", "Traceback ...")


class Group:
    """Workers that are told something, as the link sees them."""

    def __init__(self, ranks: int = 2):
        self.workers = [SimpleNamespace(actor=rank) for rank in range(ranks)]
        self.told: list[tuple[Any, ...]] = []

    def get_workers(self) -> list[Any]:
        return self.workers

    def execute_async(self, fn: Callable[..., Any], *args: Any) -> None:
        self.told.append((fn.__name__, *args))


def linked(ranks: int = 2, **options: Any) -> tuple[_Link, Group]:
    link, group = (
        _Link(queue.SimpleQueue(), **{"ahead": 0, "validates": True, **options}),
        Group(ranks),
    )
    link.assign(Assignment(0, None, None, "token"), 0)  # type: ignore[arg-type]
    link.after_worker_group_training_start(group)  # type: ignore[arg-type]
    return link, group


def heard(link: _Link) -> list[type]:
    return [type(link._events.get_nowait()[1]) for _ in range(link._events.qsize())]


def poll(link: _Link, *stages: tuple[int, bool] | None) -> list[type]:
    statuses = [SimpleNamespace() if one is None else SimpleNamespace(stage=one) for one in stages]
    known = SimpleNamespace(worker_statuses=dict(enumerate(statuses)))
    link.after_worker_group_poll_status(known)  # type: ignore[arg-type]
    return heard(link)


def test_an_assignment_has_begun_and_ended_when_all_workers_have_said_so():
    """Each says so again and again, and those that are slow to answer do not."""
    link, _ = linked()
    assert poll(link, (1, False), (0, False)) == []
    assert poll(link, None, (1, False)) == [Begun]
    assert poll(link, (1, True), None) == []
    assert poll(link, None, (1, True)) == [Finished]
    assert poll(link, (1, True), (1, True)) == []
    link.assign(Assignment(0, None, None, "token"), 0)  # type: ignore[arg-type]
    assert poll(link, (1, True), (2, True)) == []
    assert poll(link, (2, True), None) == [Begun, Finished]


def test_what_workers_say_that_were_replaced_does_not_count():
    link, group = linked()
    assert poll(link, (1, True), (1, False)) == [Begun]
    link.before_worker_group_shutdown(group)  # type: ignore[arg-type]
    link.after_worker_group_training_start(group)  # type: ignore[arg-type]
    assert [given.number for _, given, _ in group.told] == [1, 2]
    assert poll(link, (0, False), (2, True)) == []


@pytest.mark.parametrize("stands", [True, False])
def test_workers_wait_in_the_reports_that_may_be_validated_there(stands):
    link, group = linked(1, ahead=1, stands=stands)
    assert group.told.pop()[-1] == (0 if stands else 1), "from how many reports they may return"

    def report(number: int, checkpoint: Any) -> None:
        own = SimpleNamespace(checkpoint=checkpoint, validation=False)
        link.after_report(own, [{TAG: (1, number, False)}])  # type: ignore[arg-type]

    def decide(number: int) -> None:
        link.decided(SimpleNamespace(number=1, report=number))  # type: ignore[arg-type]

    report(1, checkpoint=None)
    report(2, checkpoint="a checkpoint")
    decide(1)
    upto = [told[-1] for told in group.told]
    assert upto == ([1, 1] if stands else [2]), "it waits in the second"
    decide(2)
    assert group.told[-1][-1] == (2 if stands else 3)


# Beside training -------------------------------------------------------------------------------


@pytest.fixture
def side(monkeypatch) -> Callable[..., Any]:
    """What workers that stand still return, who are asked to, and whether they live on."""
    asked: list[int] = []

    def make(*results: Any) -> SimpleNamespace:
        class Actor:
            def __init__(self, rank: int):
                call = SimpleNamespace(remote=lambda *given: asked.append(rank) or rank)
                self.__ray_call__ = SimpleNamespace(options=lambda name: call)

        def get(rank: int) -> Any:
            if isinstance(results[rank], Exception):
                raise results[rank]
            return results[rank]

        context = SimpleNamespace(get_task_name=lambda: "validate")
        ray = SimpleNamespace(
            wait=lambda refs, num_returns: (refs[:1], refs[1:]),
            get=get,
            get_runtime_context=lambda: context,
        )
        monkeypatch.setattr(worker_group, "ray", ray)
        link, workers = linked(len(results))
        for rank, worker in enumerate(workers.workers):
            worker.actor = Actor(rank)
        trainer: Any = SimpleNamespace(backend_config=None)
        group: Any = SimpleNamespace(_link=link, _error=None, _trainer=trainer, dismissed=False)
        group.dismiss = lambda: setattr(group, "dismissed", True)
        group.beside = lambda alone: TrialWorkerGroup.beside(group, lambda: None, alone=alone)
        group.asked = asked
        return group

    return make


@pytest.mark.parametrize(("alone", "ranks"), [(True, [0]), (False, [0, 1])])
def test_rank_0_or_all_are_asked_and_live_on(side, alone, ranks):
    group = side(1, 3)
    assert group.beside(alone) == ({0: 1} if alone else {0: 1, 1: 3})
    assert group.asked == ranks and not group.dismissed
    assert not group._link.polling.locked()


def test_an_exception_of_rank_0_alone_leaves_the_workers(side):
    group = side(RAISED, 3)
    assert group.beside(alone=True) == {0: RAISED} and not group.dismissed


def test_an_exception_of_one_of_several_ends_the_workers(side):
    """The others may wait for it for ever, or have exchanged more than it has."""
    group = side(1, RAISED, 3)
    assert group.beside(alone=False) == {0: 1, 1: RAISED} and group.dismissed
    assert not group._link.polling.locked(), "they can be ended"


def test_a_worker_that_dies_meanwhile_ends_them_all(side):
    group = side(RayActorError(), 3)
    with pytest.raises(WorkersLost, match="a worker died"):
        group.beside(alone=True)
    assert group.dismissed


# In a worker -----------------------------------------------------------------------------------


@pytest.fixture
def post(monkeypatch) -> _Post:
    post = _Post()
    monkeypatch.setattr(workers, "_post", post)
    monkeypatch.setattr(workers, "get_train_fn_utils", lambda: None)
    monkeypatch.setattr(workers, "set_train_fn_utils", lambda utils: None)
    return post


def once() -> int:
    return 1


def test_a_side_task_waits_until_the_loop_stands(post):
    """Between two assignments, in a report, and when its thread has ended."""
    ran: queue.SimpleQueue[int] = queue.SimpleQueue()
    steps = [threading.Event() for _ in range(2)]

    def loop() -> None:
        assignment = post.take()
        steps[0].wait()
        post.reported(assignment.number, 1)
        steps[1].wait()
        post.gone()

    def beside() -> None:
        ran.put(workers.side_task(None, once, False, workers.contextlib.nullcontext))

    training = threading.Thread(target=loop, daemon=True)
    for goes_on in (
        training.start,
        lambda: (post.assign(Assignment(1, None, None, ""), 0), steps[0].set()),  # type: ignore
        lambda: (post.allow(1, 1), steps[1].set()),
    ):
        goes_on()
        threading.Thread(target=beside, daemon=True).start()
        assert ran.get(timeout=20) == 1
    training.join(20)


def test_a_side_task_does_not_run_beside_a_loop_that_may_go_on(post):
    post._until = lambda: True  # it is about to
    ran = threading.Event()

    def beside() -> None:
        workers.side_task(None, once, False, workers.contextlib.nullcontext)
        ran.set()

    threading.Thread(target=beside, daemon=True).start()
    assert not ran.wait(0.1)
    post.gone()
    assert ran.wait(20)
