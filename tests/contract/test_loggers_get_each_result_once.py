"""Each logger and each file, Tune's and the user's, gets each result once, with its score."""

from __future__ import annotations

import csv
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import ExperimentAnalysis, ResultGrid
from ray.tune.experiment import Trial
from ray.tune.logger import LoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tunekit
from tests.support import schedulers
from tests.support.journals import read
from tests.support.kills import run_killed
from tests.support.modes import MODES, Mode
from tests.support.sweeps import Plan, Ran, rows_of
from tests.support.trainables import Counting, Endless, FailsOnce
from tunekit._ray import split_callbacks
from tunekit.driver.results import ValidatedResults

LENGTH = 14

# By trial, in order: generation, iteration and score of each result; None without a score.
Rows = dict[str, list[tuple[int, int, float | None]]]


class Store(LoggerCallback):
    """As those of MLflow or Comet: a run for each trial, which takes no rows after its end."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.open: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.ends: dict[str, bool] = {}

    def log_trial_start(self, trial: Trial) -> None:
        self.open.add(trial.trial_id)
        self.starts[trial.trial_id] += 1

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        assert trial.trial_id in self.open
        self.rows[trial.trial_id].append(dict(result))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self.open.discard(trial.trial_id)
        self.ends[trial.trial_id] = failed


def logged(
    folder: Path,
    store: Store,
    base: TrialScheduler | None = None,
    mode: Mode = Mode.CONTINUE,
    *,
    trials: int = 2,
) -> Plan:
    """A sweep with loggers of Tune's and of a user's."""
    return (
        Plan(folder, base, mode, trials=trials)
        .training(Endless)
        .validating(seconds=lambda attempt: random.Random(attempt.id).uniform(0.1, 9.0))
        .tuning(stop={"training_iteration": LENGTH})
        .calling(last=(store, TBXLoggerCallback()))
        .logging()
    )


def fifo(folder: Path, store: Store) -> Plan:
    return logged(folder, store, trials=3).training(saves=tunekit.EveryIterations(4))


def asha(folder: Path, store: Store, mode: Mode) -> Plan:
    base = AsyncHyperBandScheduler(grace_period=2, reduction_factor=2, max_t=LENGTH)
    return logged(folder, store, base, mode, trials=8).training(slots=3)


def pbt(folder: Path, store: Store) -> Plan:
    schedulers.seed_all(0)  # PBT draws donors and hyperparameters
    base = schedulers.pbt(perturbation_interval=3, quantile_fraction=0.5)
    return logged(folder, store, base, trials=4).tuning(**schedulers.space())


MADE: dict[str, Callable[[Path, Store], Plan]] = {"fifo": fifo, "pbt": pbt}
MADE |= {f"asha-{mode}": partial(asha, mode=mode) for mode in MODES}


def row_of(row: dict[str, Any]) -> tuple[int, int, float | None]:
    score = float(row.get("accuracy") or "nan")
    place = int(row["tunekit/generation"]), int(row["training_iteration"])
    return (*place, None if math.isnan(score) else score)


def processed(ran: Ran) -> Rows:
    """Return what Tune has processed, according to the journal."""
    found: Rows = {trial.trial_id: [] for trial in ran.trials}
    ended = [event for event in read(ran.home, "validation_ended") if event["metrics"]]
    scores = {event["id"]: event["metrics"]["accuracy"] for event in ended}
    for event in read(ran.home, "processed"):
        place = event["generation"], event["iteration"]
        found[event["trial_id"]].append((*place, scores.get(event["id"])))
    return found


def csv_rows(trial: Trial) -> list[dict[str, str]]:
    with Path(trial.local_path, "progress.csv").open() as file:
        return list(csv.DictReader(file))


def tensorboard_points(trial: Trial) -> list[tuple[int, float]]:
    events = EventAccumulator(str(trial.local_path), {"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars("ray/tune/accuracy")]


@pytest.mark.parametrize("made", MADE)
def test_loggers_files_and_tables_have_the_rows_of_the_journal(tmp_path, made):
    store = Store()
    ran = MADE[made](tmp_path, store).run()
    assert not store.open and store.ends == {t.trial_id: False for t in ran.trials}
    wanted = processed(ran)
    assert sum(score is not None for rows in wanted.values() for *_, score in rows) > 8
    reports = tunekit.load(ran.home).reports
    analysis = ExperimentAnalysis(str(ran.home), default_metric="accuracy", default_mode="max")
    results = ValidatedResults(ResultGrid(analysis))
    frames = {result.metrics["trial_id"]: result.metrics_dataframe for result in results}
    newest = results.get_dataframe().set_index("trial_id")
    best = results.get_dataframe("accuracy", "max").set_index("trial_id")
    assert len(newest) == len(best) == len(ran.trials)
    for trial in ran.trials:
        rows, name = wanted[trial.trial_id], trial.trial_id
        assert len({row[:2] for row in rows}) == len(rows)
        assert rows == sorted(rows, key=lambda row: row[:2])
        own = reports[reports.trial_id == name].to_dict("records")
        of_tune = frames[name].to_dict("records")
        for shown in (store.rows[name], rows_of(trial), csv_rows(trial), own, of_tune):
            assert [row_of(row) for row in shown] == rows
        points = [(n, pytest.approx(score)) for _, n, score in rows if score is not None]
        # Tune's logger begins another file at each start, whose name is the time in seconds.
        if store.starts[name] == 1:
            assert tensorboard_points(trial) == points
        for last in (trial.last_result, newest.loc[name]):
            assert (last["tunekit/validated_at"], last["accuracy"]) == points[-1]
            assert last["training_iteration"] == rows[-1][1]
        scores = [score for *_, score in rows if score is not None]
        assert best.loc[name]["accuracy"] == max(scores)
        average = trial.metric_analysis["accuracy"]["avg"]
        assert average == pytest.approx(sum(scores) / len(scores))


class Both(Counting):
    """Training reports a quantity of the same name as validation's."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "accuracy": -float(self.steps)}


