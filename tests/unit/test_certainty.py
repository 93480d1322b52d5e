"""What the books of Tune's schedulers say about a score that is known by an interval."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)

from tunekit._ray.scheduler_kinds import decides_alike
from tunekit.core.confidence import Interval


def trials_of(scheduler, count):
    """Add so many trials to a scheduler."""
    made = [Trial("train", stub=True, trial_id=f"t{n}") for n in range(count)]
    for trial in made:
        trial.status = Trial.RUNNING
        scheduler.on_trial_add(SimpleNamespace(search_alg=None), trial)
    return made


def alike(scheduler, trial, *ends, at=1):
    return decides_alike(scheduler, trial, at, Interval(*ends))


GOAL = {"metric": "accuracy", "mode": "max", "time_attr": "training_iteration"}


def hyperband(scores, mode="max"):
    """A bracket of nine, of which three are kept; those that have scores have reached its rung."""
    scheduler = HyperBandScheduler(max_t=9, reduction_factor=3, **{**GOAL, "mode": mode})
    made = trials_of(scheduler, 20)
    bracket = next(b for b, _ in scheduler._trial_info.values() if b._n == 9)
    live = list(bracket._live_trials)
    assert len(live) == 9 and bracket._cumul_r == 1 and len(made) == 20
    for trial, score in zip(live, scores, strict=False):
        bracket._live_trials[trial] = {"training_iteration": 1, "accuracy": score}
    return scheduler, live[-1]


def test_hyperband_keeps_the_best_third_of_a_full_bracket():
    scheduler, last = hyperband([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert alike(scheduler, last, 0.45, 0.55), "five or fewer are below: it is stopped"
    assert alike(scheduler, last, 0.61, 0.9), "six or more are below: it is kept"
    assert not alike(scheduler, last, 0.55, 0.65)


def test_hyperband_is_certain_of_what_no_missing_score_can_change():
    scheduler, last = hyperband([0.1, 0.2, 0.7, 0.8, 0.9])
    assert alike(scheduler, last, 0.3, 0.6), "three are better: it is stopped"
    assert not alike(scheduler, last, 0.71, 0.79), "the missing three may all be better, or none"


def test_hyperband_does_not_compare_with_scores_of_an_older_rung():
    scheduler, last = hyperband([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    bracket, _ = scheduler._trial_info[last]
    bracket._cumul_r = 3
    assert not alike(scheduler, last, 0.61, 0.9, at=3), "none of them has come there"


def test_hyperband_that_minimises_keeps_the_least():
    scheduler, last = hyperband([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2], mode="min")
    assert alike(scheduler, last, 0.1, 0.35)
    assert not alike(scheduler, last, 0.35, 0.45)


def pbt(scores, **settings):
    scheduler = PopulationBasedTraining(
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1]},
        quantile_fraction=0.25,
        **{**GOAL, **settings},
    )
    made = trials_of(scheduler, len(scores) + 1)
    for trial, score in zip(made, scores, strict=False):
        scheduler._trial_state[trial].last_score = score
        scheduler._trial_state[trial].last_train_time = 0 if score is None else 2
    return scheduler, made[-1]


@pytest.mark.parametrize(
    ("ends", "certain"),
    [
        ((0.11, 0.19), True),  # of the two worst
        ((0.15, 0.25), False),
        ((0.25, 0.55), True),  # neither
        ((0.55, 0.65), False),
        ((0.65, 0.95), True),  # of the two best
    ],
)
def test_pbt_is_certain_between_its_quantiles(ends, certain):
    scheduler, last = pbt([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert alike(scheduler, last, *ends) is certain


def test_synchronous_pbt_waits_for_the_scores_of_all():
    scheduler, last = pbt([0.1, 0.2, None, 0.4, 0.5, 0.6, 0.7], synch=True)
    assert alike(scheduler, last, 0.65, 0.95) is False, "the missing one may be better"
    assert alike(scheduler, last, 0.41, 0.49), "whatever it is"


def test_asha_is_certain_away_from_its_cutoff_and_the_scores_beside_it():
    scheduler = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=2, **GOAL)
    made = trials_of(scheduler, 5)
    assert alike(scheduler, made[0], 0.0, 1.0), "it is the first at its rung"
    for trial, score in zip(made, [0.1, 0.3, 0.5, 0.7], strict=False):
        scheduler.on_trial_result(None, trial, {"training_iteration": 1, "accuracy": score})
    last = made[-1]
    assert [alike(scheduler, last, low, low + 0.04) for low in (0.38, 0.28, 0.48)] == [False] * 3
    assert all(alike(scheduler, last, low, low + 0.04) for low in (0.2, 0.32, 0.42, 0.6, 0.68))
    assert alike(scheduler, last, 0.0, 1.0, at=9), "it ends there, whatever its score"
    around = ResourceChangingScheduler(scheduler)
    assert not alike(around, last, 0.38, 0.42)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_median_decides_only_about_a_trial_that_has_not_been_better(mode):
    goal = {name: GOAL[name] for name in ("metric", "time_attr")} | {"mode": mode}
    scheduler = MedianStoppingRule(grace_period=1, min_samples_required=2, **goal)
    made = trials_of(scheduler, 4)
    for trial, score in zip(made, [0.2, 0.4, 0.6], strict=False):
        scheduler._results[trial].append({"training_iteration": 1, "accuracy": score})
    last = made[-1]
    assert not alike(scheduler, last, 0.35, 0.45)
    assert alike(scheduler, last, 0.2, 0.39) and alike(scheduler, last, 0.41, 0.9)
    assert alike(scheduler, last, 0.35, 0.45, at=0), "it decides nothing so early"
    own = {"max": [0.3, 0.5], "min": [0.5, 0.3]}[mode]
    for score, good_enough in zip(own, [False, True], strict=True):
        scheduler._results[last].append({"training_iteration": 1, "accuracy": score})
        assert alike(scheduler, last, 0.1, 0.9, at=1) is good_enough


class Other(ASHAScheduler):
    """A scheduler that may decide in any way."""


def test_a_scheduler_that_is_not_exactly_known_may_decide_otherwise():
    scheduler = Other(max_t=9, **GOAL)
    assert alike(scheduler, trials_of(scheduler, 1)[0], 0.1, 0.2) is False
