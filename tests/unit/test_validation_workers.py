"""All workers of a distributed trial leave, validate and ask together, in step; without Ray."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.train.torch import TorchTrainer

from tunekit._ray import worker_group, workers
from tunekit._ray.worker_group import Asked, Begun, Finished, TrialWorkerGroup, _Link
from tunekit._ray.workers import TAG, Assignment, WorkerInquiry, _Post
from tunekit.core.inquiry import Inquiry
from tunekit.core.training_loops import WorkerAction, WorkerInbox, may_return
from tunekit.core.values import Raised


class Group:
    """Workers, and what was sent to them."""

    def __init__(self, ranks: int = 2):
        self.workers = [SimpleNamespace(actor=rank) for rank in range(ranks)]
        self.sent: list[tuple[Any, ...]] = []

    def get_workers(self) -> list[Any]:
        return self.workers

    def execute_async(self, fn: Callable[..., Any], *args: Any) -> None:
        self.sent.append((fn.__name__, *args))


def assign(link: _Link) -> None:
    link.assign(Assignment(0, None, None, "token"), 0)  # type: ignore[arg-type]


def start(link: _Link, group: Group) -> None:
    link.after_worker_group_training_start(group)  # type: ignore[arg-type]


def restart(link: _Link, group: Group) -> None:
    link.before_worker_group_shutdown(group)  # type: ignore[arg-type]
    start(link, group)


def linked(ranks: int = 2, **options: Any) -> tuple[_Link, Group]:
    settings = {"ahead": 0, "validates": True, **options}
    link, group = _Link(queue.SimpleQueue(), **settings), Group(ranks)
    assign(link)
    start(link, group)
    return link, group


def report(
    link: _Link, number: int = 1, checkpoint: Any = None, asked: tuple[bool, ...] = (False,)
) -> None:
    """Let each rank make a report; ``asked``: whether it has asked for its checkpoint."""
    own = SimpleNamespace(checkpoint=checkpoint, validation=False)
    link.after_report(own, [{TAG: (1, number, one)} for one in asked])  # type: ignore[arg-type]


def events(link: _Link) -> list[Any]:
    return [link._events.get_nowait()[1] for _ in range(link._events.qsize())]


def poll(link: _Link, *statuses: dict[str, Any]) -> list[Any]:
    """Poll workers with these statuses; return the events."""
    known = {rank: SimpleNamespace(**status) for rank, status in enumerate(statuses)}
    link.after_worker_group_poll_status(SimpleNamespace(worker_statuses=known))  # type: ignore
    return events(link)


def stages(link: _Link, *stages: tuple[int, bool] | None) -> list[type]:
    """Poll workers in these stages (None: slow to answer); return the types of the events."""
    found = poll(link, *({"stage": stage} if stage else {} for stage in stages))
    return [type(event) for event in found]


def test_assignment_begins_and_finishes_once_each_worker_has_reported_so():
    link, _ = linked()
    assert stages(link, (1, False), (0, False)) == []
    assert stages(link, None, (1, False)) == [Begun]
    assert stages(link, (1, True), None) == []
    assert stages(link, None, (1, True)) == [Finished]
    assert stages(link, (1, True), (1, True)) == []
    assign(link)
    assert stages(link, (1, True), (2, True)) == []
    assert stages(link, (2, True), None) == [Begun, Finished]


def test_restarted_workers_get_a_new_number_and_the_former_stages_do_not_count():
    link, group = linked()
    assert stages(link, (1, True), (1, False)) == [Begun]
    restart(link, group)
    assert [given.number for _, given, _ in group.sent] == [1, 2]
    assert stages(link, (0, False), (2, True)) == []


@pytest.mark.parametrize("in_workers", [True, False])
def test_workers_that_validate_wait_in_each_report_with_a_checkpoint(in_workers):
    link, group = linked(1, ahead=1, in_workers=in_workers)
    assert group.sent.pop()[-1] == (0 if in_workers else 1), "from how many reports they may return"

    def decide(number: int) -> None:
        link.decided(SimpleNamespace(number=1, report=number))  # type: ignore[arg-type]

    report(link, 1)
    report(link, 2, checkpoint="a checkpoint")
    decide(1)
    upto = [sent[-1] for sent in group.sent]
    assert upto == ([1, 1] if in_workers else [2]), "it waits in the second"
    decide(2)
    assert group.sent[-1][-1] == (2 if in_workers else 3)


@pytest.mark.parametrize("asks", [True, False])
def test_report_is_of_a_resumable_loop_if_any_rank_has_asked_for_its_checkpoint(asks):
    link, _ = linked()
    report(link, asked=(False, asks))
    _, found = events(link)
    assert found.asked is asks and found.resumed


@pytest.mark.parametrize(
    ("ranks", "result", "end"),
    [
        (1, "a score", False),
        (1, Raised("ValueError", "once", ""), False),
        (2, Raised("ValueError", "once", ""), True),
        (1, Raised("", "its process is damaged", "", fatal=True), True),
    ],
)
def test_workers_end_after_a_fatal_result_and_after_any_failure_of_several(
    monkeypatch, ranks, result, end
):
    link, group = linked(ranks)
    link.started.set()
    actors = [SimpleNamespace(__ray_call__=mock.Mock()) for _ in range(ranks)]
    group.workers = [SimpleNamespace(actor=actor) for actor in actors]
    monkeypatch.setattr(worker_group, "ray", mock.Mock(**{"get.return_value": result}))
    worker_group.ray.wait = lambda refs, num_returns: (refs[:1], refs[1:])
    workers = TrialWorkerGroup(TorchTrainer(once))
    workers._link = link
    monkeypatch.setattr(workers, "dismiss", dismiss := mock.Mock())
    assert workers.beside(once, alone=False)[0] == result
    assert dismiss.called == end


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


def test_side_task_runs_once_the_loop_waits_or_its_thread_has_ended(post):
    """Between two assignments, in a report, and when its thread has ended."""
    ran: queue.SimpleQueue[int] = queue.SimpleQueue()
    steps = [threading.Event() for _ in range(2)]

    def loop() -> None:
        assignment = post.next_assignment()
        steps[0].wait()
        post.reported(assignment.number, 1)
        steps[1].wait()
        post.thread_ended()

    def beside() -> None:
        ran.put(workers.side_task(None, once, False, workers.contextlib.nullcontext))

    training = threading.Thread(target=loop, daemon=True)
    for proceed in (
        training.start,
        lambda: (post.assign(Assignment(1, None, None, ""), 0), steps[0].set()),  # type: ignore
        lambda: (post.allow(1, 1), steps[1].set()),
    ):
        proceed()
        threading.Thread(target=beside, daemon=True).start()
        assert ran.get(timeout=20) == 1
    training.join(20)


def test_side_task_does_not_run_while_the_loop_may_continue(post):
    post._until = lambda: True  # it is about to
    ran = threading.Event()

    def beside() -> None:
        workers.side_task(None, once, False, workers.contextlib.nullcontext)
        ran.set()

    threading.Thread(target=beside, daemon=True).start()
    assert not ran.wait(0.1)
    post.thread_ended()
    assert ran.wait(20)


# Workers stay together without communicating ----------------------------------------------------


# What the trial sends, in order: "one more report is decided about", or "something else to do".
MESSAGES = st.lists(st.sampled_from(["allow", "assign"]), max_size=30)


class Rank:
    """A worker that reads the trial's messages in order, with any delays."""

    def __init__(self):
        self.inbox, self.number, self.report = WorkerInbox(), 1, 0
        self.unread, self.left_at = [], {}

    def read(self):
        kind, number, upto = self.unread.pop(0)
        (self.inbox.assigned if kind == "assign" else self.inbox.allowed)(number, upto)

    def train(self):
        """One more report, unless it waits in one; on to the next assignment if it leaves."""
        begins = self.report == 0
        action = WorkerAction.CONTINUE if begins else self.inbox.action(self.number, self.report)
        if action is WorkerAction.WAIT:
            return
        if action is WorkerAction.LEAVE:
            self.left_at[self.number] = self.report
            self.number, self.report = self.number + 1, 0
        if self.inbox.newest >= self.number:
            self.report += 1