@pytest.mark.parametrize("scores", [True, False], ids=["validated", "all failed"])
def test_logger_gets_a_training_value_of_a_validation_metric_under_its_reported_name(
    tmp_path, scores
):
    """Also in the first iterations, which wait until the names of validation are known."""

    def validate(attempt: Any) -> Any:
        return {"accuracy": 0.5} if scores else RuntimeError("fails")

    store = Store()
    plan = logged(tmp_path, store).training(Both, saves=tunekit.EveryIterations(4))
    ran = plan.validating(validate, max_retries=0).run()
    for trial in ran.trials:
        rows, own = store.rows[trial.trial_id], [-float(n) for n in range(1, 10)]
        assert [row["tunekit/reported/accuracy"] for row in rows] == own
        assert [n for n, row in enumerate(rows, 1) if "accuracy" in row] == [4, 8] * scores
        assert [float(row["tunekit/reported/accuracy"]) for row in csv_rows(trial)] == own


def test_logger_gets_metrics_that_only_training_reports(tmp_path):
    store = Store()
    plan = logged(tmp_path, store).training(Both).validating(lambda attempt: {"f1": 0.5})
    plan.tuning(metric="loss", mode="min").run()
    for rows in store.rows.values():
        assert [row["loss"] for row in rows] == [1 / n for n in range(1, 10)]
        assert all(row["f1"] == 0.5 and "tunekit/reported/loss" not in row for row in rows)


def test_nested_metrics_are_columns_and_later_names_are_in_the_table_of_reports(tmp_path):
    def validate(attempt):
        more = {"late": 1.0} if attempt.request.iteration > 4 else {}
        return {"accuracy": 0.5, "eval": {"n": attempt.request.iteration}, **more}

    store = Store()
    plan = logged(tmp_path, store, trials=1).training(Counting, saves=tunekit.EveryIterations(2))
    ran = plan.validating(validate).run()
    [rows], [trial] = store.rows.values(), ran.trials
    assert [row.get("eval") for row in rows[:4]] == [None, {"n": 2}, None, {"n": 4}]
    assert [row["eval/n"] for row in csv_rows(trial)[:4]] == ["nan", "2", "nan", "4"]
    assert list(tunekit.load(ran.home).reports["late"].dropna()) == [1.0, 1.0]


