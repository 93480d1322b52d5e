from __future__ import annotations

import pytest

from tunekit.core.room import Loans


def test_a_validation_runs_in_the_place_of_its_own_trial_if_that_can_be_had():
    loans = Loans()
    assert loans.take("b:0:1:1#1", of="b", lenders=["a", "b"]) == "b"
    assert loans.take("c:0:1:1#1", of="c", lenders=["a", "d"]) == "a"
    assert [trial for trial in "abcd" if loans.lends(trial)] == ["a", "b"]


@pytest.mark.parametrize(
    ("in_flight", "lent", "others_wait", "wanted"),
    [
        (0, 0, False, 3),
        (2, 0, False, 3),  # nobody else could use the places
        (0, 0, True, 3),
        (2, 0, True, 1),  # two of the three wait for one validation each
        (3, 0, True, 0),
        (4, 2, True, 1),  # those in the place of trials make nobody wait
    ],
)
def test_a_place_that_a_trial_could_use_is_taken_only_for_who_would_wait_long(
    in_flight, lent, others_wait, wanted
):
    loans = Loans()
    for n in range(lent):
        loans.take(f"t{n}:0:1:1#1", of=f"t{n}", lenders=[f"t{n}"])
    assert loans.wanted(deciding=3, in_flight=in_flight, others_wait=others_wait) == wanted


def test_a_place_is_given_back_when_its_validation_has_ended():
    loans = Loans()
    for trial in "ab":
        loans.take(f"{trial}:0:1:1#1", of=trial, lenders=[trial])
    loans.settle(still_runs=lambda attempt_id: attempt_id.startswith("a"))
    assert (loans.lends("a"), loans.lends("b"), len(loans)) == (True, False, 1)
