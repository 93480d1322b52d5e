"""Workers stay together without a word among themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.training_loops import WorkerAction, WorkerInbox, may_return

# What the trial says, in order: "one more report is decided about", or "something else to do".
MESSAGES = st.lists(st.sampled_from(["allow", "assign"]), max_size=30)


class Rank:
    """A worker that hears the trial's messages in order, each as late as it likes."""

    def __init__(self):
        self.inbox, self.number, self.report = WorkerInbox(), 1, 0
        self.unread, self.left_at = [], {}

    def hear(self):
        kind, number, upto = self.unread.pop(0)
        (self.inbox.assigned if kind == "assign" else self.inbox.allowed)(number, upto)

    def train(self):
        """One more report, unless it waits in one; on to the next assignment if it leaves."""
        action = (
            self.inbox.action(self.number, self.report) if self.report else WorkerAction.CONTINUE
        )
        if self.report and action is WorkerAction.WAIT:
            return
        if action is WorkerAction.LEAVE:
            self.left_at[self.number] = self.report
            self.number, self.report = self.number + 1, 0
        if self.inbox.newest >= self.number:
            self.report += 1


@given(MESSAGES, st.integers(0, 3), st.data())
def test_all_ranks_leave_at_the_same_report(messages, ahead, data):
    ranks = [Rank() for _ in range(3)]
    number, decided = 1, 0
    said = [("assign", 1, may_return(0, ahead))]
    for kind in messages:
        if kind == "assign":
            number, decided = number + 1, 0
        else:
            decided += 1
        said.append((kind, number, may_return(decided, ahead)))
    for rank in ranks:
        rank.unread = list(said)
    while any(rank.unread for rank in ranks):
        rank = data.draw(st.sampled_from([rank for rank in ranks if rank.unread]))
        rank.hear()
        for _ in range(data.draw(st.integers(0, 4))):
            data.draw(st.sampled_from(ranks)).train()
    for rank in ranks:
        for _ in range(200):
            rank.train()
    assert ranks[0].left_at == ranks[1].left_at == ranks[2].left_at
    assert all(rank.number == number for rank in ranks), "all are at the last assignment"
    assert {rank.report for rank in ranks} == {may_return(decided, ahead) + 1}


def test_a_permission_that_comes_after_the_next_assignment_is_too_late():
    inbox = WorkerInbox()
    inbox.assigned(1, upto=1)
    inbox.assigned(2, upto=0)
    inbox.allowed(1, upto=5)
    assert inbox.action(1, report=2) is WorkerAction.LEAVE


def test_a_permission_is_never_taken_back():
    inbox = WorkerInbox()
    inbox.assigned(1, upto=2)
    inbox.allowed(1, upto=1)
    assert inbox.action(1, report=2) is WorkerAction.CONTINUE
