"""Whether a confirmation still counts when the sweep has gone on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.core.test_timeline import added, requested, told, validated
from tunekit.core.confirmation import (
    Candidate,
    Confirmed,
    confirmation_that_counts,
    is_outdated,
    winning_score,
)

WINNER, SECOND = Candidate("a", 0, 2, 0.9), Candidate("a", 0, 1, 0.8)
CONFIRMED = Confirmed(
    function="evaluate",
    metric="accuracy",
    mode="max",
    by="trial",
    asked=0.95,
    winner=WINNER,
    certain=True,
    sure=0.95,
    contenders=(WINNER,),
    candidates=(WINNER, SECOND),
    began=10.0,
)
BEFORE = [added(), *validated(1, 1.0, 0.7), *validated(2, 2.0, 0.8)]


@pytest.mark.parametrize(
    ("at", "accuracy", "outdated"),
    [(11.0, 0.75, True), (11.0, 0.7, False), (11.0, 0.6, False), (5.0, 0.99, False)],
)
def test_it_is_outdated_by_what_is_better_than_the_worst_candidate(at, accuracy, outdated):
    timeline = told(*BEFORE, *validated(3, at, accuracy))
    assert is_outdated(CONFIRMED, timeline) == outdated
    counts = confirmation_that_counts(CONFIRMED, timeline, "accuracy", "max", "trial")
    assert counts == (None if outdated else CONFIRMED)


def test_it_is_outdated_by_what_is_smaller_if_small_values_are_better():
    confirmed = replace(CONFIRMED, mode="min")
    assert is_outdated(confirmed, told(*BEFORE, *validated(3, 11.0, 0.75)))
    assert not is_outdated(confirmed, told(*BEFORE, *validated(3, 11.0, 0.85)))


@pytest.mark.parametrize("asked", [("loss", "max", "trial"), ("accuracy", "min", "trial")])
def test_a_confirmation_of_something_else_says_nothing(asked):
    assert confirmation_that_counts(CONFIRMED, told(*BEFORE), *asked) is None


def test_a_winner_whose_trial_is_unknown_or_has_run_that_again_has_no_score():
    scored = winning_score(CONFIRMED, told(*BEFORE))
    assert scored is not None and scored.value("accuracy") == 0.8
    assert winning_score(CONFIRMED, told()) is None
    gone = replace(CONFIRMED, winner=replace(WINNER, iteration=3))
    assert winning_score(gone, told(*BEFORE, requested(3, 3.0))) is None
