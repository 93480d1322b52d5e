"""Given events, the state: what each kind of event changes, and what follows from it."""

from __future__ import annotations

from msgspec import structs

from tests.support.events import ended, processed, reported, requested, saved
from tunekit.core.events import (
    Event,
    Exploited,
    SessionCutShort,
    StopRequested,
    TrialEnded,
    TrialErrored,
    TrialFailed,
    TrialRetried,
)
from tunekit.core.state import SweepState


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


def after(*events: Event) -> SweepState:
    state = SweepState()
    state.require(["accuracy"])
    for event in events:
        state.apply(event)
    return state


def test_a_validation_ends_once():
    state = after(reported(1), saved(1, validates=True))
    state.apply(ended(1))
    state.apply(ended(1))
    assert state.ran_s == 1.0 and list(state.history.names) == ["accuracy"]


def test_a_metric_that_is_never_a_number_is_named():
    state = after(reported(1), saved(1, validates=True), ended(1, 0.0, float("nan")))
    assert state.unscored == {"accuracy"} and state.lacks({"loss": 1.0}) == ["accuracy"]
    for event in (reported(2), saved(2), requested(2), ended(2)):
        state.apply(event)
    assert state.unscored == set()


def test_a_checkpoint_that_the_scheduler_may_clone_is_kept_until_it_has_a_newer_one():
    state = after(processed(1, cloneable=True), processed(2))
    assert list(state.leases) == ["./f/c1-1"]
    state.apply(processed(3, cloneable=True))
    assert list(state.leases) == ["./f/c3-1"] and state.leases.pop_touched() == ["a"]
    state.apply(TrialEnded(trial_id="a"))
    assert list(state.leases) == []


def test_a_cloned_checkpoint_is_kept_until_tune_has_another_of_the_clone():
    state = after(processed(1, cloneable=True), exploited(1), TrialEnded(trial_id="a"))
    assert list(state.leases) == ["./f/c1-1"]
    clone = {"generation": 1, "trial": "b"}
    for event in (reported(2, **clone), saved(2, **clone)):
        state.apply(event)
    assert list(state.leases) == ["./f/c1-1"], "it may still be dropped"
    state.apply(processed(2, **clone))
    assert list(state.leases) == [] and "a" in state.leases.pop_touched()


def test_another_exploit_takes_the_place_of_the_first():
    state = after(exploited(1), exploited(2, generation=2))
    assert list(state.leases) == ["./f/c2-1"] and state.ancestry.generation("b") == 2
    state.apply(TrialErrored(trial_id="b"))
    assert list(state.leases) == []


def test_a_trial_is_stopped_by_hand_once():
    state = after(StopRequested(trial_id="a"))
    assert not state.can_stop("a") and state.can_stop("b")
    state.apply(TrialEnded(trial_id="a"))
    assert not state.stopping and not state.can_stop("a")
    state.apply(TrialRetried(trial_id="a"))
    assert state.can_stop("a")


def test_a_trial_that_was_cut_short_and_has_not_ended_continues_in_a_restore():
    cut = SessionCutShort(trial_ids=["a", "b"])
    assert after(cut, TrialEnded(trial_id="a")).cut_short == {"b"}


def test_a_trial_that_failed_restarts_once():
    failed = [TrialFailed(trial_id="a"), TrialErrored(trial_id="b")]
    assert after(*failed).failed == {"a": False, "b": True}
    assert after(*failed, TrialRetried(trial_id="a")).failed == {"b": True}


def test_a_report_whose_validation_failed_is_suspect_until_another_succeeds():
    """Also once Tune has processed it, and if it fails again."""
    failed = structs.replace(ended(1), status="failed")
    lines = [reported(1), saved(1, validates=True), failed, processed(1, ranked=False)]
    state = after(*lines, requested(1))
    assert not state.suspect and state.counts["failed"] == 0
    state.apply(failed)
    [report] = state.suspect.values()
    assert report.saved is not None and state.open.of("a") == []
    for event in (reported(2), saved(2, validates=True), ended(2)):
        state.apply(event)
    assert not state.suspect and state.counts == {"failed": 1, "validated": 1}


def test_a_validation_of_an_older_run_that_failed_is_not_suspect():
    lines = [reported(1), saved(1, validates=True), reported(1)]
    assert not after(*lines, structs.replace(ended(1), status="failed")).suspect
