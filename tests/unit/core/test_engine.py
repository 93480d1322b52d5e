"""Given events, the state: what each kind of event changes, and what follows from it."""

from __future__ import annotations

from tests.support.events import ended, processed, reported, requested, saved
from tunekit.core.engine import Engine
from tunekit.core.events import (
    Event,
    Exploited,
    StopRequested,
    TrialEnded,
    TrialErrored,
    TrialRetried,
)


def exploited(iteration: int, generation: int = 1, trial: str = "b") -> Exploited:
    return Exploited(
        trial_id=trial,
        generation=generation,
        reached=iteration,
        donor_id="a",
        donor_generation=0,
        iteration=iteration,
        checkpoint=f"./f/c{iteration}-1",
    )


def after(*events: Event) -> Engine:
    engine = Engine()
    engine.require(["accuracy"])
    for event in events:
        engine.apply(event)
    return engine


def test_a_validation_ends_once():
    engine = after(reported(1), saved(1, validates=True))
    engine.apply(ended(1))
    engine.apply(ended(1))
    assert engine.ran_s == 1.0 and list(engine.history.names) == ["accuracy"]


def test_a_metric_that_is_never_a_number_is_named():
    engine = after(reported(1), saved(1, validates=True), ended(1, 0.0, float("nan")))
    assert engine.unscored == {"accuracy"} and engine.lacks({"loss": 1.0}) == ["accuracy"]
    for event in (reported(2), saved(2), requested(2), ended(2)):
        engine.apply(event)
    assert engine.unscored == set()


def test_a_checkpoint_that_the_scheduler_may_clone_is_kept_until_it_has_a_newer_one():
    engine = after(processed(1, cloneable=True), processed(2))
    assert list(engine.leases) == ["./f/c1-1"]
    engine.apply(processed(3, cloneable=True))
    assert list(engine.leases) == ["./f/c3-1"] and engine.leases.pop_touched() == ["a"]
    engine.apply(TrialEnded(trial_id="a"))
    assert list(engine.leases) == []


def test_a_cloned_checkpoint_is_kept_until_tune_has_another_of_the_clone():
    engine = after(processed(1, cloneable=True), exploited(1), TrialEnded(trial_id="a"))
    assert list(engine.leases) == ["./f/c1-1"]
    clone = {"generation": 1, "trial": "b"}
    for event in (reported(2, **clone), saved(2, **clone)):
        engine.apply(event)
    assert list(engine.leases) == ["./f/c1-1"], "it may still be dropped"
    engine.apply(processed(2, **clone))
    assert list(engine.leases) == [] and "a" in engine.leases.pop_touched()


def test_another_exploit_takes_the_place_of_the_first():
    engine = after(exploited(1), exploited(2, generation=2))
    assert list(engine.leases) == ["./f/c2-1"] and engine.ancestry.generation("b") == 2
    engine.apply(TrialErrored(trial_id="b"))
    assert list(engine.leases) == []


def test_a_trial_is_stopped_by_hand_once():
    engine = after(StopRequested(trial_id="a"))
    assert not engine.can_stop("a") and engine.can_stop("b")
    engine.apply(TrialEnded(trial_id="a"))
    assert not engine.stopping and not engine.can_stop("a")
    engine.apply(TrialRetried(trial_id="a"))
    assert engine.can_stop("a")
