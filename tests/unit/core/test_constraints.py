"""Constraints: feasible scores before infeasible ones, and these by how far they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tunekit
from tunekit.core.constraints import Constraint, penalized_value, violation
from tunekit.core.values import finite_number
from tunekit.errors import ConfigError

LIMITS = [Constraint("latency_ms <= 20"), Constraint("eval/recall >= 0.5")]
values = st.floats(-1e6, 1e6)
scores = st.fixed_dictionaries({"accuracy": values, "latency_ms": values, "eval/recall": values})


def deb(one, other, mode):
    """Whether a score is better than another, as the paper has it."""
    broken, others = violation(one, LIMITS), violation(other, LIMITS)
    if broken or others:
        return broken < others
    return (
        one["accuracy"] > other["accuracy"]
        if mode == "max"
        else one["accuracy"] < other["accuracy"]
    )


@given(scores, scores, st.sampled_from(["min", "max"]))
def test_who_knows_nothing_of_constraints_ranks_by_them(one, other, mode):
    mine, theirs = (
        penalized_value(s["accuracy"], mode, violation(s, LIMITS)) for s in (one, other)
    )
    better = mine > theirs if mode == "max" else mine < theirs
    worse = mine < theirs if mode == "max" else mine > theirs
    assert finite_number(mine) == mine
    # Differences of violations may be lost to rounding, never turned round.
    assert not (better and deb(other, one, mode)) and not (worse and deb(one, other, mode))
    if (violation(one, LIMITS) == 0) != (violation(other, LIMITS) == 0):
        assert better == deb(one, other, mode)


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=50))
def test_means_and_differences_of_what_is_infeasible_are_finite(by):
    told = [penalized_value(0.5, "max", one) for one in [*by, math.inf]]
    assert math.isfinite(sum(told)) and math.isfinite(max(told) - min(told))


@pytest.mark.parametrize("metrics", [{}, {"latency_ms": "fast"}, {"latency_ms": math.nan}])
def test_what_is_not_known_to_hold_does_not(metrics):
    assert violation({"eval/recall": 0.9, **metrics}, LIMITS) == math.inf


@pytest.mark.parametrize(
    "text",
    ["", "latency_ms", "latency_ms < 20", "<= 20", "a <= b", "a <= inf", "a <= nan", "a == 1", 3],
)
def test_what_is_not_a_constraint_is_refused(text):
    with pytest.raises(ConfigError, match="Constraint: text="):
        Constraint(text)


def test_all_mistakes_in_constraints_are_in_one_error():
    with pytest.raises(ConfigError) as caught:
        tunekit.ValidationConfig(lambda checkpoint: {}, constraints=["a <= 1", 2], when=0)
    assert [f"constraints[{n}]=" in str(caught.value) for n in (0, 1)] == [True, True]
    assert "when=0" in str(caught.value)
