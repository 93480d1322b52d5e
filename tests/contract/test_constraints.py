"""Constraints with every scheduler: no score that breaks one beats one that keeps them all."""

from __future__ import annotations

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.contract.test_contract import lags, run
from tests.schedulers import CASES, every_case, pb2
from tests.sweeps import index_of, sweep
from tunekit.core.constraints import standing_for

#: Broken from the sixth iteration on, where scores are best.
LIMITS = [tunekit.Constraint("loss >= 0.19")]


def told(score: float, iteration: int) -> float:
    result = {"accuracy": score, "loss": 1 / iteration}
    return standing_for(result, {"accuracy": "max"}, LIMITS)["accuracy"]


@every_case
def test_no_infeasible_score_beats_a_feasible_one(tmp_path, name, on_pending):
    if name.startswith("pb2"):
        pytest.skip("PB2 fits a model to scores, and is refused")
    settings = {"constraints": LIMITS}
    ran = run(
        name,
        tmp_path,
        on_pending=on_pending,
        trials=10,
        slots=4,
        settings=settings,
        validation_s=lags(3, 4.0),
    )
    scores = ran.scores()
    feasible, infeasible = [], []
    for (index, iteration, heard, _), generation in zip(
        ran.heard.results, ran.heard.generations, strict=True
    ):
        raw = scores[index].get((generation, iteration))
        if raw is None:
            continue  # a result that it was reminded of
        assert heard == told(raw, iteration)
        (feasible if iteration <= 5 else infeasible).append(heard)
    assert feasible, "nothing was compared"
    assert not infeasible or max(infeasible) < min(feasible)
    for index, heard in ran.heard.ends:
        assert heard is None or heard in {told(s, i) for (_, i), s in scores[index].items()}
    # What people see is what was validated.
    for trial in ran.trials:
        of_trial, newest = scores[index_of(trial)], trial.last_result
        assert not of_trial or newest["accuracy"] in of_trial.values()
    best = tunekit.load(ran.home).best("accuracy", "max")
    assert best.iteration <= 5
    assert best.score == max(
        score for of_trial in scores.values() for (_, i), score in of_trial.items() if i <= 5
    )


def test_scores_of_a_metric_that_is_to_be_small_are_made_large(tmp_path):
    asha = ASHAScheduler(metric="error", mode="min", max_t=9, grace_period=3, reduction_factor=3)
    limit = tunekit.Constraint("latency_ms <= 10")

    def validate(attempt):
        return {
            "error": 1.0 / attempt.request.iteration,
            "latency_ms": attempt.request.iteration * 4,
        }

    ran = sweep(
        tmp_path,
        asha,
        trials=3,
        validate=validate,
        metric=None,
        mode=None,
        settings={"constraints": [limit], "on_pending": "wait"},
        listening=False,
    )
    told_at = dict(asha._brackets[0]._rungs)
    assert all(-1e300 < score < -1e298 for score in told_at[3].values()), "12 ms at iteration 3"
    assert ran.trials


def test_schedulers_and_searchers_that_fit_a_model_to_scores_are_refused():
    with pytest.raises(tunekit.errors.ConfigError, match="PB2 fits a model"):
        tunekit.Tuner(
            lambda config: None,
            param_space={"lr": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=pb2(None)),
            validation_config=tunekit.ValidationConfig(lambda c: {}, constraints=LIMITS),
        )


def test_every_case_can_be_given_constraints():
    assert not any("settings" in case.options() for case in CASES.values())
