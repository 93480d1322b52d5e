"""A metric has one name however it is written, and belongs to validation if that returns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune import ResultGrid
from ray.tune.analysis import ExperimentAnalysis
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

import tunekit
from tests.support.kills import killed_at_each
from tests.support.schedulers import moasha, pbt
from tests.support.sweeps import LENGTH, Counting, Endless, Ran, index_of, rows_of, sweep
from tunekit.reading.curves import curves

MODES = ["continue", "wait", "wait-paused"]
FLAT, NESTED = {"val/acc": 0.99}, {"val": {"acc": 0.99}}


def boasting(own: dict[str, Any]) -> type[Counting]:
    """A trainable that reports its own score, on its training data."""

    class Boasting(Counting):
        def step(self):
            return {**super().step(), **own}

    return Boasting


class Rows(LoggerCallback):
    """A logger of a user's."""

    def __init__(self):
        self.rows: list[dict[str, Any]] = []

    def log_trial_result(self, iteration, trial, result):
        self.rows.append(dict(result))


def results_of(ran: Ran) -> ResultGrid:
    controller = ran.sweep.controller
    analysis = ExperimentAnalysis(
        controller._storage.experiment_fs_path,
        storage_filesystem=controller._storage.storage_filesystem,
        trials=ran.trials,
        default_metric="val/acc",
        default_mode="max",
    )
    return ResultGrid(analysis)


@pytest.mark.parametrize("validated", [{"val/acc": None}, {"val": {"acc": None}}], ids=str)
@pytest.mark.parametrize(
    "reported",
    [
        FLAT,
        NESTED,
        {"val/acc": 0.99, "val": {"loss": 0.5}},
        {"val/acc": 0.98, "val": {"acc": 0.99}},
    ],
    ids=str,
)
def test_a_metric_has_one_name_wherever_it_is_shown(tmp_path, reported, validated):
    def validate(attempt):
        value = (attempt.request.iteration + 10 * int(attempt.request.trial_id[-1])) / 100
        return {"val/acc": value} if "val/acc" in validated else {"val": {"acc": value}}

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
    scores = {
        t.trial_id: [(n + 10 * i) / 100 for n in range(1, 10)] for i, t in enumerate(ran.trials)
    }
    loaded = tunekit.load(ran.home)
    frames = {result.metrics["trial_id"]: result.metrics_dataframe for result in results_of(ran)}
    for trial in ran.trials:
        own = scores[trial.trial_id]
        files = rows_of(trial)
        assert [tunekit.core.metrics.flatten(row)["val/acc"] for row in files] == own
        assert all(row["tunekit/reported/val/acc"] == 0.99 for row in files)
        assert list(frames[trial.trial_id]["val/acc"]) == own
        assert set(frames[trial.trial_id]["tunekit/reported/val/acc"]) == {0.99}
        table = loaded.reports[loaded.reports.trial_id == trial.trial_id]
        assert list(table["val/acc"]) == own and set(table["tunekit/reported/val/acc"]) == {0.99}
        points = [
            point["value"]
            for point in curves(loaded.timeline, trial.trial_id, ["val/acc"])["val/acc"]
        ]
        assert points == own
        assert trial.metric_analysis["val/acc"]["max"] == own[-1]
        assert trial.metric_analysis["val/acc"]["min"] == own[0]
        shown = [
            value
            for row in rows.rows
            if row["trial_id"] == trial.trial_id
            and (value := tunekit.core.metrics.flatten(row).get("val/acc")) is not None
        ]
        assert shown == own, "a user's logger is told validated values only"
        best = trial.run_metadata.checkpoint_manager.best_checkpoint_results
        for one in best:
            found = tunekit.core.metrics.flatten(one.metrics)
            assert found["val/acc"] == own[found["training_iteration"] - 1]
    best = results_of(ran).get_best_result("val/acc", "max", scope="all")
    assert best.metrics["trial_id"] == ran.trials[1].trial_id
    worst = results_of(ran).get_best_result("val/acc", "min", scope="all")
    assert worst.metrics["trial_id"] == ran.trials[0].trial_id


@pytest.mark.parametrize("on_pending", MODES)
def test_the_scheduler_gets_validation_metrics_however_they_are_nested(tmp_path, on_pending):
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


OWN_LOOKING = ["generation", "iteration_runs", "validated_iteration", "reported", "time"]


@pytest.mark.parametrize("name", OWN_LOOKING)
def test_metric_of_any_name_is_what_the_user_reports(tmp_path, name):
    """Schedulers count by it, criteria stop by it, and each table shows it."""

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
@pytest.mark.parametrize("slow", [0.2, 5.0], ids=["lacking-first", "lacking-last"])
def test_trainings_value_does_not_stand_in_for_a_validation(tmp_path, on_pending, slow):
    """Also where the first score of the sweep lacks it, and another one is on its way."""
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
    judged = loaded.decisions[loaded.decisions.trial_id == lacking.trial_id]
    assert judged.empty


@pytest.mark.parametrize("on_pending", MODES)
def test_a_trial_without_a_score_is_not_cloned(tmp_path, on_pending):
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
def test_a_sweep_may_be_ranked_by_a_metric_that_only_training_reports(tmp_path, on_pending):
    """As if it were validated inline: every result, in order, from the first one on."""
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
def test_a_restored_sweep_decides_on_the_same_scores(tmp_path, on_pending):
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


def test_a_checkpoint_is_not_kept_for_a_score_that_is_trainings(tmp_path):
    from ray.tune import CheckpointConfig

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


# Until it is known whose name it is ---------------------------------------------------------------


def test_a_trial_that_ends_before_its_first_checkpoint_ends_no_sweep(tmp_path, caplog):
    class EndsSoon(Counting):
        def step(self):
            soon = self.trial_name.endswith("0") and self.steps == 1
            return {**super().step(), **({"done": True} if soon else {})}

    ran = sweep(tmp_path, trainable=EndsSoon, policy=tunekit.EveryIterations(3), trials=4)
    assert ran.lengths() == {0: 2, 1: LENGTH, 2: LENGTH, 3: LENGTH}
    assert ran.validated()[0] == {}


@pytest.mark.parametrize("on_pending", ["wait", "continue"])
def test_results_that_wait_for_the_names_of_metrics_pass_in_the_order_of_their_scores(
    tmp_path, on_pending
):
    """Until the first validations have ended, the loss could be one of their metrics."""
    ran = sweep(
        tmp_path,
        moasha(),
        on_pending=on_pending,
        trials=4,
        validation_s=lambda attempt: 9.0 - 0.3 * int(attempt.request.trial_id.rsplit("_", 1)[1]),
    )
    assert list(dict.fromkeys(index for index, *_ in ran.heard.results)) == [3, 2, 1, 0]


def test_a_name_that_only_later_scores_have_is_validations_when_it_is_read(tmp_path):
    """The second trial's validation also returns a loss: training's is then another quantity."""

    def validate(attempt):
        more = {"loss": 0.7} if attempt.request.trial_id.endswith("1") else {}
        return {"accuracy": attempt.request.iteration / 100, **more}

    ran = sweep(tmp_path, validate=validate, trials=2, slots=1)
    reports = tunekit.load(ran.home).reports
    first, second = (reports[reports.trial_id == trial.trial_id] for trial in ran.trials)
    assert first["loss"].isna().all() and set(second["loss"]) == {0.7}
    assert reports["tunekit/reported/loss"].notna().all()
    assert list(first["accuracy"]) == [n / 100 for n in range(1, LENGTH + 1)]
