"""No scheduler ranks an infeasible score above a feasible one."""

from __future__ import annotations

import optuna
import pytest
from ray import tune
from ray.tune.search.optuna import OptunaSearch

import tunekit
from tests.support.contract import lags
from tests.support.journals import scores_of
from tests.support.local_sweep import index_of
from tests.support.schedulers import every_case, pb2, planned
from tests.support.sweeps import Plan
from tests.support.trainables import LENGTH
from tunekit.cli.best import format_best, format_front
from tunekit.cli.status import format_status, status_json
from tunekit.core.constraints import penalize
from tunekit.core.metrics import flatten
from tunekit.core.pareto import pareto_front as front_places
from tunekit.driver.results import ValidatedResults
from tunekit.schedulers import MOASHA

#: Broken from the sixth iteration on, where scores are best.
LIMITS = [tunekit.Constraint("loss >= 0.19")]


def penalized(score: float, iteration: int) -> float:
    result = {"accuracy": score, "loss": 1 / iteration}
    return penalize(result, {"accuracy": "max"}, LIMITS)["accuracy"]


@every_case
def test_no_infeasible_score_beats_a_feasible_one(tmp_path, name, mode):
    if name.startswith("pb2"):
        pytest.skip("PB2 fits a model to scores, and is refused")
    plan = planned(name, tmp_path, mode, trials=7).training(slots=3)
    ran = plan.validating(seconds=lags(3, 4.0), constraints=LIMITS).run()
    scores = ran.scores()
    feasible, infeasible = [], []
    told = zip(ran.heard.results, ran.heard.generations, strict=True)
    for (index, iteration, heard, _), generation in told:
        raw = scores[index].get((generation, iteration))
        if raw is not None:  # it is not a result that it was reminded of
            assert heard == penalized(raw, iteration)
            (feasible if iteration <= 5 else infeasible).append(heard)
    assert feasible, "nothing was compared"
    assert not infeasible or max(infeasible) < min(feasible)
    for index, heard in ran.heard.ends:
        assert heard is None or heard in {penalized(s, i) for (_, i), s in scores[index].items()}
    # What readers show is what was validated.
    indices = {trial.trial_id: index_of(trial) for trial in ran.trials}
    for exploit in ran.validation.ledger.state.ancestry if name != "pbt-replay" else ():
        place = exploit.donor_generation, exploit.iteration
        assert exploit.score == scores[indices[exploit.donor_id]][place]
    for trial in ran.trials:
        own = scores[index_of(trial)]
        assert not own or trial.last_result["accuracy"] in own.values()
    best = tunekit.load(ran.home).best("accuracy", "max")
    known = [(i, score) for own in scores.values() for (_, i), score in own.items()]
    assert best.iteration <= 5 and best.score == max(score for i, score in known if i <= 5)


def test_pb2_with_constraints_is_refused():
    with pytest.raises(tunekit.errors.ConfigError, match="PB2"):
        tunekit.Tuner(
            lambda config: None,
            param_space={"lr": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=pb2(None)),
            validation_config=tunekit.ValidationConfig(lambda c: {}, constraints=LIMITS),
        )


# What readers show -------------------------------------------------------------------------------


def sized(attempt):
    """The larger a network, the better and slower it is; trials differ in size."""
    size = 10.0 * (1 + int(attempt.request.trial_id.rsplit("_", 1)[1], 16))
    return {"accuracy": 1 - 1 / size + attempt.request.iteration / 1000, "latency_ms": size}


