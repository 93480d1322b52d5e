"""What tunekit takes for a scheduler's decisions, against Tune's schedulers themselves.

Two identical schedulers see the same trials: one every report, as in stock Tune, the other only
those that are due. Whatever they decide and write into their books is to be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.schedulers.pb2 import PB2

from tests.decisions import Decisions
from tests.schedulers import replay
from tunekit._ray.scheduler_kinds import rule_for, time_attr_of, traits_of
from tunekit.core.decision_points import Always, Interval, Never
from tunekit.core.halving import milestones
from tunekit.errors import UnsupportedRayError
from tunekit.schedulers import PromotionASHA, Traits

CONTINUE, PAUSE, STOP = TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP


class FakeTrial:
    """As much of a trial as schedulers look at."""

    is_saving = False
    experiment_tag = local_dir = local_experiment_path = ""

    def __init__(self, trial_id: str):
        self.trial_id = trial_id
        self.status = Trial.RUNNING
        self.config: dict[str, Any] = {"lr": 0.5}
        self.evaluated_params: dict[str, Any] = {}
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(
                checkpoint_config=SimpleNamespace(num_to_keep=None),
                _latest_checkpoint_result=None,
            )
        )
        self.temporary_state = SimpleNamespace(saving_to=None)
        self.checkpoint: Any = "paused"
        self.iteration = 0
        self.time = 0.0

    def is_finished(self) -> bool:
        return self.status == Trial.TERMINATED

    def set_config(self, config):
        self.config = config

    def set_experiment_tag(self, tag):
        pass


@dataclass
class World:
    """A scheduler, its trials, and what it decides; the controller that it talks to, too."""

    base: TrialScheduler
    trials: list[FakeTrial]
    lean: bool
    seed: int
    steps: list[float]
    decisions: Decisions = field(default_factory=Decisions)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    shown: int = 0
    used: int = 0
    reports: int = 0
    search_alg: Any = field(default_factory=lambda: SimpleNamespace(is_finished=lambda: True))

    def __post_init__(self):
        np.random.seed(self.seed % 2**32)
        for trial in self.trials:
            self.base.on_trial_add(self, trial)

    # The controller ----------------------------------------------------------------------------

    def get_trials(self):
        return self.trials

    def get_live_trials(self):
        return [trial for trial in self.trials if not trial.is_finished()]

    def _schedule_trial_save(self, trial, result=None):
        return f"checkpoint of {trial.trial_id}"

    def pause_trial(self, trial, should_checkpoint=True):
        trial.status = Trial.PAUSED

    def update_max_pending_trials(self, most):
        pass

    def stop_trial(self, trial):
        self.log.append((trial.trial_id, trial.iteration, "stopped while paused"))
        trial.status = Trial.TERMINATED
        self.base.on_trial_remove(self, trial)

    def books(self, trial: FakeTrial) -> Any:
        """What changes when the scheduler uses a score; HyperBand keeps each."""
        if isinstance(self.base, ASHAScheduler):
            return rungs_of(self.base)
        if isinstance(self.base, PopulationBasedTraining):
            return id(self.base._trial_state[trial].last_result)
        return None

    # The sweep ---------------------------------------------------------------------------------

    def play(self, rounds: int) -> World:
        for _ in range(rounds):
            for trial in [t for t in self.trials if t.status == Trial.RUNNING]:
                if trial.status == Trial.RUNNING:
                    self.step(trial)
            while chosen := self.base.choose_trial_to_run(self):
                chosen.status = Trial.RUNNING
            if all(trial.is_finished() for trial in self.trials):
                break
        return self

    def step(self, trial: FakeTrial) -> None:
        trial.iteration += 1
        # The same for the same trial at the same iteration, whatever was shown to the scheduler.
        draw = random.Random(f"{self.seed} {trial.trial_id} {trial.iteration}")
        trial.time += draw.choice(self.steps)
        result = {"training_iteration": trial.iteration, "t": trial.time, "acc": draw.random()}
        self.reports += 1
        if not self.lean:
            self.show(trial, result)
            return
        now = result.get(time_attr_of(self.base))
        rule = rule_for(self.base, trial)
        if self.decisions.asked(trial.trial_id, trial.iteration, now, rule, done=False):
            iteration = trial.iteration
            self.show(trial, result)
            self.decisions.settled(trial.trial_id, iteration)

    def show(self, trial: FakeTrial, result: dict[str, Any]) -> None:
        self.shown += 1
        before = {
            other: other.run_metadata.checkpoint_manager._latest_checkpoint_result
            for other in self.trials
        }
        random.seed(f"{self.seed} {trial.trial_id} {trial.iteration}")
        books = self.books(trial)
        action = self.base.on_trial_result(self, trial, result)
        self.used += action == STOP or self.books(trial) != books
        if action != CONTINUE:
            self.log.append((trial.trial_id, trial.iteration, action))
        if action == STOP:
            trial.status = Trial.TERMINATED
            self.base.on_trial_complete(self, trial, result)
        elif action == PAUSE:
            trial.status = Trial.PAUSED
        for other, old in before.items():
            cloned = other.run_metadata.checkpoint_manager._latest_checkpoint_result
            if cloned is not old:
                self.log.append((other.trial_id, other.iteration, "clones", cloned.checkpoint))
                other.iteration = cloned.metrics["training_iteration"]
                other.time = cloned.metrics["t"]
                self.decisions.moved(other.trial_id)
        waits = isinstance(self.base, (HyperBandScheduler, PromotionASHA))
        if not waits and not getattr(self.base, "_synch", False):
            for other in self.trials:  # asynchronous PBT goes on at once
                if other.status == Trial.PAUSED:
                    other.status = Trial.RUNNING


def both(make, trials: int, seed: int, steps, rounds: int) -> tuple[World, World]:
    full, lean = (
        World(make(), [FakeTrial(f"t{n}") for n in range(trials)], lean, seed, list(steps))
        for lean in (False, True)
    )
    return full.play(rounds), lean.play(rounds)


seeds = st.integers(0, 2**31)
one_by_one = st.just([1.0])
in_leaps = st.lists(st.floats(0.1, 12), min_size=1, max_size=4)

# ASHA --------------------------------------------------------------------------------------------


def rungs_of(base):
    return [[(milestone, dict(scores)) for milestone, scores in b._rungs] for b in base._brackets]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([1.3, 1.5, 2, 3, 4]),
    st.integers(1, 3),
    st.integers(20, 40),
    st.booleans(),
    one_by_one | in_leaps,
    seeds,
)
def test_asha_decides_the_same_by_due_reports(grace, rf, brackets, max_t, stop_last, steps, seed):
    def make():
        return ASHAScheduler(
            time_attr="t",
            metric="acc",
            mode="max",
            max_t=max_t,
            grace_period=grace,
            reduction_factor=rf,
            brackets=brackets,
            stop_last_trials=stop_last,
        )

    full, lean = both(make, 6, seed, steps, 45)
    assert lean.log == full.log
    assert rungs_of(lean.base) == rungs_of(full.base)
    assert lean.shown == lean.used == full.used


# Promotion ---------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([1.3, 1.5, 2, 3, 4]),
    st.integers(1, 3),
    st.integers(20, 40),
    one_by_one | st.lists(st.floats(1, 12), min_size=1, max_size=4),
    seeds,
)
def test_promotions_are_the_same_by_due_reports(grace, rf, brackets, max_t, steps, seed):
    brackets = min(brackets, len(milestones(grace, max_t, rf)) + 1)

    def make():
        return PromotionASHA(
            time_attr="t",
            metric="acc",
            mode="max",
            max_t=max_t,
            grace_period=grace,
            reduction_factor=rf,
            brackets=brackets,
        )

    full, lean = both(make, 8, seed, steps, 400)
    assert lean.log == full.log
    assert lean.base.debug_string() == full.base.debug_string()
    assert lean.shown == sum(action in (PAUSE, STOP) for _, _, action in lean.log)
    assert all(trial.status == Trial.TERMINATED for trial in lean.trials)


# PBT ---------------------------------------------------------------------------------------------


def pbt_books(world: World):
    return [
        (
            state.last_perturbation_time,
            state.last_train_time,
            state.last_score,
            state.last_checkpoint,
            trial.iteration,
            trial.config,
        )
        for trial, state in world.base._trial_state.items()
    ]


@settings(max_examples=40, deadline=None)
@given(
    st.booleans(),
    st.sampled_from([1, 3, 4, 7.5]),
    st.sampled_from([0, 2, 6]),
    st.sampled_from([0.0, 0.25, 0.5]),
    one_by_one | in_leaps,
    seeds,
)
def test_pbt_perturbs_the_same_by_due_reports(synch, interval, burn_in, quantile, steps, seed):
    def make():
        return PopulationBasedTraining(
            time_attr="t",
            metric="acc",
            mode="max",
            perturbation_interval=interval,
            burn_in_period=burn_in,
            hyperparam_mutations={"lr": [0.1, 0.5, 1.0]},
            quantile_fraction=quantile,
            log_config=False,
            synch=synch,
        )

    full, lean = both(make, 4, seed, steps, 40)
    assert lean.log == full.log
    assert pbt_books(lean) == pbt_books(full)
    assert lean.base._next_perturbation_sync == full.base._next_perturbation_sync
    assert lean.shown == lean.used == full.used
    assert lean.base._num_perturbations == full.base._num_perturbations
    assert (lean.reports, lean.base._num_checkpoints) == (full.reports, full.base._num_checkpoints)


def pbt(kind=PopulationBasedTraining, **options):
    mutations = "hyperparam_bounds" if kind is PB2 else "hyperparam_mutations"
    return kind(
        time_attr="t", metric="acc", mode="max", **{mutations: {"lr": [0.1, 1.0]}}, **options
    )


def test_pbt_counts_anew_after_a_failure():
    base = pbt(perturbation_interval=4)
    trial = FakeTrial("a")
    world = World(base, [trial], lean=True, seed=1, steps=[1.0]).play(10)
    assert rule_for(base, trial) == Interval(4, 0.0, 8)
    base.on_trial_error(world, trial)
    base.on_trial_add(world, trial)
    trial.iteration, trial.time, before = 8, 8.0, world.shown
    world.step(trial)
    assert world.shown == before + 1, "stock PBT perturbs at the first report, too"


# HyperBand ---------------------------------------------------------------------------------------


def hyperband(kind, max_t, eta, stop_last=True, time_attr="training_iteration"):
    return kind(
        time_attr=time_attr,
        metric="acc",
        mode="max",
        max_t=max_t,
        reduction_factor=eta,
        stop_last_trials=stop_last,
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(9, 3), (16, 2), (27, 3), (16, 4)]),
    st.integers(3, 12),
    st.booleans(),
    one_by_one | st.lists(st.floats(0.1, 5), min_size=1, max_size=4),
    seeds,
)
def test_hyperband_decides_the_same_by_due_reports(size, trials, stop_last, steps, seed):
    def make():
        return hyperband(HyperBandScheduler, *size, stop_last, time_attr="t")

    full, lean = both(make, trials, seed, steps, 40)
    assert lean.log == full.log
    for ours, stock in zip(lean.trials, full.trials, strict=True):
        assert (ours.status, ours.iteration) == (stock.status, stock.iteration)


def test_hyperband_asks_for_a_trial_that_comes_back_what_its_bracket_waits_for():
    base = hyperband(HyperBandScheduler, 81, 3)
    bracket, trial = base._create_bracket(3), FakeTrial("a")
    base._trial_info[trial] = bracket, 0
    bracket.add_trial(trial)
    bracket._live_trials[trial] = {"acc": 1.0, "training_iteration": 3}
    bracket.successive_halving("acc", 1.0)
    bracket._live_trials[trial] = None  # it failed and was added again
    rule = rule_for(base, trial)
    assert [i for i in range(1, 12) if rule.serves(i, ()) is not None] == [9, 10, 11]


# The others --------------------------------------------------------------------------------------


class Own(ASHAScheduler):
    pass


@pytest.mark.parametrize(
    ("base", "rule", "time_attr"),
    [
        (FIFOScheduler(), Never(), "training_iteration"),
        (MedianStoppingRule(time_attr="t"), Always(), "t"),
        (Own(time_attr="t", metric="acc", mode="max"), Always(), "training_iteration"),
        (ResourceChangingScheduler(), Never(), "training_iteration"),
        (ResourceChangingScheduler(MedianStoppingRule(time_attr="t")), Always(), "t"),
        (ASHAScheduler(time_attr="t", metric="acc", mode="max"), Never(), "t"),
        (hyperband(HyperBandScheduler, 9, 3), Never(), "training_iteration"),
        (hyperband(HyperBandForBOHB, 9, 3), Never(), "training_iteration"),
        (PromotionASHA(time_attr="t", metric="acc", mode="max"), Never(), "t"),
        (pbt(), Never(), "t"),
        (pbt(PB2), Never(), "t"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_schedulers_that_do_not_know_the_trial_or_decide_at_no_certain_time(base, rule, time_attr):
    assert rule_for(base, FakeTrial("never added")) == rule
    assert time_attr_of(base) == time_attr


def test_a_trial_that_has_ended_has_no_decisions():
    base = ASHAScheduler(metric="acc", mode="max")
    trial = FakeTrial("a")
    base.on_trial_add(None, trial)
    base.on_trial_remove(None, trial)
    assert rule_for(base, trial) == Never()


def test_books_that_are_kept_in_another_way_are_refused_by_name():
    base = ASHAScheduler(metric="acc", mode="max")
    del base._trial_info
    with pytest.raises(UnsupportedRayError, match=r"AsyncHyperBandScheduler of Ray .* _trial_info"):
        rule_for(base, FakeTrial("a"))


class OwnPBT(PopulationBasedTraining):
    pass


class OwnHyperBand(HyperBandScheduler):
    pass


class OwnPromotion(PromotionASHA):
    def on_trial_result(self, tune_controller, trial, result):
        return CONTINUE


@pytest.mark.parametrize(
    ("scheduler", "traits"),
    [
        (FIFOScheduler(), Traits(clones=False, pauses=False)),
        (MedianStoppingRule(), Traits(clones=False)),
        (ASHAScheduler(), Traits(at_times=True, clones=False, pauses=False)),
        (ResourceChangingScheduler(ASHAScheduler()), traits_of(ASHAScheduler())),
        (Own(), Traits()),
        (HyperBandScheduler(), Traits(at_times=True, clones=False, waits_for_all=True)),
        (OwnHyperBand(), Traits(waits_for_all=True)),
        (HyperBandForBOHB(), Traits(at_times=True, clones=False)),
        (PromotionASHA(), Traits(at_times=True, clones=False)),
        (OwnPromotion(), Traits()),
        (pbt(), Traits(at_times=True)),
        (pbt(PB2), Traits(at_times=True)),
        (pbt(synch=True), Traits(at_times=True, waits_for_all=True, synchronous=True)),
        (pbt(PB2, synch=True), Traits(at_times=True, waits_for_all=True, synchronous=True)),
        (pbt(OwnPBT, synch=True), Traits(waits_for_all=True, synchronous=True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_kind_each_scheduler_is(scheduler, traits):
    assert traits_of(scheduler) == traits


def test_a_replay_refuses_a_trial_that_comes_again(tmp_path):
    assert traits_of(replay(tmp_path)) == Traits(at_times=True, replays=True)
