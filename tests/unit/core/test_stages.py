"""Given the events of a sweep: what a further stage has to validate, and what it keeps for that."""

from __future__ import annotations

from tests.unit.core.test_engine import delivered, ended, named, reported, requested, saved
from tunekit.core.commands import Command, Notify, Show
from tunekit.core.engine import Engine
from tunekit.core.events import (
    CheckpointSaved,
    Chosen,
    EndDelivered,
    Event,
    Exploited,
    TrialEnded,
    TrialErrored,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.retention import for_validation
from tunekit.core.stages import StageState
from tunekit.core.validation import Status


def after(every: int | str, *events: Event) -> tuple[StageState, list[Command]]:
    """Return a stage that was given events, and what has followed from the last one."""
    stage, commands = StageState("full", every, sweep := Engine()), list[Command]()
    for event in events:
        sweep.apply(event)
        commands = stage.apply(event)
        assert list(stage.backlog.broken()) == []
    return stage, commands


def used(iteration: int) -> CheckpointSaved:
    return CheckpointSaved(**named(iteration), checkpoint=f"/sweep/c{iteration}", used=True)


def owed(every: int | str, *events: Event) -> list[str]:
    return list(after(every, *events)[0].backlog.owed)


def test_a_trial_that_saves_only_as_it_ends_has_a_last_checkpoint():
    events = [reported(1), TrialEnded(trial_id="a"), saved(1)]
    assert owed("last", *events) == ["a:0:1:1:full"]
    assert owed("promoted", *events) == []


def test_what_is_validated_where_there_is_room_is_no_less_due_in_a_stage():
    """Else it would take the room of trials that wait."""
    optional = CheckpointSaved(**named(1), checkpoint="c", optional=True)
    stage, _ = after(1, reported(1), optional)
    assert [request.optional for request in stage.backlog.owed.values()] == [False]


def test_a_trial_that_was_stopped_early_is_not_promoted_by_ending_again_after_a_restore():
    stopped = [reported(1), used(1), requested(1), ended(1), delivered(1, "STOP")]
    again = [TrialEnded(trial_id="a"), TrialRetried(trial_id="a"), TrialEnded(trial_id="a")]
    assert owed("promoted", *stopped, *again, EndDelivered(trial_id="a")) == []


def test_a_paused_trial_is_promoted_by_being_resumed():
    paused = [reported(1), used(1), requested(1), ended(1), delivered(1, "PAUSE")]
    assert owed("promoted", *paused) == []
    assert owed("promoted", *paused, Chosen(trial_id="a", runs=True)) == ["a:0:1:1:full"]


def test_what_is_owed_is_kept_until_it_has_ended_and_is_owed_once():
    name, events = "a:0:1:1:full", [reported(1), saved(1)]
    for requests in (False, True):
        backlog = after(1, *events)[0].backlog
        assert [one.id for one in backlog.pending("a")] == [name]
        assert list(backlog.unfinished) == [name] * requests
        assert list(backlog.owed) == [name] * (not requests)
        events.append(ValidationRequested(id=name, trial_id="a"))
    events[-1:] = [ValidationEnded(id=name, status="validated", metrics={"f1": 0.5})]
    stage, commands = after(1, *events)
    assert [type(command) for command in commands] == [Show, Notify]
    assert stage.backlog.counts == {Status.VALIDATED: 1} and not stage.backlog.pending("a")
    assert kept(stage, name) is None and owed(1, *events, saved(1)) == []


def kept(stage: StageState, name: str) -> str | None:
    return stage._engine.leases.held(for_validation(name))


def test_what_is_owed_of_weights_that_are_gone_is_dropped_and_what_was_requested_is_not():
    events = [reported(1), saved(1), reported(2), saved(2)]
    first = after(1, *events)[0].backlog.owed["a:0:1:1:full"]
    exploited = Exploited(
        trial_id="a",
        generation=1,
        reached=2,
        donor_id="b",
        donor_generation=0,
        iteration=1,
        checkpoint="b/c1",
    )
    for end in (exploited, TrialErrored(trial_id="a")):
        stage, _ = after(1, *events, ValidationRequested.of(first), end)
        assert (stage.backlog.owed, list(stage.backlog.unfinished)) == ({}, ["a:0:1:1:full"])
        assert kept(stage, "a:0:2:1:full") is None and kept(stage, "a:0:1:1:full") == "/sweep/c1"