@given(MESSAGES, st.integers(0, 3), st.data())
def test_all_ranks_leave_each_assignment_at_the_same_report(messages, ahead, data):
    ranks = [Rank() for _ in range(3)]
    number, decided = 1, 0
    sent = [("assign", 1, may_return(0, ahead))]
    for kind in messages:
        if kind == "assign":
            number, decided = number + 1, 0
        else:
            decided += 1
        sent.append((kind, number, may_return(decided, ahead)))
    for rank in ranks:
        rank.unread = list(sent)
    while any(rank.unread for rank in ranks):
        rank = data.draw(st.sampled_from([rank for rank in ranks if rank.unread]))
        rank.read()
        for _ in range(data.draw(st.integers(0, 4))):
            data.draw(st.sampled_from(ranks)).train()
    for rank in ranks:
        for _ in range(200):
            rank.train()
    assert ranks[0].left_at == ranks[1].left_at == ranks[2].left_at
    assert all(rank.number == number for rank in ranks), "all are at the last assignment"
    assert {rank.report for rank in ranks} == {may_return(decided, ahead) + 1}


def test_permission_is_neither_withdrawn_nor_extended_after_the_next_assignment():
    inbox = WorkerInbox()
    inbox.assigned(1, upto=2)
    inbox.allowed(1, upto=1)
    assert inbox.action(1, report=2) is WorkerAction.CONTINUE
    inbox.assigned(2, upto=0)
    inbox.allowed(1, upto=5)
    assert inbox.action(1, report=3) is WorkerAction.LEAVE


