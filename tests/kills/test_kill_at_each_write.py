"""A sweep that is killed at any line and restored ends as it would have without the kill."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.support import schedulers
from tests.support.invariants import JournalSummary
from tests.support.kills import Killed, killed_after, killed_at_each, run_killed
from tests.support.local_sweep import index_of
from tests.support.modes import Mode
from tests.support.seeds import SCHEDULES, drawn_by
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Endless
from tunekit.core.events import Event, Exploited, Processed
from tunekit.journal.journal import events_in
from tunekit.schedulers import MOASHA, PromotionASHA

#: A kill comes at each write, or after this many.
STRIDE = 1 if SCHEDULES > 10 else 29


def in_turn(*names: str) -> Any:
    """Run a test with these sweeps in both modes; at each push, in one and the other in turn."""
    cases = [
        pytest.param(name, mode, marks=[pytest.mark.at_night] * ((number + paused) % 2))
        for number, name in enumerate(names)
        for paused, mode in enumerate([Mode.WAIT, Mode.WAIT_PAUSED])
    ]
    return pytest.mark.parametrize(("name", "mode"), cases)


# Sweeps whose events have one order -------------------------------------------------------------


def asha(folder: Path, mode: Mode, base: Any = None) -> Plan:
    """One trial at a time, so nothing depends on which of two is faster."""
    base = base or ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)
    return Plan(folder, base, mode, trials=4).tuning(max_concurrent=1)


def pbt(folder: Path, mode: Mode) -> Plan:
    """All trials wait for each other, and the worst clones the best: nothing is random."""
    scheduler = schedulers.pbt(
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lambda config: {**config, "lr": config["line"]},
        quantile_fraction=0.25,
        synch=True,
    )
    plan = Plan(folder, scheduler, mode, trials=1)  # of each point of the grid
    space = {"lr": 0.1, "line": tune.grid_search([0.4, 0.3, 0.2, 0.1])}
    return plan.training(Endless).tuning(param_space=space, stop={"training_iteration": 5})


class FailsBetween(Endless):
    """The last of four fails between two perturbations."""

    def step(self) -> dict[str, Any]:
        if self.trial_id.endswith("3") and self.steps == 2:
            raise RuntimeError("fails on purpose")
        return super().step()


def pbt_with_failure(folder: Path, mode: Mode) -> Plan:
    """The others have reached the next perturbation when one fails; their results are repeated."""

    def slow(trial: Trial, method: str) -> float:
        return 9.0 if trial.trial_id.endswith("3") else 1.0

    plan = pbt(folder, mode).training(FailsBetween, seconds=slow)
    return plan.tuning(stop={"training_iteration": 8})


def promotion(folder: Path, mode: Mode) -> Plan:
    """One trial at a time, so that those that wait for others have to make room."""
    scheduler = PromotionASHA(max_t=5, grace_period=1, reduction_factor=2)
    return asha(folder, mode, scheduler).training(Endless)


def limited(folder: Path, mode: Mode) -> Plan:
    """Two metrics, and a constraint that later iterations violate."""
    metrics = {"accuracy": "max", "loss": "min"}
    scheduler = MOASHA(metrics, max_t=5, grace_period=1, reduction_factor=2)
    constraints = [tunekit.Constraint("loss >= 0.3")]
    return asha(folder, mode, scheduler).validating(constraints=constraints)


class Unpicklable(ASHAScheduler):
    """Has something that cannot be saved."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.lock = threading.Lock()


def shown_again(folder: Path, mode: Mode) -> Plan:
    """A scheduler that cannot be saved: it receives all results again."""
    scheduler = Unpicklable(max_t=5, grace_period=1, reduction_factor=2)
    return asha(folder, mode, scheduler).tuning(saved_every_s=0.0)


SWEEPS: dict[str, Callable[[Path, Mode], Plan]] = {
    "asha": asha,
    "promotion": promotion,
    "limited": limited,
    "pbt": pbt,
    "pbt with a failure": pbt_with_failure,
    "shown again": shown_again,
}
BY_DECISIONS = {f"{name} by decisions": SWEEPS[name] for name in ("promotion", "asha", "pbt")}


#: Sweeps that are killed less often: one that is saved at each step, and a long one.
EVERY = {"shown again": 3 * STRIDE, "pbt with a failure": 3 * STRIDE}
#: The first kill, if the day does not choose it: a later one is at an exploit of PBT, or when its
#: trials wait for one that fails.
START = {"pbt": 51 % STRIDE, "pbt with a failure": 131 % (3 * STRIDE)}


@in_turn(*SWEEPS, *BY_DECISIONS)
def test_sweep_killed_at_any_write_ends_as_without_the_kill(tmp_path, mode, name):
    def made(folder: Path) -> Plan:
        plan = (SWEEPS | BY_DECISIONS)[name](folder, mode)
        return plan.validating(when="auto", seconds=0.7) if name in BY_DECISIONS else plan

    every = EVERY.get(name, STRIDE)
    start = START.get(name, drawn_by(name) % every)
    *killed, (undisturbed, expected) = killed_at_each(tmp_path, made, every, start)
    assert len(killed) >= max(1, 50 // every) and bool(expected.exploits) == ("pbt" in name)
    for ran, lives in killed:
        assert same(lives, expected, name), ran.home
        assert ran.lengths() == undisturbed.lengths()
        if name in BY_DECISIONS:
            assert ran.validation.validator.pool.idle
        else:
            assert ran.scores() == undisturbed.scores()


def perturbed_at(events: Iterable[Event]) -> dict[str, int]:
    """When each trial was perturbed last, or its donor."""
    times: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Processed) and event.ranked:
            if event.iteration - times[event.trial_id] >= 2:
                times[event.trial_id] = event.iteration
        elif isinstance(event, Exploited):
            times[event.trial_id] = times[event.donor_id]
    return dict(times)


