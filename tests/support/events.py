"""Events of a trial, ``"a"`` unless another one is named, as a journal has them."""

from __future__ import annotations

from typing import Any

from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Processed,
    Reported,
    ValidationEnded,
    ValidationRequested,
    parse_event,
)


def event(kind: str, at: float, **known: Any) -> Event:
    return parse_event({"event": kind, "time": at, "trial_id": "a", **known})


def named(iteration: int, generation: int = 0, run: int = 1, trial: str = "a") -> dict[str, Any]:
    name, path = f"{trial}:{generation}:{iteration}:{run}", f"./f/c{iteration}-{run}"
    place = {"generation": generation, "iteration": iteration, "run": run}
    return {"trial_id": trial, "id": name, "checkpoint": path, **place}


def reported(
    iteration: int, at: float = 0.0, *, took: Any = 1.0, generation: int = 0, trial: str = "a"
) -> Event:
    report = {"training_iteration": iteration, "generation": generation, "time_this_iter_s": took}
    return Reported(time=at, trial_id=trial, report=report)


def saved(iteration: int, at: float = 0.0, *, validates: bool = False, **where: Any) -> Event:
    return CheckpointSaved(time=at, validates=validates, **named(iteration, **where))


def requested(iteration: int, at: float = 0.0, **where: Any) -> Event:
    return ValidationRequested(time=at, **named(iteration, **where))


def ended(iteration: int, at: float = 0.0, score: Any = 0.5, **where: Any) -> Event:
    metrics = score if isinstance(score, dict) else {"accuracy": score}
    known = {"id": named(iteration, **where)["id"], "metrics": metrics}
    return ValidationEnded(time=at, status="validated", ran_s=1.0, **known)


def processed(
    iteration: int, at: float = 0.0, decision: str = "CONTINUE", *, run: int = 1, **known: Any
) -> Event:
    place = named(iteration, known.pop("generation", 0), run, known.pop("trial", "a"))
    return Processed(time=at, decision=decision, **{"ranked": True, **place, **known})
