from __future__ import annotations

import itertools

import pytest

from tunekit.core.pending import (
    ON_PENDING,
    Waits,
    Way,
    stands_still,
    waits_for,
    when_starved,
    while_it_waits,
)


@pytest.mark.parametrize(
    "in_process, swaps, synchronous, comes_to",
    [
        (True, True, False, Waits.DECISIONS),
        (True, False, False, Waits.DECISIONS),
        (False, True, True, Waits.DECISIONS),
        (False, False, False, Waits.LATE),
        (False, False, True, Waits.EACH),  # it compares all trials at the same iteration
    ],
)
def test_what_auto_comes_to(in_process, swaps, synchronous, comes_to):
    assert (
        waits_for("auto", in_process=in_process, swaps=swaps, synchronous=synchronous) is comes_to
    )


@pytest.mark.parametrize("known", ["in_process", "swaps", "short", "synchronous"])
def test_what_was_asked_for_is_done(known):
    assert waits_for("wait", **{known: True}) is Waits.EACH
    assert waits_for("continue", **{known: True}) is Waits.LATE


@pytest.mark.parametrize("waits", Waits)
def test_nobody_trains_past_a_decision_while_an_older_one_is_pending(waits):
    assert stands_still(waits, decisions=2)


def test_nobody_reports_twice_past_the_last_decision():
    past = {"decisions": 1, "past_last": lambda: True}
    assert stands_still(Waits.LATE, **past)
    assert not stands_still(Waits.LATE, **{**past, "decisions": 0})


@pytest.mark.parametrize("waits", [Waits.DECISIONS, Waits.LATE])
def test_scores_that_the_scheduler_will_not_look_at_stop_nobody(waits):
    assert not stands_still(waits, decisions=0)


def test_a_trial_trains_on_if_nobody_could_use_its_place_and_it_is_judged_again():
    idle = ("auto", Waits.DECISIONS)
    assert while_it_waits(*idle) is Way.TRAIN
    assert while_it_waits(*idle, decides_again=lambda: False) is Way.KEEP
    assert while_it_waits(*idle, synchronous=True) is Way.KEEP
    assert while_it_waits(*idle, decisions=2) is Way.KEEP, "its next one is due"


@pytest.mark.parametrize(
    ("on_pending", "known"),
    [
        ("wait", {}),
        ("auto", {"new_trials": True}),
        ("auto", {"decisions": 2}),
        ("auto", {"synchronous": True}),
        ("auto", {"squeezed": True}),
    ],
)
def test_the_schedulers_books_are_opened_only_if_that_matters(on_pending, known):
    known["decides_again"] = lambda: pytest.fail("opened")
    assert while_it_waits(on_pending, Waits.DECISIONS, **known) is not Way.TRAIN


def test_what_a_trial_does_in_each_case():
    for on_pending, waits in itertools.product(ON_PENDING, Waits):
        for squeezed, ready, new_trials, handed_over in itertools.product((False, True), repeat=4):
            way = while_it_waits(
                on_pending,
                waits,
                squeezed=squeezed,
                ready=ready,
                new_trials=new_trials,
                handed_over=handed_over,
            )
            if squeezed:
                assert way is Way.RELEASE, "else no validation could run"
            elif ready and handed_over:
                assert way is Way.SWAP, "else it would never get its turn"
            elif ready or new_trials:
                swaps = on_pending == "wait" or waits is Waits.DECISIONS
                assert way is (Way.SWAP if handed_over and swaps else Way.KEEP)
            else:
                assert way is (Way.TRAIN if on_pending == "auto" else Way.KEEP)


def test_a_trial_that_keeps_validations_from_starting_pauses_unless_it_could_not_go_on():
    assert [when_starved(waits, resumes=False) for waits in Waits] == [
        Way.RELEASE,
        Way.RELEASE,
        Way.TRAIN,
    ]
    assert {when_starved(waits, resumes=True) for waits in Waits} == {Way.RELEASE}
