"""Every searcher gets each validation score once, in order, and one end of each trial."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import ConcurrencyLimiter, Repeater, Searcher
from ray.tune.search.optuna import OptunaSearch
from threadpoolctl import threadpool_limits

from tests.support.contract import check_contract, lags
from tests.support.journals import read, scores_of
from tests.support.modes import Mode
from tests.support.schedulers import asha
from tests.support.sweeps import Most, Plan, Ran
from tests.support.trainables import LENGTH, Counting
from tunekit.core.validation import Attempt

pytestmark = pytest.mark.sampled(4)

MODES = [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED]
SPACE = {"lr": tune.uniform(0.0, 1.0), "momentum": tune.uniform(0.5, 1.0)}
TRIALS = 8


def of_ray(name: str, **options: Any) -> Searcher:
    module, _, kind = name.rpartition(".")
    return getattr(import_module(f"ray.tune.search.{module}"), kind)(**options)


def nevergrad() -> Searcher:
    optimizer = import_module("nevergrad").optimizers.OnePlusOne
    return of_ray("nevergrad.NevergradSearch", optimizer=optimizer)


#: What each needs, and how it is made.
SEARCHERS: dict[str, tuple[list[str], Callable[[], Searcher]]] = {
    "optuna": ([], lambda: OptunaSearch(seed=1)),
    "ax": (["ax"], lambda: of_ray("ax.AxSearch", verbose_logging=False, random_seed=1)),
    "hyperopt": (
        ["hyperopt"],
        lambda: of_ray("hyperopt.HyperOptSearch", n_initial_points=3, random_state_seed=1),
    ),
    "nevergrad": (["nevergrad"], nevergrad),
    "bayesopt": (["bayes_opt"], lambda: of_ray("bayesopt.BayesOptSearch", random_search_steps=3)),
    "bohb": (["hpbandster", "ConfigSpace"], lambda: of_ray("bohb.TuneBOHB", seed=1)),
}
every_mode = pytest.mark.parametrize("mode", MODES)
every_scheduler = pytest.mark.parametrize("scheduler", [FIFOScheduler, asha], ids=["fifo", "asha"])


@pytest.fixture(autouse=True)
def one_thread():
    """Searchers' models are small, so threads would cost more than they save."""
    with threadpool_limits(1):
        yield


@dataclass
class Told:
    """A call of a base searcher, with the names that the searcher uses."""

    what: str
    trial_id: str
    result: dict[str, Any] | None
    #: Whether something was known then and not told of any trial.
    overdue: bool


class Hears:
    """A mixin for a searcher's class that records its calls; it keeps its name."""

    ran: Ran

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        suggestion = super().suggest(trial_id)
        if isinstance(suggestion, dict):
            self._note("suggest", trial_id)
        return suggestion

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._note("result", trial_id, result)
        super().on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._note("error" if error else "complete", trial_id, result)
        super().on_trial_complete(trial_id, result=result, error=error)

    def _note(self, what: str, trial_id: str, result: dict[str, Any] | None = None) -> None:
        due = self.ran.executor.next_due()
        overdue = due is not None and due <= self.ran.clock.monotonic()
        self.told.append(Told(what, trial_id, result and dict(result), overdue))


def few(
    folder: Path,
    mode: Mode = Mode.CONTINUE,
    base: TrialScheduler | None = None,
    *,
    trials: int = TRIALS,
) -> Plan:
    return Plan(folder, base, mode, trials=trials).training(slots=3).tuning(param_space=SPACE)


def search(plan: Plan, searcher: Searcher, alg: Any = None) -> Ran:
    """Run a sweep with a searcher whose calls are recorded, wrapped as ``alg``."""
    searcher.told = []
    searcher.__class__ = type(type(searcher).__name__, (Hears, type(searcher)), {})
    ran = plan.tuning(search_alg=alg or searcher).start()
    type(searcher).ran = ran
    ran.sweep.run(most=20_000)
    return ran


def check_searcher(ran: Ran, base: Searcher, names: tuple[str, ...] = ("accuracy",)) -> None:
    """Check the rules that always hold."""
    ranked = defaultdict(set)
    for event in read(ran.home, "processed"):
        if event["ranked"]:
            ranked[event["trial_id"]].add(event["iteration"])
    scores = scores_of(ran.home)

    def check_result(told: Told, iteration: int, *, done: bool) -> None:
        metrics = scores[told.trial_id][0, iteration]
        assert told.result[TRAINING_ITERATION] == iteration and told.result["done"] == done
        assert [told.result[name] for name in names] == [metrics[name] for name in names]

    for trial in ran.trials:
        first, *results, last = [t for t in base.told if t.trial_id == trial.trial_id]
        assert first.what == "suggest"
        assert {t.what for t in results} <= {"result"}, "nothing after the completion"
        iterations = [t.result[TRAINING_ITERATION] for t in results]
        assert iterations == sorted(set(iterations)), "each once, in order"
        assert set(iterations) <= ranked[trial.trial_id]
        for told, iteration in zip(results, iterations, strict=True):
            check_result(told, iteration, done=False)
        if trial.status == Trial.ERROR:
            assert (last.what, last.result) == ("error", None)
            continue
        assert (trial.status, last.what) == (Trial.TERMINATED, "complete")
        if ranked[trial.trial_id]:
            check_result(last, max(ranked[trial.trial_id]), done=True)
        else:
            assert last.result is None
    assert not any(t.overdue for t in base.told if t.what == "suggest"), "all that is known first"


class Diverges(Counting):
    """The second trial reports an infinite loss."""

    def step(self):
        return {**super().step(), "loss": math.inf if "_2_lr=" in self.logdir else 0.5}


