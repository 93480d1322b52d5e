"""A stopper that reads a validated metric gets validated results, each once and in order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    MaximumIterationStopper,
    TrialPlateauStopper,
)

import tunekit
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import killed_at_each
from tests.support.modes import Mode
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Endless
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in

pytestmark = pytest.mark.sampled(2)

every_way = pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED])
#: When a trial ends that nothing stops.
END = 12


class Net(Endless):
    """It reports an accuracy of its own, which is not validation's."""

    def step(self) -> dict[str, Any]:
        shown = {"accuracy": 0.99, "eval": {"accuracy": 0.99, "loss": 0.5}}
        return {**super().step(), **shown, "done": self.steps >= END}


class Quiet(Endless):
    """Report no accuracy."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "done": self.steps >= END}


def rises_to(most: int) -> Callable[[Attempt], dict[str, Any]]:
    """Scores of a tenth of the iteration, up to a plateau."""

    def validate(attempt: Attempt) -> dict[str, Any]:
        score = min(attempt.request.iteration, most) / 10
        return {"accuracy": score, "eval": {"accuracy": score}}

    return validate


def stopped_by(stop: Any, folder: Path, mode: Mode = Mode.WAIT, *, trials: int = 2) -> Plan:
    plan = Plan(folder, mode=mode, trials=trials).training(Net)
    return plan.validating(rises_to(4)).tuning(stop=stop)


def lengths(ran: Ran) -> set[int]:
    begun = (trial.last_result.get("training_iteration") for trial in ran.trials)
    return {length for length in begun if length is not None}


def stops(ran: Ran) -> set[int]:
    """Return the iterations at which a validated result stopped a trial."""
    events = read(ran.home)
    ranked = [event for event in events if event["event"] == "processed" and event["ranked"]]
    return {event["iteration"] for event in ranked if event["decision"] == "STOP"}


def plateau(metric: str = "accuracy") -> TrialPlateauStopper:
    return TrialPlateauStopper(metric, num_results=3, grace_period=3)


@every_way
@pytest.mark.parametrize(
    ("base", "trainable"),
    [(FIFOScheduler, Net), (lambda: ASHAScheduler(max_t=1000, grace_period=500), Quiet)],
    ids=["fifo", "asha"],
)
def test_trial_plateau_stopper_stops_a_trial_at_a_plateau_of_validation_scores(
    tmp_path, mode, base, trainable
):
    plan = replace(stopped_by(plateau(), tmp_path, mode), base=base())
    ran = plan.training(trainable).validating(seconds=1.5).run()
    assert stops(ran) == {6}, "0.4 at 4, 5 and 6"
    assert lengths(ran) == {6} or (mode is Mode.CONTINUE and max(lengths(ran)) < END)
    check_journal(events_in(ran.home))


def swallows(trial_id: str, result: dict[str, Any]) -> bool:
    try:
        return result["accuracy"] >= 0.3
    except Exception:
        return True


@pytest.mark.parametrize(
    "function",
    [
        lambda trial_id, result: result["accuracy"] >= 0.3,
        lambda trial_id, result: result["eval"]["accuracy"] >= 0.3,
        lambda trial_id, result: result.get("eval", {}).get("accuracy", 0) >= 0.3,
        lambda trial_id, result: result.get("accuracy", 0.0) >= 0.3,
        lambda trial_id, result: "accuracy" in result and result["accuracy"] >= 0.3,
        functools.partial(lambda trial_id, result, least: result["accuracy"] >= least, least=0.3),
        swallows,
        lambda trial_id, result: {**result}["accuracy"] >= 0.3,
    ],
    ids=["item", "nested", "nested-get", "get", "in", "partial", "swallows-errors", "unpacks"],
)
@pytest.mark.parametrize("trainable", [Net, Quiet])
def test_function_that_reads_a_validated_metric_stops_a_trial_by_its_score(
    tmp_path, function, trainable
):
    assert stops(stopped_by(function, tmp_path).training(trainable).run()) == {3}


def either(trial_id: str, result: dict[str, Any]) -> bool:
    return result["accuracy"] >= 0.8 or result["training_iteration"] >= 7


def test_function_that_cannot_handle_a_missing_score_stops_no_trial_before_the_score(tmp_path):
    known = {0.2: False, 0.4: True}
    plan = stopped_by(lambda trial_id, row: known[row["accuracy"]], tmp_path)
    ran = plan.training(saves=tunekit.EveryIterations(2)).run()
    assert stops(ran) == lengths(ran) == {4}


@every_way
def test_function_of_score_and_iteration_stops_at_the_first_that_is_reached(tmp_path, mode):
    plan = stopped_by(either, tmp_path / "report", mode)
    plan = plan.training(saves=tunekit.EveryIterations(4))
    ran = plan.run()
    assert lengths(ran) == {7} and stops(ran) == set(), "0.4 at 4; 7 has no checkpoint"
    plan = replace(plan, folder=tmp_path / "first")
    assert stops(plan.validating(lambda attempt: {"accuracy": 0.9}).run()) == {4}


@pytest.mark.parametrize(
    "stop",
    [
        lambda trial_id, result: not result["accuracy"] < 0.8,
        lambda trial_id, result: not -1.0 < result["accuracy"] < 0.8,
        lambda trial_id, result: result["accuracy"] < 0.1 or result["accuracy"] > 0.9,
        lambda trial_id, result: result["accuracy"] >= 0.8 or result["training_iteration"] > 99,
    ],
    ids=["not-below", "not-between", "not-within", "or-iteration"],
)
def test_condition_that_depends_on_the_score_does_not_stop_a_trial_before_its_score(tmp_path, stop):
    ran = stopped_by(stop, tmp_path).training(saves=tunekit.EveryIterations(4)).run()
    assert min(lengths(ran)) >= 8, "0.4 at 4, 0.8 at 8"


def test_stopper_of_training_metrics_stops_a_trial_at_its_report(tmp_path):
    stop = tune.stopper.FunctionStopper(lambda _, r: r["eval"]["loss"] < 1 and r["loss"] < 0.3)
    plan = stopped_by([stop], tmp_path).training(saves=tunekit.EveryIterations(3))
    ran = plan.validating(lambda attempt: {"accuracy": 0.1}).run()
    assert lengths(ran) == {4} and stops(ran) == set()


@pytest.mark.parametrize(
    "combined", [list, lambda parts: CombinedStopper(*parts)], ids=["list", "CombinedStopper"]
)
def test_several_stoppers_stop_a_trial_at_the_first_condition_reached(tmp_path, combined):
    stop = combined([plateau(), MaximumIterationStopper(9)])
    ran = stopped_by(stop, tmp_path / "plateau").run()
    assert lengths(ran) == {6} and stops(ran) == {6}
    stop = combined([plateau(), MaximumIterationStopper(5)])
    ran = stopped_by(stop, tmp_path / "most").run()
    assert lengths(ran) == {5}


@every_way
def test_experiment_plateau_stopper_ends_the_sweep_at_a_plateau_of_scores(tmp_path, mode):
    stopper = ExperimentPlateauStopper("accuracy", std=0.001, top=5, mode="max")
    ran = stopped_by(stopper, tmp_path, mode, trials=4).training(slots=2).run()
    assert [trial.status for trial in ran.trials] == ["TERMINATED"] * len(ran.trials)
    assert stops(ran) in ({5}, {6}), "by the fifth 0.4, whichever trial has it"
    assert max(lengths(ran)) < END
    assert stopper._top_values == [0.4] * 5
    check_journal(events_in(ran.home))


@pytest.mark.parametrize(
    ("every", "asked"), [(1, list(range(1, END + 1))), (4, [4, 8, 12]), (5, [5, 10])]
)
def test_function_that_counts_gets_each_score_of_a_trial_once_and_in_order(tmp_path, every, asked):
    """Also the last one: Tune does not show schedulers a report with which a trial ends."""
    seen: list[int] = []

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        seen.append(result["training_iteration"])
        return result["accuracy"] > 1

    plan = stopped_by(stop, tmp_path, trials=1)
    plan.training(saves=tunekit.EveryIterations(every)).run()
    assert seen == asked


def test_error_in_a_stopper_ends_the_sweep(tmp_path):
    with pytest.raises(tune.TuneError, match="acuracy"):
        stopped_by(lambda trial_id, result: result["acuracy"] > 0.4, tmp_path).run()


@pytest.mark.parametrize("mode", [Mode.WAIT, Mode.WAIT_PAUSED])
def test_stopper_of_a_killed_and_restored_sweep_stops_at_the_same_iteration(tmp_path, mode):
    def made(folder: Path) -> Plan:
        return stopped_by(plateau(), folder, mode, trials=1)

    runs = [ran for ran, _ in killed_at_each(tmp_path, made, 15)]
    assert len(runs) > 3
    for ran in runs:
        assert stops(ran) == {6} and lengths(ran) == {6}, ran.home
