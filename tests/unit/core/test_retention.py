"""A checkpoint that is leased or newest stays; of the others, the best num_to_keep do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.core.retention import (
    Leases,
    clone_holder,
    orphaned,
    rank,
    scheduler_holder,
    surplus,
    unique_name,
    uploads_of,
)


def left(scores, num_to_keep, needed=()):
    """Return the numbers of the checkpoints that stay, from the worst to the best."""
    ranked = sorted(range(len(scores)), key=lambda n: rank(scores[n]))
    newest = f"c{len(scores) - 1}" if scores else None
    doomed = surplus([f"c{n}" for n in ranked], newest, num_to_keep, {f"c{n}" for n in needed})
    return [n for n in ranked if f"c{n}" not in doomed]


def test_surplus_keeps_best_and_newest_checkpoints_and_ranks_unscored_ones_below_scored():
    scores = [0.1, None, float("nan"), 0.05, None]
    assert left(scores, None) == [1, 2, 4, 3, 0], "no limit deletes nothing"
    assert left(scores, 2) == [4, 3, 0], "the best, the newest unvalidated one, and the newest"
    assert left([0.9, 0.1, 0.8, 0.2], 2) == [3, 2, 0], "the best and the newest"


scores = st.one_of(st.none(), st.floats(allow_nan=True))


@given(st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=15), st.integers(1, 4))
def test_exactly_the_leased_the_newest_and_the_best_num_to_keep_checkpoints_stay(drawn, keep):
    needed = {n for n, (_, leased) in enumerate(drawn) if leased}
    from_worst = left([score for score, _ in drawn], None)
    kept = left([score for score, _ in drawn], keep, needed)
    assert {*kept} == {*from_worst[-keep:], *needed, len(drawn) - 1}


def test_holder_that_leases_another_checkpoint_releases_its_first():
    leases, scored = Leases(), scheduler_holder("a")
    leases.acquire(scored, "x", "a")
    leases.acquire(scored, "x", "a")
    assert leases.pop_touched() == [], "the same one again changes nothing"
    leases.acquire(scored, "y", "a")
    assert (list(leases), leases.pop_touched()) == (["y"], ["a"])


@pytest.mark.parametrize("clone", [None, "b"], ids=["owner unknown", "owned by the clone"])
def test_checkpoint_released_by_its_last_holder_is_pruned_with_those_of_its_own_trial(clone):
    leases = Leases()
    leases.acquire(scheduler_holder("a"), "x", "a")
    leases.acquire(clone_holder("b", 1), "x", clone)
    leases.release(scheduler_holder("a"))
    leases.release(scheduler_holder("c"))
    assert "x" in leases and leases.pop_touched() == []
    leases.release(clone_holder("b", 1))
    assert "x" not in leases and leases.pop_touched() == ["a"]


@pytest.mark.parametrize("name", ["epoch-9", "a/b", "checkpoint_2026-01-01", " ", "ä"])
def test_checkpoint_name_is_unique_for_each_report_of_each_run_and_keeps_its_own_prefix(name):
    names = {unique_name(name, run, report) for run in ("0" * 8, "1" * 8) for report in (1, 2)}
    assert len(names) == 4
    assert all(one.startswith(name.replace("/", "-")) and "/" not in one for one in names)


def test_unregistered_checkpoints_of_a_run_are_found_under_any_name_of_the_users():
    own = [unique_name(name, "1a2b3c4d", 3) for name in ("epoch-9", "checkpoint_2026-01-01", "x")]
    others = ["epoch-9", "plots-deadbeef", "result.json", unique_name("epoch-9", "ffffffff", 3)]
    assert uploads_of("1a2b3c4d", [*own, *others]) == own
    there = [f"t/{name}" for name in (*own, *others[:3])]
    assert orphaned(there, known=[f"t/{own[0]}"]) == sorted(f"t/{name}" for name in own[1:])
