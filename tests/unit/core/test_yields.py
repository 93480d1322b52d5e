"""The workers of a validation leave its loop at the same yield, or it is said why they cannot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.assignments import Verdict
from tunekit.core.yields import GroupYields, YieldGate, YieldProgress


class Rank:
    """A worker, whose messages arrive in order, each as late as it likes.

    Between two yields it exchanges data with the others: it comes to a yield only when each of
    them has gone past the one before.
    """

    def __init__(self, length):
        self.gate, self.length = YieldGate(1), length
        self.unread, self.passed_when_held = [], 0

    @property
    def passed(self):
        waits = self.gate.verdict() is not Verdict.GO_ON
        return self.gate.progress.yielded - waits

    def hear(self):
        if self.unread:
            self.unread.pop(0)(self)

    def hold(self):
        self.passed_when_held = self.passed
        self.gate.hold()

    def work(self, others):
        """Come to the next yield, or to the end, if the others have begun with what is before."""
        told = self.gate.progress
        if told.over:
            return
        if self.gate.verdict() is Verdict.LEAVE:
            self.gate.ends()
        elif self.gate.verdict() is Verdict.GO_ON:
            if told.yielded == self.length:
                self.gate.ends()
            elif all(other.passed >= told.yielded for other in others):
                self.gate.yields()


def run(data, lengths, enough_at):
    """Let workers run, with every order of what they do and hear that hypothesis thinks of."""
    ranks = [Rank(length) for length in lengths]
    group, told_to_hold, told_to_leave = GroupYields(1, len(ranks)), False, False
    order = data.draw(st.lists(st.integers(0, 3 * len(ranks) - 1), max_size=80))
    fair = [number for _ in range(50) for number in range(3 * len(ranks))]
    for number in [*order, *fair]:
        which, kind = number % len(ranks), number // len(ranks)
        rank = ranks[which]
        if kind == 0:
            rank.work([other for other in ranks if other is not rank])
        elif kind == 1:
            rank.hear()
        else:
            group.hears({which: rank.gate.progress})
        if not told_to_hold and ranks[0].gate.progress.yielded >= enough_at:
            told_to_hold = True
            for each in ranks:
                each.unread.append(Rank.hold)
        last = group.last_to_pass
        if last is not None and not told_to_leave:
            told_to_leave = True
            for each in ranks:
                each.unread.append(lambda rank, last=last: rank.gate.leave(after=last))
        if all(each.gate.progress.over for each in ranks):
            break
    return ranks


@given(st.integers(1, 4), st.integers(0, 12), st.integers(1, 15), st.data())
def test_all_leave_at_the_same_yield_and_none_waits_for_ever(workers, length, enough_at, data):
    ranks = run(data, [length] * workers, enough_at)
    ends = [rank.gate.progress for rank in ranks]
    assert all(end.over for end in ends), "each has returned, or was let go"
    assert len({end.yielded for end in ends}) == 1
    assert ends[0].yielded >= min(enough_at, length)


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_they_leave_at_the_first_yield_that_nobody_had_gone_past(workers, enough_at, data):
    ranks = run(data, [1000] * workers, enough_at)  # far more than they come to meanwhile
    furthest = max(rank.passed_when_held for rank in ranks)
    assert {rank.gate.progress.yielded for rank in ranks} == {furthest + 1}


def test_nobody_goes_past_more_once_it_is_held():
    gate = YieldGate(1)
    gate.yields()
    gate.hold()
    gate.yields()
    assert gate.verdict() is Verdict.WAIT
    gate.hold()  # said twice, it means the same
    assert gate.progress == YieldProgress(1, yielded=2, upto=1)


def test_one_that_is_behind_still_comes_as_far_as_the_others():
    gate = YieldGate(1)
    gate.hold()
    gate.leave(after=2)
    verdicts = []
    for _ in range(3):
        gate.yields()
        verdicts.append(gate.verdict())
    assert verdicts == [Verdict.GO_ON, Verdict.GO_ON, Verdict.LEAVE]


def test_what_is_said_of_another_assignment_does_not_count():
    group = GroupYields(2, workers=1)
    group.hears({0: YieldProgress(1, yielded=3, upto=3, over=True)})
    assert group.last_to_pass is None and not group.some_over


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.data())
def test_loops_that_yield_unequally_often_are_told_from_those_that_are_slow(lengths, data):
    gates = [YieldGate(1) for _ in lengths]
    group = GroupYields(1, len(lengths))
    order = data.draw(st.lists(st.integers(0, len(gates) - 1), max_size=30))
    for which in [*order, *sorted([*range(len(gates))] * 7)]:
        if gates[which].progress.yielded < lengths[which]:
            gates[which].yields()
        else:
            gates[which].ends()
        group.hears({which: gates[which].progress})
        done = [gate.progress.yielded for gate in gates if gate.progress.over]
        reached = max(gate.progress.yielded for gate in gates)
        assert (group.uneven is not None) == (bool(done) and min(done) < reached)
    assert (group.uneven is None) == (len(set(lengths)) == 1)


def test_the_message_names_both_ranks_the_rule_and_the_fix():
    group = GroupYields(1, workers=2)
    group.hears({0: YieldProgress(1, yielded=2), 1: YieldProgress(1, yielded=1, over=True)})
    assert group.uneven == (
        "the loop of rank 1 has ended after 1 yield, and that of rank 0 has yielded 2 times. All "
        "workers must yield equally often, because they leave the loop together. Give each the "
        "same number of batches: DistributedSampler does, or let a worker without data yield all "
        "the same."
    )
