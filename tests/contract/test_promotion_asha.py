"""PromotionASHA continues the best trials of each rung, in stock Tune and with late scores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Searcher

import tunekit
from tests.support.contract import check_contract
from tests.support.fakes import FakeClock
from tests.support.local_sweep import LocalSweep, index_of
from tests.support.modes import MODES, Mode
from tests.support.schedulers import promotion
from tests.support.sweeps import Plan
from tests.support.trainables import Endless, quality
from tunekit.core.events import TrialAdded, TrialEnded
from tunekit.journal.journal import events_in

pytestmark = pytest.mark.sampled(2)


class Scored(Endless):
    """Reports its score itself, as a sweep without validations needs it."""

    def step(self) -> dict[str, Any]:
        super().step()
        score = quality(self.config.get("index", 0), self.steps)
        return {"accuracy": score, "done": self.steps == self.config.get("ends_at")}


@dataclass
class Saw(tune.Callback):
    """Which trial reported, and which began to run, in order."""

    told: list[tuple[str, int, int]] = field(default_factory=list)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any):
        last = trial.last_result.get("training_iteration", 0)
        self.told.append(("starts", index_of(trial), last))

    def on_trial_result(self, iteration, trials, trial: Trial, result: dict[str, Any], **info):
        self.told.append(("reports", index_of(trial), result["training_iteration"]))


def stock(folder: Path, scheduler: Any, trials: int = 9, **options: Any) -> tuple[LocalSweep, Saw]:
    """A sweep without anything of tunekit's but the scheduler."""
    saw, space = Saw(), {"index": tune.grid_search(list(range(trials)))}
    sweep = LocalSweep(
        Scored,
        folder,
        FakeClock(),
        scheduler=scheduler,
        callbacks=[saw],
        seconds=lambda trial, method: float(method == "train"),
        **{"metric": "accuracy", "mode": "max", "slots": 3, "param_space": space, **options},
    )
    sweep.run(most=20_000)
    assert all(trial.status == Trial.TERMINATED for trial in sweep.trials)
    return sweep, saw


def lengths(sweep: LocalSweep) -> dict[int, int]:
    return {index_of(trial): trial.last_result["training_iteration"] for trial in sweep.trials}


def test_promotion_in_stock_tune_continues_the_best_third_of_each_rung(tmp_path):
    scheduler = promotion()
    ran, saw = stock(tmp_path, scheduler, trials=27)
    reached = lengths(ran)
    assert set(reached.values()) <= {1, 3, 9}
    for rung in (1, 3):
        came = [index for index, length in reached.items() if length >= rung]
        best = sorted(came, key=lambda index: -quality(index, rung))[: len(came) // 3]
        assert all(reached[index] > rung for index in best)
    assert sum(length == 9 for length in reached.values()) >= 27 // 9
    reports = [(index, iteration) for what, index, iteration in saw.told if what == "reports"]
    assert len(reports) == len(set(reports)), "a resumed trial goes on from where it paused"
    assert "1: 27 (0 " in scheduler.debug_string(), "27 at the first rung, none of them paused"


def test_promoted_trial_gets_a_slot_before_new_trials(tmp_path):
    """At most one new trial has requested resources before it is known which is promoted."""
    ran, saw = stock(tmp_path, promotion(), trials=27, slots=1)
    starts = [iteration for what, _, iteration in saw.told if what == "starts"]
    for n in range(len(starts)):
        new, at_first_rung = starts[:n].count(0), starts[:n].count(1)
        assert new <= 3 * (at_first_rung + 1) + 1, "a new trial goes before a promotion"
    assert lengths(ran) and starts.count(1) == 9


@pytest.mark.parametrize("trials", [1, 2, 3, 5])
@pytest.mark.parametrize("own_end", [None, 2, 7])
def test_exactly_one_of_few_trials_is_promoted_to_its_end(tmp_path, trials, own_end):
    space = {"index": tune.grid_search(list(range(trials))), "ends_at": own_end}
    ran, _ = stock(tmp_path, promotion(), param_space=space)
    reached = lengths(ran)
    assert max(reached.values()) == (own_end or 9)
    assert sum(length == max(reached.values()) for length in reached.values()) == 1
    if trials < 3:
        best = max(range(trials), key=lambda index: quality(index, 1))
        assert reached[best] == max(reached.values())


class Suggests(Searcher):
    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"index": 1}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...


