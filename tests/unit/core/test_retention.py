from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.retention import Leases, clone_holder, rank, scheduler_holder, surplus


def left(scores, num_to_keep, needed=()):
    """Which checkpoints stay, by their numbers, from the worst to the best one."""
    ranked = sorted(range(len(scores)), key=lambda n: rank(scores[n]))
    doomed = surplus([f"c{n:02}" for n in ranked], num_to_keep, {f"c{n:02}" for n in needed})
    return [n for n in ranked if f"c{n:02}" not in doomed]


def test_the_best_and_the_newest_stay_and_unvalidated_ones_rank_below_validated_ones():
    scores = [0.1, None, float("nan"), 0.05, None]
    assert left(scores, None) == [1, 2, 4, 3, 0], "no limit deletes nothing"
    assert left(scores, 2) == [4, 3, 0], "the best, the newest unvalidated one, and the newest"
    assert left([0.9, 0.1, 0.8, 0.2], 2) == [3, 2, 0], "the best and the newest"


scores = st.one_of(st.none(), st.floats(allow_nan=True))


@given(st.lists(st.tuples(scores, st.booleans()), max_size=12), st.integers(1, 4))
def test_what_is_leased_or_newest_stays_and_the_rest_is_within_the_limit(drawn, k):
    needed = {n for n, (_, leased) in enumerate(drawn) if leased}
    kept = left([score for score, _ in drawn], k, needed)
    assert needed <= {*kept}
    assert not drawn or len(drawn) - 1 in kept
    assert min(k, len(drawn)) <= len(kept) <= k + len(needed) + 1


def test_a_holder_that_takes_another_checkpoint_releases_the_first_one():
    leases, scored = Leases(), scheduler_holder("a")
    leases.acquire(scored, "x", "a")
    leases.acquire(scored, "x", "a")
    assert leases.pop_touched() == [], "the same one again changes nothing"
    leases.acquire(scored, "y", "a")
    assert (list(leases), leases.pop_touched()) == (["y"], ["a"])


@pytest.mark.parametrize("clone", [None, "b"], ids=["nobody", "the clone"])
def test_a_released_checkpoint_belongs_to_the_trial_that_saved_it(clone):
    leases = Leases()
    leases.acquire(scheduler_holder("a"), "x", "a")
    leases.acquire(clone_holder("b", 1), "x", clone)
    leases.release(scheduler_holder("a"))
    leases.release(scheduler_holder("c"))
    assert "x" in leases and leases.pop_touched() == []
    leases.release(clone_holder("b", 1))
    assert "x" not in leases and leases.pop_touched() == ["a"]
