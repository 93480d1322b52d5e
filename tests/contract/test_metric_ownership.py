"""A metric has one name, and belongs to validation once any validation has returned it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune import CheckpointConfig, ResultGrid
from ray.tune.analysis import ExperimentAnalysis
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

import tunekit
from tests.support.kills import killed_at_each
from tests.support.schedulers import pbt
from tests.support.sweeps import LENGTH, Counting, Endless, Ran, index_of, rows_of, sweep
from tunekit.core.metrics import flatten
from tunekit.reading.curves import curves

MODES = ["continue", "wait", "wait-paused"]


def boasting(own: dict[str, Any]) -> type[Counting]:
    """A trainable that reports its own score, on its training data."""

    class Boasting(Counting):
        def step(self):
            return {**super().step(), **own}

    return Boasting


class Rows(LoggerCallback):
    def __init__(self):
        self.rows: list[dict[str, Any]] = []

    def log_trial_result(self, iteration, trial, result):
        self.rows.append(dict(result))


def results_of(ran: Ran) -> ResultGrid:
    goal = {"default_metric": "val/acc", "default_mode": "max"}
    return ResultGrid(ExperimentAnalysis(str(ran.home), trials=ran.trials, **goal))


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
def test_files_tables_and_loggers_show_a_metric_by_one_name_however_it_is_nested(
    tmp_path, reported, nested
):
    def validate(attempt):
        value = (attempt.request.iteration + 10 * int(attempt.request.trial_id[-1])) / 100
        return {"val": {"acc": value}} if nested else {"val/acc": value}

    rows = Rows()
    ran = sweep(
        tmp_path,
        trainable=boasting(reported),
        validate=validate,
        trials=2,
        metric="val/acc",
        loggers=True,
        later_callbacks=(rows,),
        listening=False,
    )
    loaded, results = tunekit.load(ran.home), results_of(ran)
    frames = {result.metrics["trial_id"]: result.metrics_dataframe for result in results}
    for index, trial in enumerate(ran.trials):
        name, own = trial.trial_id, [(n + 10 * index) / 100 for n in range(1, 10)]
        files = rows_of(trial)
        assert [flatten(row)["val/acc"] for row in files] == own
        assert all(row["tunekit/reported/val/acc"] == 0.99 for row in files)
        for table in (frames[name], loaded.reports[loaded.reports.trial_id == name]):
            assert list(table["val/acc"]) == own
            assert set(table["tunekit/reported/val/acc"]) == {0.99}
        points = curves(loaded.timeline, name, ["val/acc"])["val/acc"]
        assert [point["value"] for point in points] == own
        assert trial.metric_analysis["val/acc"]["max"] == own[-1]
        assert trial.metric_analysis["val/acc"]["min"] == own[0]
        shown = [flatten(row).get("val/acc") for row in rows.rows if row["trial_id"] == name]
        assert [value for value in shown if value is not None] == own
        for one in trial.run_metadata.checkpoint_manager.best_checkpoint_results:
            found = flatten(one.metrics)
            assert found["val/acc"] == own[found["training_iteration"] - 1]
    for mode, trial in (("max", ran.trials[1]), ("min", ran.trials[0])):
        found = results.get_best_result("val/acc", mode, scope="all")
        assert found.metrics["trial_id"] == trial.trial_id


@pytest.mark.parametrize("on_pending", MODES)
def test_scheduler_and_stopping_criteria_get_a_metric_however_it_is_nested(tmp_path, on_pending):
    heard: list[float] = []

    class Hears(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            heard.append(result["val/acc"])
            return super().on_trial_result(tune_controller, trial, result)

    sweep(
        tmp_path,
        Hears(),
        on_pending=on_pending,
        trainable=boasting({"val": {"loss": 0.5}, "val/acc": 0.99}),
        validate=lambda attempt: {"val": {"acc": 0.1}},
        trials=2,
        metric="val/acc",
        listening=False,
        stop={"val/acc": 0.5},
    )
    assert heard and set(heard) == {0.1}


@pytest.mark.parametrize(
    "name", ["generation", "iteration_runs", "validated_iteration", "reported", "time"]
)
def test_metric_with_a_name_that_tunekit_also_uses_keeps_its_reported_values(tmp_path, name):
    class Named(Endless):
        def step(self):
            result = super().step()
            return {**result, name: self.steps}

    ran = sweep(
        tmp_path,
        AsyncHyperBandScheduler(time_attr=name, max_t=50, grace_period=2, reduction_factor=2),
        trainable=Named,
        stop={name: 8},
        loggers=True,
        settings={"when": "decisions"},
        on_pending="wait",
    )
    lengths = ran.lengths().values()
    assert {2, 8} <= set(lengths) <= {2, 4, 8}, "stopped at rungs of that time, or by the criterion"
    reports = tunekit.load(ran.home).reports
    assert (reports[name] == reports["training_iteration"]).all()
    for trial in ran.trials:
        assert [row[name] for row in rows_of(trial)] == [*range(1, len(rows_of(trial)) + 1)]
        assert trial.metric_analysis[name]["max"] == trial.last_result[name]


# A validation that lacks the metric ---------------------------------------------------------------


def lacks_it(index: int):
    """That trial, and every third iteration, has no accuracy."""

    def validate(attempt):
        request = attempt.request
        odd = request.trial_id.endswith(str(index)) or request.iteration % 3 == 0
        value = request.iteration / 100 + int(request.trial_id[-1]) / 1000
        return {"loss": 0.5} if odd else {"loss": 0.5, "accuracy": value}

    return validate


@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("slow", [0.2, 5.0], ids=["lacking first", "lacking last"])
def test_training_value_never_replaces_a_missing_validation_score(tmp_path, on_pending, slow):
    ran = sweep(
        tmp_path,
        on_pending=on_pending,
        trainable=boasting({"accuracy": 0.99}),
        validate=lacks_it(0),
        validation_s=lambda a: slow if a.request.trial_id.endswith("0") else 1.0,
        trials=3,
        loggers=True,
        stop={"accuracy": 0.95},
    )
    assert {score for _, _, score, _ in ran.heard.results} == {
        i / 100 + n / 1000 for n in (1, 2) for i in (1, 2, 4, 5, 7, 8)
    }
    assert ran.lengths() == {0: LENGTH, 1: LENGTH, 2: LENGTH}
    lacking = ran.trials[0]
    assert "accuracy" not in lacking.metric_analysis and "accuracy" not in lacking.last_result
    assert dict(ran.heard.ends)[0] is None
    rows = rows_of(lacking)
    assert all(row["tunekit/reported/accuracy"] == 0.99 for row in rows)
    assert not any("accuracy" in row for row in rows)
    loaded = tunekit.load(ran.home)
    own = loaded.reports[loaded.reports.trial_id == lacking.trial_id]
    assert own.accuracy.isna().all()
    assert set(loaded.trials.best.dropna()) == {0.081, 0.082}
    assert lacking.trial_id not in set(loaded.decisions.trial_id)


@pytest.mark.parametrize("on_pending", MODES)
def test_trial_without_a_score_is_not_cloned(tmp_path, on_pending):
    def validate(attempt):
        number = int(attempt.request.trial_id[-1])
        return {"accuracy": number / 10} if number else {"loss": 0.5}

    ran = sweep(
        tmp_path,
        pbt(quantile_fraction=0.5),
        on_pending=on_pending,
        trainable=boasting({"accuracy": 0.99}),
        validate=validate,
        trials=4,
        param_space={"lr": 0.1},
        listening=False,
    )
    table = ran.validation.lineage.to_dataframe()
    first = next(t.trial_id for t in ran.trials if index_of(t) == 0)
    assert len(table) and first not in set(table.donor_id)
    assert (table.score < 0.5).all()


@pytest.mark.parametrize("on_pending", MODES)
def test_scheduler_that_ranks_by_a_training_metric_gets_every_result_in_order(tmp_path, on_pending):
    ran = sweep(
        tmp_path,
        AsyncHyperBandScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2),
        on_pending=on_pending,
        validate=lambda attempt: {"accuracy": 0.5},
        validation_s=lambda attempt: 3.0 if attempt.request.trial_id.endswith("2") else 1.0,
        trials=4,
        metric="loss",
        mode="min",
    )
    table = tunekit.load(ran.home).decisions
    assert (table.score == 1.0 / table.iteration).all()
    for index in range(4):
        assert ran.heard.of(index) == list(range(1, len(ran.heard.of(index)) + 1)) != []


@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_restored_sweep_decides_on_validation_scores_only(tmp_path, on_pending):
    def make(folder, **options):
        return sweep(
            folder,
            on_pending=on_pending,
            trainable=boasting({"accuracy": 0.99}),
            validate=lacks_it(0),
            validation_s=lambda a: 0.2 if a.request.trial_id.endswith("0") else 1.0,
            trials=2,
            run=False,
            stop={"training_iteration": 5},
            **options,
        )

    for ran, _ in killed_at_each(tmp_path, make, 25, start=14):
        table = tunekit.load(ran.home).decisions
        assert set(np.round(table.score, 3)) == {0.011, 0.021, 0.041, 0.051}
        assert set(table.iteration) == {1, 2, 4, 5} and len(table) == 4


def test_best_checkpoints_are_kept_by_validation_scores_only(tmp_path):
    ran = sweep(
        tmp_path,
        trainable=boasting({"accuracy": 0.99}),
        validate=lacks_it(9),
        trials=1,
        checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
    )
    manager = ran.trials[0].run_metadata.checkpoint_manager
    kept = {r.metrics["training_iteration"]: r.metrics for r in manager.best_checkpoint_results}
    assert {n: one["accuracy"] for n, one in kept.items()} == {7: 0.07, 8: 0.08}
    [left] = Path(ran.trials[0].path).glob("checkpoint_*8")  # the latest
    assert left.is_dir()


# Before the first validations have ended ---------------------------------------------------------


def test_sweep_continues_after_a_trial_that_ends_before_its_first_checkpoint(tmp_path):
    class EndsSoon(Counting):
        def step(self):
            soon = self.trial_name.endswith("0") and self.steps == 1
            return {**super().step(), **({"done": True} if soon else {})}

    ran = sweep(tmp_path, trainable=EndsSoon, policy=tunekit.EveryIterations(3), trials=4)
    assert ran.lengths() == {0: 2, 1: LENGTH, 2: LENGTH, 3: LENGTH}
    assert ran.validated()[0] == {}


def test_metric_that_later_validations_return_is_never_read_from_training(tmp_path):
    def validate(attempt):
        more = {"loss": 0.7} if attempt.request.trial_id.endswith("1") else {}
        return {"accuracy": attempt.request.iteration / 100, **more}

    ran = sweep(tmp_path, validate=validate, trials=2, slots=1)
    reports = tunekit.load(ran.home).reports
    first, second = (reports[reports.trial_id == trial.trial_id] for trial in ran.trials)
    assert first["loss"].isna().all() and set(second["loss"]) == {0.7}
    assert reports["tunekit/reported/loss"].notna().all()
    assert list(first["accuracy"]) == [n / 100 for n in range(1, LENGTH + 1)]
