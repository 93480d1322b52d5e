"""Validations that end as soon as the scheduler would decide the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

import tunekit.scheduler as scheduler_module
from tests.schedulers import CASES, seed_all
from tests.sweeps import Endless, quality, sweep
from tunekit import Estimate, Sequential
from tunekit.core.confidence import Interval
from tunekit.core.validation import Attempt

MOST = 12.0  # no score is greater
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


def index_of(attempt: Attempt) -> int:
    return int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)


def exact(attempt: Attempt) -> Iterator[dict[str, Any]]:
    """Yield estimates that hit the mean, of more and more examples."""
    mean = quality(index_of(attempt), attempt.request.iteration)
    for n in SIZES:
        yield {"accuracy": Estimate(mean, n, bounds=(0, MOST))}


def in_full(attempt: Attempt) -> dict[str, float]:
    return {"accuracy": quality(index_of(attempt), attempt.request.iteration)}


def ran(tmp_path, name: str, validate: Any, on_pending: str = "hold", **options: Any) -> Any:
    case = CASES[name]
    seed_all(1)
    return sweep(
        tmp_path,
        case.make(tmp_path / "made"),
        on_pending=on_pending,
        validate=validate,
        validation_s=lambda attempt: 0.0,
        **{**case.options(), **options},
    )


def examples(ran: Any) -> list[int]:
    history = ran.validation.history
    return [m["accuracy_n"] for t in ran.trials for _, m in history.scores(t.trial_id)]


def seen(ran: Any) -> list[tuple[int, int, str]]:
    return [(trial, step, decision) for trial, step, _, decision in ran.heard.results]


# BOHB resumes trials in an order that depends on when they paused.
@pytest.mark.parametrize("name", [name for name in CASES if name != "bohb"])
def test_with_exact_estimates_every_scheduler_decides_as_with_full_validations(tmp_path, name):
    """One trial runs at a time: how long validations take changes nothing about the order."""
    full = ran(tmp_path / "full", name, in_full, slots=1)
    few = ran(tmp_path / "few", name, exact, slots=1)
    assert seen(few) == seen(full)
    assert few.lengths() == full.lengths()
    assert not few.executor.cancelled


@pytest.mark.parametrize("name", ["asha", "hyperband", "pbt", "promotion", "median"])
def test_fewer_examples_are_evaluated(tmp_path, name):
    few = ran(tmp_path, name, exact)
    used = examples(few)
    assert len(few.executor.enough) > 0
    assert sum(used) < 0.8 * len(used) * SIZES[-1]
    assert min(used) >= Sequential().min_examples


class Checked:
    """Compares what a scheduler's rule says of an interval with what copies of it decide."""

    def __init__(self, certainty: Any):
        self.certainty, self.rule = certainty, certainty.decides_alike
        self.said: list[bool] = []
        self.missed: list[tuple[str, Interval]] = []

    def decides_alike(
        self, stand_in: Any, at: float, report: Any, metric: str, interval: Interval
    ) -> bool:
        alike = self.rule(stand_in, at, report, metric, interval)
        middle = (interval.low + interval.high) / 2
        draws = [random.Random(len(self.said)).uniform(*interval) for _ in range(2)]
        decided = [
            self.certainty.decided(stand_in.trial_id, {**report, metric: score})
            for score in (*interval, middle, *draws)
        ]
        assert decided[0] is not None, "the scheduler was copied"
        self.said.append(alike)
        if alike and any(one != decided[0] for one in decided):
            self.missed.append((stand_in.trial_id, interval))
        return alike


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("pb2")])
def test_copies_of_the_scheduler_decide_alike_wherever_its_rule_says_so(
    tmp_path, monkeypatch, name
):
    checked: list[Checked] = []
    made = scheduler_module.Certainty

    def make(*args: Any) -> Any:
        certainty = made(*args)
        checked.append(Checked(certainty))
        certainty.decides_alike = checked[0].decides_alike
        return certainty

    monkeypatch.setattr(scheduler_module, "Certainty", make)
    ran(tmp_path, name, exact)
    [checks] = checked
    assert not checks.missed
    if name not in ("fifo", "pbt-replay"):
        assert any(checks.said)


class Picky(ASHAScheduler):
    """A scheduler that nobody knows: it stops what is below 2 at its third iteration."""

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        low = result["training_iteration"] == 3 and result["accuracy"] < 2
        return TrialScheduler.STOP if low else TrialScheduler.CONTINUE


def test_a_scheduler_that_is_not_known_is_asked_as_a_copy(tmp_path):
    def run(validate):
        base = Picky(max_t=9, grace_period=1)
        return sweep(
            tmp_path / validate.__name__,
            base,
            on_pending="hold",
            validate=validate,
            validation_s=lambda attempt: 0.0,
            slots=1,
        )

    full, few = run(in_full), run(exact)
    assert seen(few) == seen(full)
    assert "STOP" in {decision for *_, decision in seen(few)}
    by_step: dict[int, list[int]] = {}
    for trial in few.trials:
        for (_, step), metrics in few.validation.history.scores(trial.trial_id):
            by_step.setdefault(step, []).append(metrics["accuracy_n"])
    # At the others it decides alike, and only what may be the best so far goes on.
    assert sum(by_step[3]) / len(by_step[3]) > 1_000


def test_without_a_decision_to_make_what_may_be_the_best_is_evaluated_in_full(tmp_path):
    few = sweep(tmp_path, FIFOScheduler(), validate=exact, on_pending="hold")
    scores = [
        (m["accuracy"], m["accuracy_n"])
        for t in few.trials
        for _, m in few.validation.history.scores(t.trial_id)
    ]
    assert max(scores)[1] == SIZES[-1]
    assert min(n for _, n in scores) < SIZES[-1]


def test_an_attempt_that_yields_nonsense_fails_once_and_is_not_tried_again(tmp_path):
    def validate(attempt):
        yield {"accuracy": Estimate(0.5, 100, bounds=(0, 1))}
        yield {"accuracy": Estimate(0.5, 50, bounds=(0, 1))}

    made = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        trials=1,
        trainable=Endless,
        stop={"training_iteration": 2},
        on_pending="hold",
    )
    assert made.validation.summary()["failed"] == 2
    assert len(made.executor.started) == 2
    assert len(made.executor.enough) == 2, "its process is told to end it"


def test_another_attempt_goes_on_from_what_was_yielded(tmp_path):
    given = []

    def validate(attempt):
        given.append({name: one.n for name, one in attempt.request.known.items()})
        if attempt.number == 1:
            yield {"accuracy": Estimate(0.5, 100, bounds=(0, 1))}
            raise RuntimeError("lost")
        yield {"accuracy": Estimate(0.5, 1_000_000, bounds=(0, 1))}

    made = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        trials=1,
        stop={"training_iteration": 1},
        on_pending="hold",
        settings={"sequential": Sequential(min_examples=1_000)},
    )
    assert given == [{}, {"accuracy": 100}]
    assert made.validation.summary()["validated"] == 1


def test_a_stopping_criterion_is_decided_by_more_examples(tmp_path):
    made = sweep(
        tmp_path, FIFOScheduler(), validate=exact, on_pending="hold", stop={"accuracy": 5.0}
    )
    for trial in made.trials:
        scores = dict(made.validation.history.scores(trial.trial_id))
        for metrics in scores.values():
            assert not metrics["accuracy_low"] < 5.0 < metrics["accuracy_high"] or (
                metrics["accuracy_n"] == SIZES[-1]
            )
