"""When a validation knows enough, and what is known of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit import Estimate, Sequential
from tunekit.core.commands import Validate
from tunekit.core.confidence import Interval
from tunekit.core.engine import Engine, JudgedBy
from tunekit.core.events import (
    CheckpointSaved,
    Reported,
    ValidationEnded,
    ValidationEstimated,
    ValidationRequested,
)
from tunekit.core.sequential import (
    Evidence,
    alike_by_rank,
    alike_by_value,
    gathered,
    spread,
)
from tunekit.errors import ConfigError

SCORES = st.integers(0, 9).map(float)


def estimate(mean: float, n: int) -> Estimate:
    return Estimate(mean, n, bounds=(0, 1))


@given(
    st.lists(SCORES),
    st.lists(SCORES, max_size=3),
    SCORES,
    SCORES,
    st.lists(st.integers(0, 9), max_size=2),
)
def test_a_rank_is_certain_only_if_no_missing_score_and_no_value_changes_it(
    others, missing, one, two, ranks
):
    low, high = sorted((one, two))
    if not alike_by_rank(Interval(low, high), others, ranks, missing=len(missing)):
        return
    values = [low, high, (low + high) / 2]
    classes = {
        tuple(sum(other < value for other in [*others, *missing]) >= rank for rank in ranks)
        for value in values
    }
    assert len(classes) == 1


@given(st.lists(SCORES, max_size=5), SCORES, SCORES, st.lists(st.integers(1, 9), max_size=2))
def test_a_rank_is_uncertain_only_if_two_values_differ(others, one, two, ranks):
    low, high = sorted((one, two))
    values = [low, high, *(other for other in others if low <= other <= high)]
    values += [value + 0.5 for value in values if value + 0.5 <= high]
    classes = {
        tuple(sum(other < value for other in others) >= rank for rank in ranks) for value in values
    }
    # At a tie the score may be on either side: which one, the scheduler's sorting decides.
    tie = any(low <= other <= high for other in others)
    assert alike_by_rank(Interval(low, high), others, ranks) or len(classes) > 1 or tie


def test_a_threshold_at_an_end_is_uncertain():
    assert not alike_by_value(Interval(0.5, 0.6), [0.6])
    assert not alike_by_value(Interval(0.5, 0.6), [0.5])
    assert alike_by_value(Interval(0.5, 0.6), [0.61, 0.49])


def test_the_least_number_of_examples_is_evaluated_however_clear_it_is():
    sequential = Sequential(min_examples=100, max_examples=1000)
    assert not sequential.is_enough(99, alike=lambda: True)
    assert sequential.is_enough(100, alike=lambda: True)
    assert not sequential.is_enough(999, alike=lambda: False)
    assert sequential.is_enough(1000, alike=lambda: False)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as error:
        Sequential(confidence=1.0, min_examples=0, max_examples=-3)
    assert len(error.value.problems) == 3
    with pytest.raises(ConfigError, match="max_examples=5 is less than min_examples=10"):
        Sequential(min_examples=10, max_examples=5)


def test_evidence_is_a_score_with_its_interval_and_its_examples():
    evidence = Evidence(0.95)
    evidence.take({"test": {"accuracy": estimate(0.8, 100)}, "note": "half"})
    first = evidence.score()["test"]
    evidence.take({"test": {"accuracy": estimate(0.81, 1000)}, "note": "all"})
    score = evidence.score()
    assert score["note"] == "all" and score["test"]["accuracy"] == 0.81
    assert score["test"]["accuracy_n"] == 1000 == evidence.examples("test/accuracy")
    assert first["accuracy_low"] <= score["test"]["accuracy_low"] < 0.81
    assert first["accuracy_high"] >= score["test"]["accuracy_high"] > 0.81


def test_what_was_yielded_last_may_be_returned_once_more():
    evidence = Evidence(0.95)
    evidence.take({"accuracy": estimate(0.8, 100)})
    evidence.take({"accuracy": estimate(0.8, 100)})
    with pytest.raises(ConfigError, match="must grow"):
        evidence.take({"accuracy": estimate(0.7, 50)})


def test_an_interval_that_says_nothing_is_not_shown():
    evidence = Evidence(0.95)
    evidence.take({"loss": Estimate(0.3, 5, variance=0.1)})
    assert evidence.score() == {"loss": 0.3, "loss_n": 5}


def state_with_a_request() -> Engine:
    state = Engine()
    state.apply(JudgedBy(frozenset({"accuracy"})))
    state.apply(Reported(trial_id="a", report={"training_iteration": 1}))
    state.apply(CheckpointSaved(trial_id="a", id="a:0:1:1", iteration=1, checkpoint="c"))
    state.apply(ValidationRequested(trial_id="a", id="a:0:1:1", iteration=1))
    return state


def test_a_restored_validation_knows_what_it_had_yielded():
    state = state_with_a_request()
    known = {"accuracy": estimate(0.8, 100)}
    event = ValidationEstimated.of("a:0:1:1#2", known, 7.0)
    assert (event.id, event.attempt, event.time) == ("a:0:1:1", 2, 7.0)
    state.apply(event)
    request = state.backlog.unfinished["a:0:1:1"]
    assert request.known == known and state.reconcile() == [Validate(request, again=True)]


@pytest.mark.parametrize(
    ("mode", "may"),
    [("max", [False, True, True]), ("min", [True, True, False]), (None, [True, True, True])],
)
def test_what_may_be_the_best_so_far_is_known(mode, may):
    state = state_with_a_request()
    names = frozenset({"accuracy"})
    state.apply(JudgedBy(names, objectives=dict.fromkeys(names, mode)))
    assert state.may_be_best("accuracy", Interval(0.0, 0.1)), "it is the first"
    ended = {"status": "validated", "metrics": {"accuracy": 0.5}}
    state.apply(ValidationEnded(id="a:0:1:1", **ended))
    intervals = [Interval(0.2, 0.4), Interval(0.4, 0.6), Interval(0.6, 0.8)]
    assert [state.may_be_best("accuracy", one) for one in intervals] == may


NAMES = st.sampled_from(["accuracy", "loss", "f1", "per_class"])
VALUES = st.one_of(
    st.floats(0, 1),
    st.text(max_size=3),
    st.builds(estimate, st.floats(0, 1), st.integers(1, 1000)),
)


BELOW = st.dictionaries(NAMES, VALUES, max_size=3)


@given(st.dictionaries(NAMES, VALUES | BELOW, max_size=3))
def test_a_score_is_gathered_again_from_what_it_was_spread_into(metrics):
    evidence = Evidence(0.95)
    evidence.take(metrics)
    known = {name: one.newest for name, one in evidence.sequences.items()}
    intervals = {name: one.interval for name, one in evidence.sequences.items()}
    assert gathered(spread(metrics, intervals), known) == metrics


@pytest.mark.parametrize(
    "mode, objectives, names, name, better",
    [
        ("max", {"accuracy"}, {"accuracy"}, "accuracy", "max"),
        ("max", {"accuracy"}, {"accuracy", "loss"}, "accuracy", "max"),
        ("max", {"accuracy"}, {"accuracy", "loss"}, "loss", None),  # the searcher's
        ("min", set(), {"loss"}, "loss", "min"),  # Tune says, and nobody else judges
        (None, set(), {"loss"}, "loss", None),
    ],
)
def test_which_values_are_better_is_known_of_what_the_scheduler_judges_by(
    mode, objectives, names, name, better
):
    judged_by = JudgedBy(frozenset(names), objectives=dict.fromkeys(objectives, mode), mode=mode)
    assert judged_by.better(name) == better
