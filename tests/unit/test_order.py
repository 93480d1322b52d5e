"""Who listens to validated results hears each once, in iteration order within a trial."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.order import InOrder
from tunekit.core.validation import Outcome, Request, Status

PLACES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 6)), unique=True, max_size=12
)


def outcome(request: Request, status: Status = Status.VALIDATED) -> Outcome:
    return Outcome(request, status, {"accuracy": 0.5} if status is Status.VALIDATED else {})


@given(PLACES, st.randoms(use_true_random=False), st.lists(st.sampled_from(Status), min_size=12))
def test_each_once_in_order_and_all_when_the_last_has_ended(places, draw, statuses):
    """Requests come in the order of iterations, outcomes in any; both are mixed."""
    waiting = [Request(trial, i, generation=g) for trial, g, i in sorted(places)]
    order, running, told, asked = InOrder(), [], [], {}
    while waiting or running:
        if waiting and (not running or draw.random() < 0.5):
            request = waiting.pop(0)
            order.requested(request)
            asked[request.id] = request
            running.append(request)
        else:
            request = running.pop(draw.randrange(len(running)))
            due = order.ended(outcome(request, statuses[len(told) % len(statuses)]))
            # As soon as it may be: what is due are those before the oldest that still runs.
            told += due
            known = {one.request.id for one in told}
            of_trial = [r for r in asked.values() if r.trial_id == request.trial_id]
            oldest = min((r.place for r in running if r.trial_id == request.trial_id), default=None)
            for one in of_trial:
                assert (one.id in known) == (oldest is None or one.place < oldest)
    assert len({one.request.id for one in told}) == len(told) == len(places)
    for trial in "ab":
        heard = [one.request.place for one in told if one.request.trial_id == trial]
        assert heard == sorted(heard)


def test_a_newer_run_takes_the_place_of_an_older_one():
    order = InOrder()
    older, other = Request("a", 5), Request("a", 6)
    order.requested(older)
    order.requested(other)
    newer = Request("a", 5, run=2)
    order.requested(newer)
    assert order.ended(outcome(older)) == []
    assert order.ended(outcome(other)) == []
    assert [one.request.run for one in order.ended(outcome(newer))] == [2, 1]


def test_an_outcome_that_waits_gives_way_to_a_newer_run():
    order = InOrder()
    first, second = Request("a", 1), Request("a", 2)
    order.requested(first)
    order.requested(second)
    assert order.ended(outcome(second)) == []
    again = Request("a", 2, run=2)
    order.requested(again)
    assert [one.request for one in order.ended(outcome(first))] == [first]
    assert [one.request for one in order.ended(outcome(again))] == [again]


def test_what_is_requested_again_after_a_restore_waits_once():
    order = InOrder()
    first, second = Request("a", 1), Request("a", 2)
    for request in (first, second, first, second):
        order.requested(request)
    assert order.ended(outcome(second)) == []
    order.requested(second)
    assert [one.request.iteration for one in order.ended(outcome(first))] == [1, 2]
    assert order.ended(outcome(second)) == []