def test_infinite_last_metric_reaches_optuna_but_no_searcher_that_fits_a_model(tmp_path):
    for name, learnt in (("optuna", math.inf), ("bayesopt", None)):
        base = SEARCHERS[name][1]()
        plan = few(tmp_path / name, trials=3).training(Diverges)
        ran = search(plan.tuning(metric="loss", mode="min"), base)
        assert {trial.status for trial in ran.trials} == {Trial.TERMINATED}
        ends = [one.result and one.result["loss"] for one in base.told if one.what == "complete"]
        assert sorted(ends, key=str) == sorted([0.5, 0.5, learnt], key=str)
        if name == "optuna":
            assert {trial.state.name for trial in base._ot_study.trials} == {"COMPLETE"}


@every_mode
@every_scheduler
@pytest.mark.parametrize("name", SEARCHERS)
def test_searcher_gets_each_score_once_in_order_however_late_it_arrives(
    tmp_path, name, scheduler, mode
):
    needs, make = SEARCHERS[name]
    for package in needs:
        pytest.importorskip(package)
    base = make()
    ran = search(few(tmp_path, mode, scheduler()).validating(seconds=lags(3, 8.0)), base)
    check_contract(ran)
    check_searcher(ran, base)
    assert len(ran.trials) == TRIALS
    if scheduler is FIFOScheduler:
        for trial in ran.trials:
            told = [t for t in base.told if t.trial_id == trial.trial_id and t.what == "result"]
            # The last report ends the trial by itself; as in Tune, its score goes with the end.
            assert [t.result[TRAINING_ITERATION] for t in told] == list(range(1, LENGTH))


class Fails(Counting):
    """The last trial fails, each time."""

    def setup(self, config):
        super().setup(config)
        if f"_{TRIALS - 1}_lr=" in self.logdir:
            self.fail_at = 4

    def iteration_was_restored(self):
        return False


@every_mode
def test_searcher_gets_one_error_of_a_failed_trial_and_no_result_of_an_unscored_one(tmp_path, mode):
    def validate(attempt: Attempt) -> dict[str, float]:
        unscored = attempt.request.trial_id == type(base).ran.trials[1].trial_id
        return {"accuracy": math.nan if unscored else attempt.request.iteration / 10}

    base = OptunaSearch(seed=1)
    plan = few(tmp_path, mode).training(Fails).validating(validate, seconds=lags(4, 6.0))
    ran = search(plan, base)
    check_contract(ran)
    check_searcher(ran, base)
    assert [t.status for t in ran.trials].count(Trial.ERROR) == 1
    assert [t.what for t in base.told].count("error") == 1
    [end] = [t for t in base.told if t.what == "complete" and t.result is None]
    assert end.trial_id == ran.trials[1].trial_id


#: What may wrap a searcher, and the most trials that live at once then.
WRAPS = {
    "limiter": (2, lambda base: ConcurrencyLimiter(base, 2)),
    "batch": (2, lambda base: ConcurrencyLimiter(base, 2, batch=True)),
    "repeater": (TRIALS, lambda base: Repeater(base, repeat=2)),
    "limited repeater": (2, lambda base: ConcurrencyLimiter(Repeater(base, repeat=2), 2)),
    "repeated limiter": (4, lambda base: Repeater(ConcurrencyLimiter(base, 2), repeat=2)),
}
every_wrap = pytest.mark.parametrize("wrap", WRAPS)


def check_wrapped(ran: Ran, base: Searcher, wrap: str) -> None:
    """A searcher in a Repeater gets the mean of the repetitions, once."""
    if "repeat" not in wrap:
        check_searcher(ran, base)
        return
    groups: dict[float, list[Trial]] = defaultdict(list)
    for trial in ran.trials:
        groups[trial.config["lr"]].append(trial)
    assert [len(trials) for trials in groups.values()] == [2] * (TRIALS // 2)
    for seen in base._ot_study.trials:
        scores = [t.last_result["accuracy"] for t in groups[seen.params["lr"]]]
        assert seen.value == pytest.approx(sum(scores) / 2)


@every_mode
@every_wrap
def test_searcher_limits_and_batches_count_trials_that_wait_for_scores(tmp_path, wrap, mode):
    # A limiter inside of a Repeater must have the metric when it is made, with stock Tune, too.
    base = OptunaSearch(metric="accuracy", mode="max", seed=3)
    most, wraps = WRAPS[wrap]
    live = Most(lambda trial: not trial.is_finished())
    plan = few(tmp_path, mode).training(slots=8).validating(seconds=lags(9, 8.0)).calling(live)
    ran = search(plan, base, wraps(base))
    check_contract(ran)
    check_wrapped(ran, base, wrap)
    assert live.most == most
    out, told = 0, [t.what for t in base.told if t.what != "result"]
    for before, what in itertools.pairwise(["suggest", *told]):
        in_mid_batch = out and (before, what) == ("complete", "suggest")
        assert wrap != "batch" or not in_mid_batch
        out += 1 if what == "suggest" else -1
    assert out == 0, "each has ended, once"


@every_mode
def test_optuna_with_two_metrics_gets_both_from_each_validation(tmp_path, mode):
    def validate(attempt: Attempt) -> dict[str, float]:
        draw = random.Random(f"{attempt.id}").random()
        return {"accuracy": draw, "size": 1.0 / draw + attempt.request.iteration}

    base = OptunaSearch(metric=["accuracy", "size"], mode=["max", "min"], seed=2)
    plan = few(tmp_path, mode).validating(validate, seconds=lags(8, 8.0))
    ran = search(plan.tuning(metric=None, mode=None), base)
    check_contract(ran)
    check_searcher(ran, base, ("accuracy", "size"))
    seen = [t.values for t in base._ot_study.trials]
    assert seen == [[t.last_result["accuracy"], t.last_result["size"]] for t in ran.trials]
