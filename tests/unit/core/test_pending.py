from __future__ import annotations

import pytest

from tunekit.core.pending import (
    ON_PENDING,
    chosen,
    gives_way,
    needs_room,
    stands_still,
    trains_on,
)


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


def test_nobody_reports_twice_past_the_last_decision():
    past = {"scores": 1, "decisions": 1, "past_last": lambda: True}
    assert stands_still("continue", **past)
    assert not stands_still("continue", **{**past, "decisions": 0})


@pytest.mark.parametrize("policy", ["yield", "continue"])
def test_scores_that_the_scheduler_will_not_look_at_stop_nobody(policy):
    assert not stands_still(policy, scores=5, decisions=0)


def test_a_trial_trains_on_if_its_place_is_idle_and_it_is_judged_again():
    idle = {"decisions": 1, "idle": True, "decides_again": lambda: True}
    assert trains_on("auto", **idle)
    assert not trains_on("auto", **{**idle, "decides_again": lambda: False})
    assert not trains_on("auto", **idle, synchronous=True)


@pytest.mark.parametrize(
    "instead",
    [{"on_pending": "hold"}, {"idle": False}, {"decisions": 2}, {"synchronous": True}],
)
def test_the_schedulers_books_are_opened_only_if_that_matters(instead):
    known = {"on_pending": "auto", "decisions": 1, "idle": True, **instead}
    on_pending = known.pop("on_pending")
    assert not trains_on(on_pending, **known, decides_again=lambda: pytest.fail("opened"))


def test_room_is_left_unless_trials_make_it():
    assert not needs_room("pause", 1, lends=False)
    for policy in ("auto", "yield", "hold"):
        assert not needs_room(policy, "decision", lends=True)
        assert needs_room(policy, "decision", lends=False)
        assert needs_room(policy, 1, lends=True)  # scores of trials that train on
    assert needs_room("continue", "decision", lends=True)


@pytest.mark.parametrize("on_pending", ["yield", "continue", "hold"])
def test_a_trial_in_whose_place_a_validation_is_about_to_run_keeps_it(on_pending):
    """It would lose its actor, and the validation its place."""
    assert not gives_way(on_pending, will_lend=True, ready=True, alone=True, others_wait=True)


@pytest.mark.parametrize("on_pending", ["yield", "continue", "hold"])
def test_who_gives_way_to_whom(on_pending):
    nobody = {"will_lend": False, "ready": False, "alone": False, "others_wait": False}
    assert not gives_way(on_pending, **nobody)
    assert gives_way(on_pending, **{**nobody, "ready": True}), "else it would never get its turn"
    assert gives_way(on_pending, **{**nobody, "alone": True}), "else no validation could run"
    assert gives_way(on_pending, **{**nobody, "others_wait": True}) == (on_pending == "yield")


def test_to_pause_is_to_give_way_whoever_wants_the_place():
    none = {"ready": False, "alone": False, "others_wait": False}
    assert gives_way("pause", will_lend=True, **none)
    assert gives_way("pause", will_lend=False, **none)
