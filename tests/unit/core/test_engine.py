"""Given events, the state: what each kind of event changes, and what follows from it."""

from __future__ import annotations

from typing import Any

from tunekit.core.engine import Engine
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    Processed,
    Reported,
    StopRequested,
    TrialEnded,
    TrialErrored,
    TrialRetried,
    ValidationEnded,
    ValidationRequested,
)


def reported(iteration: int, generation: int = 0, trial: str = "a") -> Reported:
    report = {"training_iteration": iteration, "generation": generation, "loss": 1.0}
    return Reported(trial_id=trial, report={**report, "config": {"lr": 1 + generation}})


def named(iteration: int, generation: int = 0, run: int = 1, trial: str = "a") -> dict[str, Any]:
    place = {"generation": generation, "iteration": iteration, "run": run}
    return {"trial_id": trial, "id": f"{trial}:{generation}:{iteration}:{run}", **place}


def saved(iteration: int, **where: Any) -> CheckpointSaved:
    return CheckpointSaved(**named(iteration, **where), checkpoint=f"/sweep/c{iteration}")


def requested(iteration: int, **where: Any) -> ValidationRequested:
    return ValidationRequested(**named(iteration, **where), checkpoint=f"/sweep/c{iteration}")


def ended(iteration: int, metrics: dict[str, Any] | None, **where: Any) -> ValidationEnded:
    name = named(iteration, **where)["id"]
    if metrics is None:
        return ValidationEnded(id=name, status="failed", reason="raised X", ran_s=1.0)
    return ValidationEnded(id=name, status="validated", metrics=metrics, ran_s=2.0)


def processed(iteration: int, *, generation: int = 0, trial: str = "a", **more: Any) -> Processed:
    place = {"generation": generation, "iteration": iteration}
    path = f"/sweep/c{iteration}"
    return Processed(trial_id=trial, id="", **place, checkpoint=path, ranked=True, **more)


def exploited(iteration: int, generation: int = 1, trial: str = "b") -> Exploited:
    return Exploited(
        trial_id=trial,
        generation=generation,
        reached=iteration,
        donor_id="a",
        donor_generation=0,
        iteration=iteration,
        checkpoint=f"/sweep/c{iteration}",
    )


def after(*events: Event) -> Engine:
    engine = Engine()
    engine.require(["accuracy"])
    for event in events:
        engine.apply(event)
    return engine


def test_a_validation_ends_once():
    engine = after(reported(1), saved(1), requested(1))
    engine.apply(ended(1, {"accuracy": 0.5}))
    engine.apply(ended(1, {"accuracy": 0.5}))
    assert engine.ran_s == 2.0 and list(engine.history.names) == ["accuracy"]


def test_a_metric_that_is_never_a_number_is_named():
    engine = after(reported(1), saved(1), requested(1), ended(1, {"accuracy": float("nan")}))
    assert engine.unscored == {"accuracy"} and engine.lacks({"loss": 1.0}) == ["accuracy"]
    for event in (reported(2), saved(2), requested(2), ended(2, {"accuracy": 0.5})):
        engine.apply(event)
    assert engine.unscored == set()


def test_a_checkpoint_that_the_scheduler_may_clone_is_kept_until_it_has_a_newer_one():
    engine = after(processed(1, cloneable=True), processed(2))
    assert list(engine.leases) == ["/sweep/c1"]
    engine.apply(processed(3, cloneable=True))
    assert list(engine.leases) == ["/sweep/c3"] and engine.leases.pop_touched() == ["a"]
    engine.apply(TrialEnded(trial_id="a"))
    assert list(engine.leases) == []


def test_a_cloned_checkpoint_is_kept_until_tune_has_another_of_the_clone():
    engine = after(processed(1, cloneable=True), exploited(1), TrialEnded(trial_id="a"))
    assert list(engine.leases) == ["/sweep/c1"]
    clone = {"generation": 1, "trial": "b"}
    for event in (reported(2, **clone), saved(2, **clone)):
        engine.apply(event)
    assert list(engine.leases) == ["/sweep/c1"], "it may still be dropped"
    engine.apply(processed(2, **clone))
    assert list(engine.leases) == [] and "a" in engine.leases.pop_touched()


def test_another_exploit_takes_the_place_of_the_first():
    engine = after(exploited(1), exploited(2, generation=2))
    assert list(engine.leases) == ["/sweep/c2"] and engine.ancestry.generation("b") == 2
    engine.apply(TrialErrored(trial_id="b"))
    assert list(engine.leases) == []


def test_a_trial_is_stopped_by_hand_once():
    engine = after(StopRequested(trial_id="a"))
    assert not engine.can_stop("a") and engine.can_stop("b")
    engine.apply(TrialEnded(trial_id="a"))
    assert not engine.stopping and not engine.can_stop("a")
    engine.apply(TrialRetried(trial_id="a"))
    assert engine.can_stop("a")