@pytest.mark.parametrize(
    ("bound", "index", "violation"), [(25, 1, 0.0), (5, 0, 1.0)], ids=["feasible", "none feasible"]
)
def test_best_checkpoint_satisfies_the_constraints_or_violates_them_least(
    tmp_path, bound, index, violation
):
    limits = [tunekit.Constraint(f"latency_ms <= {bound}")]
    ran = Plan(tmp_path, trials=4).validating(sized, constraints=limits).run()
    loaded, expected = tunekit.load(ran.home), ran.trials[index].trial_id
    best = loaded.best()
    assert (best.trial_id, best.iteration, best.violation) == (expected, LENGTH, violation)
    assert loaded.ranking()[0].trial_id == expected
    status = format_status(status_json(loaded, now=0.0))
    for text in (format_best(best, str(ran.home), loaded), status):
        assert (limits[0].text in text) == (violation > 0)
    assert "violation" in status and ("60%" if violation == 0 else "300%") in status
    if violation == 0:
        assert loaded.to_optuna().best_trial.user_attrs["trial_id"] == expected
    analysis = tune.ExperimentAnalysis(str(ran.home), trials=ran.trials)
    results = ValidatedResults(tune.ResultGrid(analysis), limits)
    assert results.get_best_result("accuracy", "max").metrics["trial_id"] == expected
    with pytest.raises(tunekit.errors.ConfigError, match="scope="):
        results.get_best_result("accuracy", "max", scope="all")


def test_pareto_front_has_exactly_the_checkpoints_that_none_dominates(tmp_path):
    moasha = MOASHA({"accuracy": "max", "latency_ms": "min"}, max_t=9, reduction_factor=3)
    ran = Plan(tmp_path, moasha, trials=6).validating(sized).tuning(metric=None, mode=None).run()
    loaded = tunekit.load(ran.home)
    front = loaded.pareto()
    scores = [
        (flatten(metrics)["accuracy"], -flatten(metrics)["latency_ms"])
        for own in scores_of(ran.home).values()
        for metrics in own.values()
    ]
    expected = sorted((scores[place] for place in front_places(scores)), reverse=True)
    assert [(one.score, -one.metrics["latency_ms"]) for one in front] == expected
    assert len(front) > 1 and loaded.metric is None
    names, summary = [one.trial_id for one in front], loaded.summary()
    assert [one["trial_id"] for one in summary["pareto"]] == names
    lines = format_front(summary, "x").splitlines()
    assert [line.split()[2] for line in lines[3 : 3 + len(front)]] == names
    assert f"{len(front)} checkpoints" in format_status(status_json(loaded, now=0.0))
    assert loaded.pareto({"accuracy": "max", "training_iteration": "max"}) == []
    study = loaded.to_optuna()
    assert [one.name for one in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    done = {trial.user_attrs["trial_id"]: trial.values for trial in study.trials}
    assert done[names[0]] == [front[0].score, front[0].metrics["latency_ms"]]


def violations(trial):
    return trial.user_attrs["constraints"]


def test_optuna_gets_raw_scores_and_violations_as_an_attribute(tmp_path):
    def validate(attempt):
        lr = attempt.request.config["lr"]
        return {"accuracy": lr, "latency_ms": 50 * lr}

    sampler = optuna.samplers.TPESampler(seed=0, constraints_func=violations)
    search = OptunaSearch(metric="accuracy", mode="max", sampler=sampler)
    limits = [tunekit.Constraint("latency_ms <= 25")]
    plan = Plan(tmp_path, trials=6).validating(validate, constraints=limits)
    plan.tuning(param_space={"lr": tune.uniform(0, 1)}, search_alg=search).run()
    trials = search._ot_study.trials
    assert [trial.value for trial in trials] == [trial.params["lr"] for trial in trials]
    broken = [violations(trial) for trial in trials]
    assert broken == [[max(0.0, (50 * trial.value - 25) / 25)] for trial in trials]
    assert 0 < broken.count([0.0]) < 6


def test_pareto_front_has_the_feasible_one_of_checkpoints_with_equal_metrics(tmp_path):
    def validate(attempt):
        return {"accuracy": 0.5, "latency_ms": 20.0, "mb": 30.0 - attempt.request.iteration}

    limits = [tunekit.Constraint("mb <= 25")]
    ran = Plan(tmp_path, trials=1).validating(validate, constraints=limits).run()
    front = tunekit.load(ran.home).pareto({"accuracy": "max", "latency_ms": "min"})
    assert [(one.iteration, one.violation) for one in front] == [(5, 0.0)]