def test_iterations_repeated_after_a_failure_are_logged_again_and_loaded_once(tmp_path):
    """As in stock Tune."""
    store = Store()
    plan = logged(tmp_path, store).training(FailsOnce, saves=tunekit.EveryIterations(4))
    ran = plan.tuning(max_failures=1).run()
    for trial in ran.trials:
        for rows in (store.rows[trial.trial_id], rows_of(trial)):
            assert [row["training_iteration"] for row in rows] == [*range(1, 6), *range(5, 10)]
    reports = tunekit.load(ran.home).reports
    assert list(reports.training_iteration) == 2 * list(range(1, 10))
    assert list(reports["tunekit/runs"]) == 2 * [1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_logger_gets_all_rows_and_the_end_of_trials_that_fail(tmp_path):
    def validate(attempt: Any) -> Any:
        fails = random.Random(attempt.request.id).random() < 0.3
        return RuntimeError("fails") if fails else {"accuracy": 0.5}

    store = Store()
    plan = logged(tmp_path, store, trials=1).training(Counting).validating(validate, max_retries=0)
    ran = plan.tuning(param_space={"fail_at": tune.grid_search([None, 4, 7])}).run()
    assert [trial.status for trial in ran.trials] == [Trial.TERMINATED, Trial.ERROR, Trial.ERROR]
    for trial in ran.trials:
        rows = [row["training_iteration"] for row in store.rows[trial.trial_id]]
        assert rows == list(range(1, trial.config["fail_at"] or 10))
        assert store.ends[trial.trial_id] == (trial.status == Trial.ERROR)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT_PAUSED])
def test_files_and_tables_of_a_killed_sweep_have_each_row_once(tmp_path, seed, mode):
    stores: list[Store] = []
    draw = random.Random(seed)

    def made(folder: Path) -> Plan:
        stores.append(Store())
        plan = logged(folder, stores[-1], mode=mode, trials=4).training(Counting)
        return plan.tuning(saved_every_s=draw.choice([0.0, float("inf")]))

    lives = iter([draw.randrange(20, 160) for _ in range(3)])
    ran, kills = run_killed(tmp_path, made, lives)
    assert kills
    reports, steps = tunekit.load(ran.home).reports, list(range(1, 10))
    for trial in ran.trials:
        own = reports[reports.trial_id == trial.trial_id]
        assert list(own.training_iteration) == steps
        rows = [row_of(row) for row in rows_of(trial)]
        assert [row[1] for row in rows] == steps
        assert [row_of(row) for row in csv_rows(trial)] == rows
        told = [row["training_iteration"] for store in stores for row in store.rows[trial.trial_id]]
        # A driver that died before it had recorded a row passes it on again.
        assert sorted(set(told)) == steps and len(told) <= len(steps) + kills


def test_metric_that_a_callback_adds_to_a_result_is_kept(tmp_path):
    class Changes(LoggerCallback):
        def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
            result["accuracy_percent"] = 100 * result["accuracy"]

    [trial] = Plan(tmp_path, trials=1).calling(last=(Changes(),)).run().trials
    assert trial.last_result["accuracy_percent"] == 100 * trial.last_result["accuracy"]


def test_outage_of_the_storage_at_the_first_result_of_a_trial_loses_no_row(tmp_path, monkeypatch):
    def fails(filesystem: Any, path: str) -> bool:
        raise OSError(f"no route to {path}")

    monkeypatch.setattr(split_callbacks, "exists", fails)
    store = Store()
    ran = logged(tmp_path, store).run()
    for trial in ran.trials:
        assert trial.status == Trial.TERMINATED
        rows = store.rows[trial.trial_id]
        assert len(csv_rows(trial)) == len(rows_of(trial)) == len(rows) == LENGTH
