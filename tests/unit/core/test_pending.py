from __future__ import annotations

import pytest

from tunekit.core.pending import ON_PENDING, chosen, needs_room, stands_still


@pytest.mark.parametrize(
    "lends, swaps, synchronous, comes_to",
    [
        (True, True, False, "yield"),
        (True, False, False, "yield"),
        (False, True, True, "yield"),
        (False, False, False, "continue"),
        (False, False, True, "hold"),  # it compares all trials at the same iteration
    ],
)
def test_what_auto_comes_to(lends, swaps, synchronous, comes_to):
    assert chosen("auto", lends=lends, swaps=swaps, synchronous=synchronous) == comes_to


def test_what_was_asked_for_is_done():
    for policy in ON_PENDING[1:]:
        assert chosen(policy, lends=True, swaps=True) == policy


@pytest.mark.parametrize("policy", ON_PENDING[1:])
def test_nobody_trains_past_a_decision_while_an_older_one_is_pending(policy):
    assert stands_still(policy, scores=2, decisions=2)


def test_continue_trains_on_while_one_decision_is_pending_and_yield_does_not():
    assert not stands_still("continue", scores=3, decisions=1)
    assert stands_still("yield", scores=3, decisions=1)


@pytest.mark.parametrize("policy", ["yield", "continue"])
def test_scores_that_the_scheduler_will_not_look_at_stop_nobody(policy):
    assert not stands_still(policy, scores=5, decisions=0)


def test_room_is_left_unless_trials_make_it():
    assert not needs_room("pause", 1, lends=False)
    for policy in ("auto", "yield", "hold"):
        assert not needs_room(policy, "decision", lends=True)
        assert needs_room(policy, "decision", lends=False)
        assert needs_room(policy, 1, lends=True)  # scores of trials that train on
    assert needs_room("continue", "decision", lends=True)
