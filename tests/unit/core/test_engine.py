"""Given events, the state: what each kind of event changes, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.broken import broken
from tunekit.core.commands import (
    Ask,
    Cancel,
    Command,
    Deliver,
    Fold,
    NoteFailure,
    Notify,
    PassOver,
    Validate,
)
from tunekit.core.delivery import Completion, Scored
from tunekit.core.engine import Engine, Hears, JudgedBy
from tunekit.core.events import (
    CheckpointSaved,
    Decided,
    Event,
    Reminded,
    Reported,
    ScoreDelivered,
    TrialEnded,
    TrialFailed,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
)
from tunekit.core.retention import for_validation
from tunekit.core.validation import Request


def reported(iteration: int, generation: int = 0, trial: str = "a") -> Reported:
    report = {"training_iteration": iteration, "generation": generation, "loss": 1.0}
    config = {"lr": 1 + generation}
    return Reported(trial_id=trial, report={**report, "config": config}, offered=True)


def named(iteration: int, generation: int = 0, run: int = 1, trial: str = "a") -> dict[str, Any]:
    place = {"generation": generation, "iteration": iteration, "run": run}
    return {"trial_id": trial, "id": f"{trial}:{generation}:{iteration}:{run}", **place}


def saved(iteration: int, **where: Any) -> CheckpointSaved:
    return CheckpointSaved(**named(iteration, **where), checkpoint=f"/sweep/c{iteration}")


def requested(iteration: int, **where: Any) -> ValidationRequested:
    return ValidationRequested(**named(iteration, **where), checkpoint=f"/sweep/c{iteration}")


def ended(iteration: int, score: float | None = 0.5, **where: Any) -> ValidationEnded:
    name = named(iteration, **where)["id"]
    if score is None:
        return ValidationEnded(id=name, status="failed", reason="raised X")
    return ValidationEnded(id=name, status="validated", metrics={"accuracy": score}, ran_s=2.0)


def delivered(iteration: int, decision: str = "CONTINUE", generation: int = 0) -> ScoreDelivered:
    place = {"generation": generation, "iteration": iteration}
    return ScoreDelivered(
        trial_id="a", id=f"a:{generation}:{iteration}:1", **place, decision=decision
    )


def one(iteration: int) -> list[Event]:
    return [reported(iteration), saved(iteration), requested(iteration), ended(iteration)]


def after(*events: Event, when: int | str = 1) -> Engine:
    state = Engine(when)
    state.apply(JudgedBy(frozenset({"accuracy"})))
    for event in events:
        state.apply(event)
        assert list(broken(state)) == []
    return state


def due(state: Engine) -> float | str | None:
    found = state.delivery.due("a")
    if isinstance(found, Completion):
        return "end"
    return found.result["accuracy"] if isinstance(found, Scored) else None


def asked(commands: Iterable[Command]) -> list[Request]:
    return [one.request for one in commands if isinstance(one, Ask)]


def test_a_checkpoint_is_owed_a_validation_if_it_is_chosen():
    state = after(reported(1))
    [request] = asked(state.apply(saved(1)))
    assert (request.path, request.config) == ("/sweep/c1", {"lr": 1})
    assert request.report == reported(1).report
    assert state.has_saved and state.record("a").saved == (0, 1, 1)
    state = after(reported(1), when=2)
    assert not asked(state.apply(saved(1)))
    state.apply(reported(2))
    assert [request.iteration for request in asked(state.apply(saved(2)))] == [2]


@pytest.mark.parametrize(
    "stop",
    [
        delivered(1, "STOP"),
        Decided(trial_id="a", decision="STOP"),
        Reminded(trial_id="a", iteration=1, decision="STOP"),
        TrialEnded(trial_id="a", removed=True),
    ],
)
def test_a_trial_that_was_stopped_has_no_more_scores_due(stop):
    state = after(*one(1))
    state.apply(stop)
    for event in one(2):
        state.apply(event)
    state.apply(TrialEnded(trial_id="a"))
    assert due(state) == "end"


def test_the_score_of_a_report_that_ends_its_trial_goes_with_the_end_though_a_former_run_went_on():
    state = after(reported(1), reported(2), TrialFailed(trial_id="a"), TrialRetried(trial_id="a"))
    state.apply(msgspec.structs.replace(reported(2), offered=False))
    for event in (saved(2, run=2), requested(2, run=2), ended(2, run=2)):
        state.apply(event)
    assert due(state) is None
    state.apply(TrialEnded(trial_id="a"))
    assert due(state) == "end" and state.delivery.end("a").result["accuracy"] == 0.5


def notified(commands: Iterable[Command]) -> list[int]:
    return [one.outcome.request.iteration for one in commands if isinstance(one, Notify)]


def test_loggers_are_notified_once_it_is_known_which_names_are_validations():
    state = after(*one(1)[:-1], *one(2)[:-1])
    loss = ValidationEnded(id="a:0:1:1", status="validated", metrics={"loss": 0.5})
    assert notified(state.apply(loss)) == [], "accuracy may be validation's or training's"
    assert notified(state.apply(ended(2))) == [1, 2]


def test_loggers_are_not_notified_of_a_run_that_was_repeated():
    state = after(*one(1)[:-1], *one(2)[:-1], reported(1), saved(1, run=2), requested(1, run=2))
    assert notified(state.apply(ended(1))) == notified(state.apply(ended(2))) == []
    again = [one.outcome.request for one in state.apply(ended(1, run=2)) if isinstance(one, Notify)]
    assert [(request.iteration, request.run) for request in again] == [(1, 2), (2, 1)]


def test_a_score_is_folded_and_logged_before_it_is_delivered_and_a_failure_noted():
    state = after(*one(1)[:-1])
    assert [type(one) for one in state.apply(ended(1))] == [Fold, Notify, Deliver]
    state = after(*one(1)[:-1])
    followed = [type(one) for one in state.apply(ended(1, None))]
    assert followed == [NoteFailure, Deliver] and not list(state.leases), "nobody waits for it"


def test_what_is_due_is_delivered_in_order_once_it_is_known_which_names_are_validations():
    asked = [*one(1)[:-1], reported(1, trial="b"), saved(1, trial="b"), requested(1, trial="b")]
    state = after(*asked)
    loss = ValidationEnded(id="b:0:1:1", status="validated", metrics={"loss": 0.5})
    assert told_to_deliver(state.apply(loss)) == [], "accuracy may be validation's or training's"
    assert told_to_deliver(state.apply(Hears("c"))) == []
    assert told_to_deliver(state.apply(ended(1))) == ["b", "c", "a"]
    assert told_to_deliver(state.apply(Hears("c"))) == ["c"]
    assert told_to_deliver(state.apply(TrialEnded(trial_id="b"))) == ["b"]


def told_to_deliver(commands: Iterable[Command]) -> list[str]:
    return [one.trial_id for one in commands if isinstance(one, Deliver)]


def test_a_run_that_decides_nothing_holds_up_no_score_as_the_one_before_did():
    used = [msgspec.structs.replace(saved(n), used=True) for n in (1, 2)]
    first = [reported(1), used[0], requested(1), reported(2), used[1], requested(2), ended(2)]
    state = after(JudgedBy(frozenset({"accuracy"}), all_count=False), *first, reported(1))
    assert due(state) is None, "iteration 1 has not ended"
    again = state.apply(saved(1, run=2)) + state.apply(requested(1, run=2))
    assert told_to_deliver(again) == ["a"] and due(state) == 0.5


def test_a_score_without_a_metric_to_judge_by_is_passed_over_as_soon_as_that_is_known():
    loss = ValidationEnded(id="a:0:2:1", status="validated", metrics={"loss": 0.5})
    state = after(*one(1), *one(2)[:-1])
    assert not [one for one in state.apply(loss) if isinstance(one, PassOver)], "1 goes first"
    [passed] = [one for one in state.apply(delivered(1)) if isinstance(one, PassOver)]
    assert passed.scored.iteration == 2 and state.lacks(passed.scored.result) == ["accuracy"]
    assert due(state) is None and not state.delivery.waits("a") and not list(state.leases)


@pytest.mark.parametrize("when", ["auto", "decisions"])
def test_the_last_checkpoint_of_a_trial_is_validated_and_kept_until_its_score_is_delivered(when):
    state = Engine(when)
    state.apply(JudgedBy(frozenset({"accuracy"})))
    for event in (reported(1), saved(1), reported(2), saved(2), reported(3)):
        assert asked(state.apply(event)) == []
    assert [one.path for one in asked(state.apply(TrialEnded(trial_id="a")))] == ["/sweep/c2"]
    for event in (requested(2), ended(2)):
        state.apply(event)
        assert "/sweep/c2" in state.leases and list(broken(state)) == [], event
    state.apply(delivered(2))
    assert not list(state.leases) and list(broken(state)) == []


@pytest.mark.parametrize(
    ("when", "between"),
    [
        ("requested", []),
        ("auto", [msgspec.structs.replace(saved(2), wish=False)]),
        ("auto", [Decided(trial_id="a", decision="STOP")]),
    ],
)
def test_no_other_last_checkpoint_is_validated(when, between):
    state = after(when=when)
    for event in (reported(1), saved(1), *between, TrialEnded(trial_id="a")):
        assert asked(state.apply(event)) == []


def stopped_but_open(state: Engine) -> None:
    state.rejected["b"] = None


@pytest.mark.parametrize(
    ("events", "fault", "said"),
    [
        (
            one(1),
            lambda state: state.leases.release(for_validation("a:0:1:1")),
            "c1 may be deleted, though it is needed",
        ),
        (
            one(1),
            lambda state: state.leases.take(for_validation("a:0:7:1"), "/sweep/c7", "a"),
            "c7 is kept, though it is not needed",
        ),
        (one(1), stopped_but_open, "trial b was stopped by its scheduler, and may be delivered"),
        (
            [*one(1), delivered(1)],
            lambda state: state.apply(delivered(1)),
            "at 1 was delivered twice, or too late",
        ),
        (
            [reported(1), msgspec.structs.replace(saved(1), used=True), requested(1), *one(2)],
            lambda state: state.apply(delivered(2)),
            "trial a is decided on at 2, before its score at 1",
        ),
    ],
)
def test_a_broken_rule_is_named(events, fault, said):
    state = after(*events)
    fault(state)
    assert any(said in one for one in broken(state))


def test_nothing_is_left_behind_until_it_is_known_which_names_are_validations():
    asked = [*one(1)[:-1], *one(2)[:-1], *one(3)[:-1]]
    loss = ValidationEnded(id="a:0:2:1", status="validated", metrics={"loss": 0.5})
    state = after(*asked, loss)
    state.apply(ended(1, None))
    assert list(state.leases) == ["/sweep/c1", "/sweep/c2", "/sweep/c3"]
    assert state.delivery.waits("a")
    state.apply(ended(3))
    assert list(state.leases) == ["/sweep/c3"], "2 is passed over"


def test_validations_of_a_trial_that_was_stopped_early_are_cancelled():
    assert Cancel("a") in after(*one(1)).apply(delivered(1, "STOP"))
    finished = msgspec.structs.replace(delivered(1, "STOP"), finished=True)
    assert Cancel("a") not in after(*one(1)).apply(finished)


def test_a_restored_sweep_does_what_was_asked_for_or_is_owed_and_has_not_ended():
    events = [reported(1), saved(1), requested(1), reported(2), saved(2), requested(2)]
    state = after(*events, ended(1), reported(3), saved(3))
    validate, ask = state.reconcile()
    assert isinstance(ask, Ask) and ask.request.iteration == 3
    unfinished = state.backlog.unfinished
    assert validate == Validate(unfinished["a:0:2:1"], again=True)
    assert state.apply(requested(3)) == [Validate(unfinished["a:0:3:1"], again=True)]
    state.apply(Decided(trial_id="a", decision="STOP"))
    assert state.reconcile()[-1] == Cancel("a")


def test_a_restored_sweep_notifies_of_nothing_that_a_former_session_may_have_notified_of():
    events = [reported(1), saved(1), requested(1), reported(2), saved(2), requested(2)]
    loss = ValidationEnded(id="a:0:1:1", status="validated", metrics={"loss": 0.5})
    state = after(*events, loss)
    state.reconcile()
    assert notified(state.apply(ended(2))) == [2]
