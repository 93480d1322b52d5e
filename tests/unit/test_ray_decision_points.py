"""The rule and the traits read from each scheduler say when it decides and what it does then.

That exactly the scores which they decide on are computed is in
``tests/contract/test_same_decisions_as_inline.py``.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.pb2 import PB2

from tests.support.schedulers import replay
from tunekit._ray.scheduler_kinds import rule_for, time_attr_of, traits_of
from tunekit.core.decision_points import Always, Interval, Never
from tunekit.errors import UnsupportedRayError
from tunekit.schedulers import PromotionASHA, Traits


class FakeTrial:
    """As much of a trial as schedulers look at."""

    status, experiment_tag, evaluated_params = Trial.RUNNING, "", {}
    run_metadata = SimpleNamespace(
        checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
    )

    def __init__(self, trial_id: str):
        self.trial_id, self.config = trial_id, {"lr": 0.5}

    def is_finished(self) -> bool:
        return False


def pbt(kind=PopulationBasedTraining, **options):
    mutations = "hyperparam_bounds" if kind is PB2 else "hyperparam_mutations"
    return kind(
        time_attr="t", metric="acc", mode="max", **{mutations: {"lr": [0.1, 1.0]}}, **options
    )


def test_interval_of_pbt_starts_again_after_a_failure():
    base, trial = pbt(perturbation_interval=4, quantile_fraction=0.0), FakeTrial("a")
    tune = SimpleNamespace(search_alg=None, get_trials=list)
    base.on_trial_add(tune, trial)
    for now in (4, 8):
        base.on_trial_result(tune, trial, {"t": now, "training_iteration": now, "acc": 0.5})
    assert rule_for(base, trial) == Interval(4, 0.0, 8)
    base.on_trial_error(tune, trial)
    base.on_trial_add(tune, trial)
    assert rule_for(base, trial) == Interval(4), "stock PBT perturbs at its first report, too"


def hyperband(kind, max_t=9):
    return kind(metric="acc", mode="max", max_t=max_t, reduction_factor=3)


def test_decision_point_of_a_restarted_trial_is_what_its_hyperband_bracket_waits_for():
    base = hyperband(HyperBandScheduler, max_t=81)
    bracket, trial = base._create_bracket(3), FakeTrial("a")
    base._trial_info[trial] = bracket, 0
    bracket.add_trial(trial)
    bracket._live_trials[trial] = {"acc": 1.0, "training_iteration": 3}
    bracket.successive_halving("acc", 1.0)
    bracket._live_trials[trial] = None  # it failed and was added again
    rule = rule_for(base, trial)
    assert [i for i in range(1, 12) if rule.decision_point(i, ()) is not None] == [9, 10, 11]


def test_scheduler_without_a_private_attribute_raises_an_error_that_names_it():
    base = ASHAScheduler(metric="acc", mode="max")
    del base._trial_info
    with pytest.raises(UnsupportedRayError, match=r"AsyncHyperBandScheduler.*\b_trial_info\b"):
        rule_for(base, FakeTrial("a"))


class Own(ASHAScheduler):
    pass


class OwnPBT(PopulationBasedTraining):
    pass


class OwnHyperBand(HyperBandScheduler):
    pass


class OwnPromotion(PromotionASHA):
    def on_trial_result(self, tune_controller, trial, result):
        return self.CONTINUE


NAMED = {"metric": "acc", "mode": "max"}
AT_TIMES = Traits(at_times=True, clones=False)
SYNCHRONOUS = Traits(at_times=True, waits_for_all=True, synchronous=True)


@pytest.mark.parametrize(
    ("scheduler", "time_attr", "rule", "traits"),
    [
        (FIFOScheduler(), None, Never(), Traits(clones=False, pauses=False)),
        (MedianStoppingRule(time_attr="t"), "t", Always(), Traits(clones=False)),
        (ASHAScheduler("t", **NAMED), "t", Never(), replace(AT_TIMES, pauses=False)),
        (ResourceChangingScheduler(), None, Never(), Traits(clones=False)),
        (ResourceChangingScheduler(ASHAScheduler("t", **NAMED)), "t", Never(), AT_TIMES),
        (Own(time_attr="t", **NAMED), None, Always(), Traits()),
        (hyperband(HyperBandScheduler), None, Never(), replace(AT_TIMES, waits_for_all=True)),
        (hyperband(OwnHyperBand), None, Always(), Traits(waits_for_all=True)),
        (hyperband(HyperBandForBOHB), None, Never(), AT_TIMES),
        (PromotionASHA(time_attr="t", **NAMED), "t", Never(), AT_TIMES),
        (OwnPromotion(**NAMED), None, Always(), Traits()),
        (pbt(), "t", Never(), Traits(at_times=True)),
        (pbt(PB2), "t", Never(), Traits(at_times=True)),
        (pbt(synch=True), "t", Never(), SYNCHRONOUS),
        (pbt(PB2, synch=True), "t", Never(), SYNCHRONOUS),
        (pbt(OwnPBT, synch=True), None, Always(), replace(SYNCHRONOUS, at_times=False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scheduler_has_its_own_traits_and_rule_for_unknown_trials_and_a_subclass_cautious_ones(
    scheduler, time_attr, rule, traits
):
    assert traits_of(scheduler) == traits
    assert rule_for(scheduler, FakeTrial("never added")) == rule
    assert time_attr_of(scheduler) == (time_attr or "training_iteration")


def test_replay_scheduler_decides_at_known_times_and_replays(tmp_path):
    assert traits_of(replay(tmp_path)) == Traits(at_times=True, replays=True)
