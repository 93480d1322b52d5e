from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.retention import Kept, Leases, for_clone, for_scheduler, rank, surplus


def left(checkpoints, num_to_keep, *, by_score=True):
    doomed = surplus(checkpoints, num_to_keep, by_score=by_score)
    return [c for index, c in enumerate(checkpoints) if index not in doomed]


def test_the_best_and_the_newest_stay():
    scores = [0.9, 0.1, 0.8, 0.2]
    checkpoints = [Kept(n, score) for n, score in enumerate(scores)]
    assert [c.score for c in left(checkpoints, 2)] == [0.9, 0.8, 0.2]


def test_without_scores_the_newest_stay():
    checkpoints = [Kept(n) for n in range(5)]
    assert [c.order for c in left(checkpoints, 2, by_score=False)] == [3, 4]


def test_unvalidated_ones_rank_below_validated_ones():
    checkpoints = [Kept(0, 0.1), Kept(1), Kept(2, float("nan")), Kept(3, 0.05), Kept(4)]
    assert [checkpoints[i].order for i in rank(checkpoints, by_score=True)] == [1, 2, 4, 3, 0]
    assert [c.order for c in left(checkpoints, 2)] == [0, 3, 4]


def test_no_limit_deletes_nothing():
    assert surplus([Kept(n) for n in range(9)], None, by_score=False) == []


scores = st.one_of(st.none(), st.floats(allow_nan=True))


@given(st.lists(st.tuples(scores, st.booleans()), max_size=12), st.integers(1, 4), st.booleans())
def test_what_is_leased_or_newest_stays_and_the_rest_is_within_the_limit(drawn, k, by_score):
    checkpoints = [Kept(n, score, leased) for n, (score, leased) in enumerate(drawn)]
    kept = left(checkpoints, k, by_score=by_score)
    assert all(c in kept for c in checkpoints if c.leased)
    assert not checkpoints or checkpoints[-1] in kept
    assert len(kept) <= k + sum(c.leased for c in checkpoints) + 1
    assert len(kept) >= min(k, len(checkpoints))


def test_a_holder_that_takes_another_checkpoint_releases_the_first_one():
    leases, scored = Leases(), for_scheduler("a")
    leases.take(scored, "x", "a")
    leases.take(scored, "x", "a")
    assert leases.take_touched() == [], "the same one again changes nothing"
    leases.take(scored, "y", "a")
    assert (list(leases), leases.held(scored), leases.take_touched()) == (["y"], "y", ["a"])


def test_what_is_free_is_the_concern_of_the_trial_that_saved_it():
    leases = Leases()
    leases.take(for_clone("b", 1), "x")
    leases.take(for_scheduler("a"), "x", "a")
    leases.release(for_scheduler("a"))
    leases.release(for_scheduler("c"))
    assert "x" in leases and leases.take_touched() == []
    leases.release(for_clone("b", 1))
    assert "x" not in leases and leases.take_touched() == ["a"]


def test_a_checkpoint_stays_the_concern_of_its_trial_whoever_else_takes_it():
    leases = Leases()
    leases.take(for_scheduler("a"), "x", "a")
    leases.take(for_clone("b", 1), "x", "b")
    leases.release(for_scheduler("a"))
    leases.release(for_clone("b", 1))
    assert leases.take_touched() == ["a"]