@pytest.mark.parametrize("most", [1, 2, 4])
def test_sweep_with_few_concurrent_trials_runs_all_and_promotes_one_to_the_end(tmp_path, most):
    search = ConcurrencyLimiter(Suggests("accuracy", "max"), max_concurrent=most)
    options = {"search_alg": search, "num_samples": 12, "param_space": {"index": 1}}
    ran, _ = stock(tmp_path, promotion(), **options)
    assert len(ran.trials) == 12
    assert max(lengths(ran).values()) == 9


def limited(folder: Path, mode: Mode, most: int) -> Plan:
    """Twelve trials, of which so many may be unfinished at a time."""
    plan = Plan(folder, promotion(), mode, trials=12).training(Endless)
    return plan.tuning(max_concurrent=most, stop={"training_iteration": 20})


@pytest.mark.parametrize("mode", MODES)
def test_paused_trials_are_removed_one_at_a_time_and_only_at_the_limit_of_trials(tmp_path, mode):
    """Also if a trial takes a while to end because it is saving."""
    plan = limited(tmp_path, mode, 4).training(seconds={"train": 1.0, "save": 4.2})
    ran = plan.validating(seconds=1.5).run()
    check_contract(ran)
    added, ended, made_room = set(), set(), 0
    for event in events_in(ran.home):
        match event:
            case TrialAdded():
                added.add(event.trial_id)
            case TrialEnded():
                if event.removed and len(added) < 12:
                    assert len(added - ended) == 4, "there was room already"
                    made_room += 1
                ended.add(event.trial_id)
    assert len(added) == 12 and made_room >= 3


def test_removed_trials_are_the_worst_of_the_lowest_rung(tmp_path):
    plan = limited(tmp_path, Mode.WAIT_PAUSED, 6).training(slots=6)
    ran = plan.validating(seconds=5.0).run()
    check_contract(ran)
    first_six = [scores for index, scores in ran.validated().items() if index < 6]
    stopped = [scores[1] for scores in first_six if max(scores) == 1]
    continued = [scores[1] for scores in first_six if max(scores) > 1]
    assert stopped, "there was no room"
    assert min(continued) > max(stopped)


def test_later_brackets_begin_at_later_rungs_and_have_fewer_trials(tmp_path):
    ran, saw = stock(tmp_path, promotion(brackets=3), trials=27, slots=27)
    resumed = [(index, at) for what, index, at in saw.told if what == "starts" and at]
    first = Counter({**lengths(ran), **dict(reversed(resumed))}.values())
    assert first.keys() == {1, 3, 9} and first[1] > first[3] > first[9]


def test_smallest_score_is_promoted_with_mode_min_of_the_scheduler(tmp_path):
    scheduler = promotion(metric="accuracy", mode="min")
    assert not scheduler.set_search_properties("other", None)
    assert not scheduler.set_search_properties(None, "max")
    ran, _ = stock(tmp_path, scheduler, trials=3, metric=None, mode=None)
    assert lengths(ran)[min(range(3), key=lambda index: quality(index, 1))] == 9


def test_promotion_without_metric_and_mode_refuses_its_first_trial(tmp_path):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        promotion().on_trial_add(None, None)
    metric, mode = caught.value.problems
    assert metric.startswith("metric ") and mode.startswith("mode ")


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"max_t": 0}, "0"),
        ({"grace_period": -1}, "0"),
        ({"grace_period": 10}, "max_t=9"),
        ({"reduction_factor": float("inf")}, "1"),
        ({"brackets": 0}, "1"),
        ({"brackets": 4}, "3"),
        ({"mode": "best"}, "'min', 'max'"),
        ({"metric": 3}, "int"),
        ({"time_attr": None}, "NoneType"),
        ({"mode": "", "max_t": -1, "brackets": 0}, ""),
    ],
)
def test_invalid_arguments_of_promotion_are_refused_with_value_and_limit(options, limit):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        promotion(**options)
    for (name, value), problem in zip(options.items(), caught.value.problems, strict=True):
        shown, _, rule = problem.partition(" ")
        assert shown == f"{name}={value!r}" and limit in rule
