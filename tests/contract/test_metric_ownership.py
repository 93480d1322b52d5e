"""A metric has one name, and belongs to validation once any validation has returned it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune import CheckpointConfig, ResultGrid
from ray.tune.analysis import ExperimentAnalysis
from ray.tune.schedulers import AsyncHyperBandScheduler

import tunekit
from tests.support.kills import killed_at_each
from tests.support.modes import Mode
from tests.support.schedulers import pbt
from tests.support.sweeps import Plan, rows_of
from tests.support.trainables import LENGTH, Counting, Endless
from tunekit.core.metrics import flatten
from tunekit.reading.curves import curves

MODES = [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED]


def boasting(own: dict[str, Any]) -> type[Counting]:
    """A trainable that reports its own score, on its training data."""

    class Boasting(Counting):
        def step(self):
            return {**super().step(), **own}

    return Boasting


@pytest.mark.parametrize("nested", [False, True], ids=["validated flat", "validated nested"])
@pytest.mark.parametrize(
    "reported",
    [
        {"val/acc": 0.99},
        {"val": {"acc": 0.99}},
        {"val/acc": 0.99, "val": {"loss": 0.5}},
        {"val/acc": 0.98, "val": {"acc": 0.99}},
    ],
    ids=str,
)
def test_files_tables_and_deciders_get_a_metric_by_one_name_however_it_is_nested(
    tmp_path, reported, nested
):
    def validate(attempt):
        value = (attempt.request.iteration + 10 * int(attempt.request.trial_id[-1])) / 100
        return {"val": {"acc": value}} if nested else {"val/acc": value}

    plan = Plan(tmp_path, trials=2).training(boasting(reported)).validating(validate)
    ran = plan.tuning(metric="val/acc", stop={"val/acc": 0.5}).logging().run()
    assert all(score == (n + 10 * index) / 100 for index, n, score, _ in ran.heard.results)
    loaded = tunekit.load(ran.home)
    analysis = ExperimentAnalysis(str(ran.home), trials=ran.trials)
    results = {result.metrics["trial_id"]: result for result in ResultGrid(analysis)}
    for index, trial in enumerate(ran.trials):
        name, own = trial.trial_id, [(n + 10 * index) / 100 for n in range(1, 10)]
        files = rows_of(trial)
        assert [flatten(row)["val/acc"] for row in files] == own
        assert all(row["tunekit/reported/val/acc"] == 0.99 for row in files)
        reports = loaded.reports[loaded.reports.trial_id == name]
        for table in (results[name].metrics_dataframe, reports):
            assert list(table["val/acc"]) == own
            assert set(table["tunekit/reported/val/acc"]) == {0.99}
        points = curves(loaded.timeline, name, ["val/acc"])["val/acc"]
        assert [point["value"] for point in points] == own
        extremes = trial.metric_analysis["val/acc"]
        assert (extremes["min"], extremes["max"]) == (own[0], own[-1])
        for _, metrics in results[name].best_checkpoints:
            found = flatten(metrics)
            assert found["val/acc"] == own[found["training_iteration"] - 1]


#: What tunekit uses, too, below ``tunekit/``.
NAMES = ["generation", "iteration_runs", "validated_iteration", "reported", "time"]


class ReportsAll(Endless):
    def step(self):
        return {**super().step(), **dict.fromkeys(NAMES, self.steps)}


@pytest.mark.parametrize("time_attr", NAMES)
def test_metric_with_a_name_that_tunekit_also_uses_keeps_its_reported_values(tmp_path, time_attr):
    base = AsyncHyperBandScheduler(time_attr, max_t=50, grace_period=2, reduction_factor=2)
    plan = Plan(tmp_path, base, Mode.WAIT, trials=4).training(ReportsAll)
    ran = plan.validating(when="decisions").tuning(stop={time_attr: 8}).logging().run()
    lengths = ran.lengths().values()
    assert {2, 8} <= set(lengths) <= {2, 4, 8}, "stopped at rungs of that time, or by the criterion"
    reports = tunekit.load(ran.home).reports
    for trial, length in zip(ran.trials, lengths, strict=True):
        own = reports[reports.trial_id == trial.trial_id]
        for name in NAMES:
            steps = list(range(1, length + 1))
            assert list(own[name]) == [row[name] for row in rows_of(trial)] == steps
            assert trial.metric_analysis[name]["max"] == trial.last_result[name] == length


# A validation that lacks the metric ---------------------------------------------------------------


def of_trial(index: int, seconds: float):
    """Validations of that trial take so long, those of others a second."""
    return lambda attempt: seconds if attempt.request.trial_id.endswith(str(index)) else 1.0


def lacks_it(index: int):
    """That trial, and every third iteration, has no accuracy."""

    def validate(attempt):
        request = attempt.request
        odd = request.trial_id.endswith(str(index)) or request.iteration % 3 == 0
        value = request.iteration / 100 + int(request.trial_id[-1]) / 1000
        return {"loss": 0.5} if odd else {"loss": 0.5, "accuracy": value}

    return validate


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slow", [0.2, 5.0], ids=["lacking first", "lacking last"])
def test_training_value_never_replaces_a_missing_validation_score(tmp_path, mode, slow):
    ran = (
        Plan(tmp_path, mode=mode, trials=3)
        .training(boasting({"accuracy": 0.99}))
        .validating(lacks_it(0), seconds=of_trial(0, slow))
        .tuning(stop={"accuracy": 0.95})
        .logging()
        .run()
    )
    assert {score for _, _, score, _ in ran.heard.results} == {
        i / 100 + n / 1000 for n in (1, 2) for i in (1, 2, 4, 5, 7, 8)
    }
    assert ran.lengths() == {0: LENGTH, 1: LENGTH, 2: LENGTH}
    lacking = ran.trials[0]
    assert "accuracy" not in lacking.metric_analysis and "accuracy" not in lacking.last_result
    assert dict(ran.heard.ends)[0] is None
    for row in rows_of(lacking):
        assert row["tunekit/reported/accuracy"] == 0.99 and "accuracy" not in row
    loaded = tunekit.load(ran.home)
    assert loaded.reports[loaded.reports.trial_id == lacking.trial_id].accuracy.isna().all()
    assert set(loaded.trials.best.dropna()) == {0.081, 0.082}
    assert lacking.trial_id not in set(loaded.decisions.trial_id)


def test_tables_and_files_show_no_training_value_as_a_score_if_no_validation_succeeds(tmp_path):
    def fails(attempt):
        raise ValueError("no score")

    plan = Plan(tmp_path, trials=1).training(boasting({"accuracy": 0.99})).validating(fails)
    ran = plan.logging().run()
    reports = tunekit.load(ran.home).reports
    assert "accuracy" not in {*reports, *rows_of(ran.trials[0])[0]}
    assert set(reports["tunekit/reported/accuracy"]) == {0.99}


@pytest.mark.parametrize("mode", MODES)
def test_trial_without_a_score_is_not_cloned(tmp_path, mode):
    def validate(attempt):
        number = int(attempt.request.trial_id[-1])
        return {"accuracy": number / 10} if number else {"loss": 0.5}

    plan = Plan(tmp_path, pbt(quantile_fraction=0.5), mode, trials=4).validating(validate)
    ran = plan.training(boasting({"accuracy": 0.99})).tuning(param_space={"lr": 0.1}).run()
    table = ran.validation.lineage.to_dataframe()
    assert len(table) and ran.trials[0].trial_id not in set(table.donor_id)
    assert (table.score < 0.5).all()


@pytest.mark.parametrize("mode", MODES)
def test_scheduler_that_ranks_by_a_training_metric_gets_every_result_in_order(tmp_path, mode):
    base = AsyncHyperBandScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2)
    plan = Plan(tmp_path, base, mode, trials=4).tuning(metric="loss", mode="min")
    ran = plan.validating(lambda attempt: {"accuracy": 0.5}, seconds=of_trial(2, 3.0)).run()
    table = tunekit.load(ran.home).decisions
    assert (table.score == 1.0 / table.iteration).all()
    for index in range(4):
        assert ran.heard.of(index) == list(range(1, len(ran.heard.of(index)) + 1)) != []


def test_restored_sweep_decides_on_validation_scores_only(tmp_path):
    def make(folder):
        plan = Plan(folder, mode=Mode.WAIT, trials=2).training(boasting({"accuracy": 0.99}))
        plan = plan.validating(lacks_it(0), seconds=of_trial(0, 0.2))
        return plan.tuning(stop={"training_iteration": 5})

    for ran, _ in killed_at_each(tmp_path, make, 25, start=14):
        table = tunekit.load(ran.home).decisions
        assert sorted(table.score.round(3)) == [0.011, 0.021, 0.041, 0.051]
        assert sorted(table.iteration) == [1, 2, 4, 5]


def test_best_checkpoints_are_kept_by_validation_scores_only(tmp_path):
    keep = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    plan = Plan(tmp_path, trials=1).training(boasting({"accuracy": 0.99})).validating(lacks_it(9))
    [trial] = plan.tuning(checkpoint_config=keep).run().trials
    results = trial.run_metadata.checkpoint_manager.best_checkpoint_results
    kept = {one.metrics["training_iteration"]: one.metrics["accuracy"] for one in results}
    assert kept == {7: 0.07, 8: 0.08}
    assert Path(trial.path, "checkpoint_000008").is_dir(), "the latest"


# Before the first validations have ended ---------------------------------------------------------


def test_sweep_continues_after_a_trial_that_ends_before_its_first_checkpoint(tmp_path):
    class EndsSoon(Counting):
        def step(self):
            soon = self.trial_name.endswith("0") and self.steps == 1
            return {**super().step(), **({"done": True} if soon else {})}

    ran = Plan(tmp_path, trials=4).training(EndsSoon, saves=tunekit.EveryIterations(3)).run()
    assert ran.lengths() == {0: 2, 1: LENGTH, 2: LENGTH, 3: LENGTH}
    assert ran.validated()[0] == {}


def test_metric_that_later_validations_return_is_never_read_from_training(tmp_path):
    def validate(attempt):
        more = {"loss": 0.7} if attempt.request.trial_id.endswith("1") else {}
        return {"accuracy": attempt.request.iteration / 100, **more}

    ran = Plan(tmp_path, trials=2).training(slots=1).validating(validate).run()
    reports = tunekit.load(ran.home).reports
    first, second = (reports[reports.trial_id == trial.trial_id] for trial in ran.trials)
    assert first["loss"].isna().all() and set(second["loss"]) == {0.7}
    assert reports["tunekit/reported/loss"].notna().all()
    assert list(first["accuracy"]) == [n / 100 for n in range(1, LENGTH + 1)]