@pytest.mark.parametrize("at", [156, 254, 331])
def test_restored_pbt_counts_its_next_interval_from_the_recorded_donor(tmp_path, at):
    def made(base: Any) -> Plan:
        plan = Plan(tmp_path, base, trials=6).tuning(stop={"training_iteration": 20})
        plan = plan.training(Endless, seconds=lambda trial, method: 1.0 + index_of(trial) / 3)
        return plan.tuning(**schedulers.space())

    schedulers.seed_all(at)
    with pytest.raises(Killed), killed_after(at):
        made(schedulers.pbt(quantile_fraction=0.5)).run()
    base = schedulers.pbt(quantile_fraction=0.5)
    ran = made(base).restored().start()
    times = {one.trial_id: at.last_perturbation_time for one, at in base._trial_state.items()}
    assert {name: time for name, time in times.items() if time} == perturbed_at(events_in(ran.home))
    ran.validation.ledger.let_go()


def places_of(lives: JournalSummary) -> set[str]:
    return {place for place, _ in lives.decisions}


def in_any_order(lives: JournalSummary) -> tuple[Any, ...]:
    known = ("trial_id", "generation", "donor_id", "iteration")
    exploits = [[getattr(one, name) for name in known] for one in lives.exploits]
    rates = [one.config["lr"] for one in lives.exploits]
    return lives.scores, places_of(lives), sorted(zip(exploits, rates, strict=True))


def same(one: JournalSummary, other: JournalSummary, name: str) -> bool:
    if name in BY_DECISIONS:  # what else is validated depends on when it was killed
        alike = "pbt" in name or sorted(one.decisions) == sorted(other.decisions)
        return alike and places_of(one) == places_of(other)
    if "pbt" not in name:
        return one == other
    # The order of trials that run at the same time may be another one.
    return in_any_order(one) == in_any_order(other)


# What the searcher knows, and what cannot be saved ----------------------------------------------


def optuna_sweep(folder: Path) -> Plan:
    """One trial at a time, its score its learning rate."""
    import optuna
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    search = OptunaSearch(
        {"lr": tune.uniform(0.0, 1.0)},
        metric="accuracy",
        mode="max",
        sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=2),
    )
    one = ConcurrencyLimiter(search, max_concurrent=1)
    plan = Plan(folder, mode=Mode.WAIT, trials=5).tuning(search_alg=one, metric=None, mode=None)
    return plan.validating(lambda at: {"accuracy": at.request.report["config"]["lr"]})


def study_of(ran: Ran) -> list[tuple[Any, ...]]:
    study = ran.sweep.controller.search_alg.searcher.searcher._ot_study
    return [(t.state, t.values, t.params, t.intermediate_values) for t in study.trials]


def test_restored_optuna_study_and_suggestions_equal_those_without_kills(tmp_path):
    undisturbed, _ = run_killed(tmp_path / "undisturbed", optuna_sweep, iter([]))
    expected = study_of(undisturbed)
    assert len(expected) == 5
    draw, killed = random.Random(0), 0
    for run in range(2 * SCHEDULES):
        lives = iter([draw.randrange(10, 200) for _ in range(2)])
        ran, kills = run_killed(tmp_path / str(run), optuna_sweep, lives)
        killed += kills
        assert study_of(ran) == expected
        assert [t.config for t in ran.trials] == [t.config for t in undisturbed.trials]
    assert killed > 2 * SCHEDULES


class StopsAnother(FIFOScheduler):
    """Stops the second trial by a score of the first, in a restored session only."""

    def __init__(self, lives: int):
        super().__init__()
        self.lives, self.lock = lives, threading.Lock()
        self.ended: set[str] = set()
        self.heard_after_end: list[str] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if trial.trial_id in self.ended:
            self.heard_after_end.append(trial.trial_id)
        first, second = sorted(tune_controller.get_trials(), key=lambda known: known.trial_id)
        if self.lives > 1 and trial is first and result["training_iteration"] == 2:
            tune_controller.stop_trial(second)
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any = None) -> None:
        self.ended.add(trial.trial_id)

    on_trial_remove = on_trial_complete


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", [22, 51, 60])  # at 51 its own scores are still to come
@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED])
def test_scheduler_gets_no_result_of_a_trial_that_it_stopped_during_a_replay(tmp_path, mode, at):
    """Unless the trial continued before: then it continues, and the scheduler sees no end."""
    made: list[StopsAnother] = []

    def make(folder: Path) -> Plan:
        made.append(StopsAnother(len(made) + 1))
        plan = Plan(folder, made[-1], mode, trials=2).training(Endless).validating(seconds=1.5)
        return plan.tuning(stop={"training_iteration": 9}, saved_every_s=0.0)

    ran, kills = run_killed(tmp_path, make, iter([at]))
    assert kills == 1 and len(made[-1].ended) == 2
    assert not made[-1].heard_after_end
    assert ran.lengths()[0] == 9