# What loops ask ----------------------------------------------------------------------------------


def asked(link: _Link, *inquiries: WorkerInquiry | None, begun: int = 1) -> list[Any]:
    """Poll workers that ask, and return what the trial is asked."""
    known = {"stage": (1, False), "begun": begun}
    found = poll(link, *({**known, "inquiry": inquiry} for inquiry in inquiries))
    return [event.inquiry for event in found if isinstance(event, Asked)]


WAITS = Inquiry(blocks=True)
FIRST = WorkerInquiry(1, reports=1, asked=1, inquiry=WAITS)


def test_ranks_that_ask_the_same_get_the_same_answer_and_the_trial_is_asked_once():
    link, group = linked()
    assert asked(link, FIRST, None) == [], "its report has not been passed on"
    report(link)
    assert asked(link, FIRST, None) == [WAITS]
    assert asked(link, FIRST, FIRST) == [], "it is asked once"
    link.answer(["c1"])
    assert group.sent[-1] == ("answer", FIRST, ["c1"])
    second = FIRST._replace(asked=2)
    assert asked(link, second, None) == [WAITS]
    link.answer(["c2"])
    group.sent.clear()
    assert asked(link, None, FIRST) == [] and group.sent == [("answer", FIRST, ["c1"])]
    assert not link.in_step, "rank 0 trains while rank 1 asks"
    assert asked(link, FIRST, FIRST) == [] and link.in_step


def test_answer_is_dropped_if_the_workers_have_restarted_since_they_asked():
    link, group = linked()
    report(link)
    assert asked(link, FIRST, FIRST) == [WAITS]
    restart(link, group)
    group.sent.clear()
    link.answer(["c1"])
    assert group.sent == [] and link.in_step, "the former workers no longer ask"


@pytest.mark.parametrize(
    ("other", "begun", "expected"),
    [
        pytest.param(FIRST, 1, [WAITS], id="the other asks"),
        pytest.param(None, 1, [], id="the other may still ask"),
        pytest.param(None, 2, [Inquiry()], id="the other waits in its next report"),
    ],
)
def test_workers_that_validate_together_wait_for_scores_once_all_have_asked(other, begun, expected):
    link, _ = linked(in_workers=True, by_all=True)
    report(link)
    assert asked(link, FIRST, other, begun=begun) == expected


@pytest.mark.parametrize(
    ("inquiries", "by_all", "expected"),
    [
        ((FIRST, None), True, Inquiry()),  # the other one waits in a collective
        ((None, FIRST), False, Inquiry()),  # rank 0, which would validate, does
        ((FIRST, None), False, WAITS),  # rank 0 validates alone
    ],
)
def test_worker_that_asks_alone_is_answered_after_a_time_limit(
    monkeypatch, inquiries, by_all, expected
):
    now = [0.0]
    monkeypatch.setattr(worker_group.time, "monotonic", lambda: now[0])
    link, _ = linked(in_workers=True, by_all=by_all)
    report(link)
    found = asked(link, *inquiries)
    now[0] = worker_group._TOGETHER_S
    assert [*found, *asked(link, *inquiries)] == [expected]


def test_worker_that_asks_returns_its_own_answer_or_leaves_for_the_next_assignment():
    post = _Post()
    post.assign(Assignment(1, None, None, "token"), 5)  # type: ignore[arg-type]
    post.next_assignment()
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(post.ask(1, 0, WAITS))
        except workers._Leave:
            found.append("left")

    for act in (
        lambda: post.answer(WorkerInquiry(1, 0, 1, WAITS), ["c1"]),
        lambda: post.assign(Assignment(2, None, None, "token"), 0),  # type: ignore[arg-type]
    ):
        thread = threading.Thread(target=ask)
        thread.start()
        post.wait_until_blocked()
        post.answer(WorkerInquiry(1, 0, 7, WAITS), ["of another"])
        act()
        thread.join()
    assert found == [["c1"], "left"]
