"""The state of a sweep is the sum of its events: leases, failures, stops and suspect reports."""

from __future__ import annotations

from msgspec import structs

from tests.support.events import ended, processed, reported, requested, saved
from tunekit.core.events import (
    Event,
    Exploited,
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
    state.required |= {"accuracy"}
    return apply(state, *events)


def apply(state: SweepState, *events: Event) -> SweepState:
    for event in events:
        state.apply(event)
    return state


def test_metric_is_unscored_until_a_validation_returns_a_number_for_it():
    state = after(reported(1), saved(1, validates=True), ended(1, 0.0, float("nan")))
    assert state.unscored == {"accuracy"} and state.lacks({"loss": 1.0}) == ["accuracy"]
    apply(state, reported(2), saved(2), requested(2), ended(2))
    assert state.unscored == set()


def test_cloneable_checkpoint_is_leased_until_its_trial_has_a_newer_one_or_ends():
    state = after(processed(1, cloneable=True), processed(2))
    assert list(state.leases) == ["./f/c1-1"]
    state.apply(processed(3, cloneable=True))
    assert list(state.leases) == ["./f/c3-1"] and state.leases.pop_touched() == ["a"]
    state.apply(TrialEnded(trial_id="a"))
    assert list(state.leases) == []


def test_donor_checkpoint_is_leased_until_tune_has_processed_one_of_the_clone():
    state = after(processed(1, cloneable=True), exploited(1), TrialEnded(trial_id="a"))
    assert list(state.leases) == ["./f/c1-1"]
    clone = {"generation": 1, "trial": "b"}
    apply(state, reported(2, **clone), saved(2, **clone))
    assert list(state.leases) == ["./f/c1-1"], "it may still be dropped"
    state.apply(processed(2, **clone))
    assert list(state.leases) == [] and "a" in state.leases.pop_touched()


def test_second_exploit_replaces_the_lease_of_the_first_until_the_clone_ends():
    state = after(exploited(1), exploited(2, generation=2))
    assert list(state.leases) == ["./f/c2-1"] and state.ancestry.generation("b") == 2
    state.apply(TrialErrored(trial_id="b"))
    assert list(state.leases) == []


def test_trial_can_be_stopped_by_hand_once_and_again_after_a_retry():
    state = after(StopRequested(trial_id="a"))
    assert not state.can_stop("a") and state.can_stop("b")
    state.apply(TrialEnded(trial_id="a"))
    assert not state.stopping and not state.can_stop("a")
    state.apply(TrialRetried(trial_id="a"))
    assert state.can_stop("a")


def test_failed_trial_is_recorded_as_errored_or_restarting_until_retried():
    failed = [TrialFailed(trial_id="a"), TrialErrored(trial_id="b")]
    assert after(*failed).failed == {"a": False, "b": True}
    assert after(*failed, TrialRetried(trial_id="a")).failed == {"b": True}


def test_report_whose_validation_failed_is_suspect_until_another_validation_succeeds():
    """Also once Tune has processed it, and if it fails again."""
    failed = structs.replace(ended(1), status="failed")
    lines = [reported(1), saved(1, validates=True), failed, processed(1, ranked=False)]
    state = after(*lines, requested(1))
    assert not state.suspect and state.counts["failed"] == 0
    state.apply(failed)
    [report] = state.suspect.values()
    assert report.saved is not None and state.open.of("a") == []
    apply(state, reported(2), saved(2, validates=True), ended(2))
    assert not state.suspect and state.counts == {"failed": 1, "validated": 1}


def test_failed_validation_of_an_older_run_of_an_iteration_makes_no_report_suspect():
    lines = [reported(1), saved(1, validates=True), reported(1)]
    assert not after(*lines, structs.replace(ended(1), status="failed")).suspect
