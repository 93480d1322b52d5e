"""Scores that come five iterations late are at their own iteration, wherever one looks."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.tune import ExperimentAnalysis, ResultGrid
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining

import tunekit
from tests.contract.test_tensorboard import read, scalars
from tests.sweeps import Endless, Ran, sweep
from tunekit.results.grid import ValidatedResults

LAG = 5
LENGTH = 14

# By trial, generation and iteration: the score.
Points = dict[tuple[str, int, int], float]


def late(folder: Path, **options: Any) -> Ran:
    """Each validation takes as long as five iterations, and each checkpoint is validated."""
    space = {"trainable": Endless, "stop": {"training_iteration": LENGTH}, "loggers": True}
    return sweep(
        folder, options.pop("base"), validation_s=lambda a: LAG + 0.5, **{**space, **options}
    )


def fifo(folder: Path) -> Ran:
    return late(folder, base=FIFOScheduler(), trials=3)


def pbt(folder: Path) -> Ran:
    random.seed(0)  # PBT draws donors and hyperparameters
    np.random.seed(0)
    base = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"lr": [0.1, 0.2, 0.3]},
        quantile_fraction=0.5,
    )
    return late(folder, base=base, trials=4, param_space={"lr": 0.1})


@pytest.fixture(params=[fifo, pbt], ids=["fifo", "pbt"])
def ran(request, tmp_path) -> Ran:
    return request.param(tmp_path)


def recorded(ran: Ran) -> tuple[Points, set[int]]:
    """The scores, and how many iterations late they came, from the journal's own lines."""
    points: Points = {}
    reached: dict[tuple[str, int], int] = {}
    lags: set[int] = set()
    [file] = (ran.home / "journal").glob("*.jsonl")
    for line in map(json.loads, file.read_text().splitlines()):
        if line.get("event") == "reported":
            report = line["report"]
            place = (line["trial_id"], report["generation"])
            reached[place] = report["training_iteration"]
        elif line.get("event") == "ended":
            trial, generation, iteration, _ = line["id"].rsplit(":", 3)
            place = (trial, int(generation))
            points[(*place, int(iteration))] = line["metrics"]["accuracy"]
            lags.add(reached[place] - int(iteration))
    return points, lags


def in_result_json(ran: Ran) -> Points:
    return {
        (trial.trial_id, row["generation"], row["training_iteration"]): row["accuracy"]
        for trial in ran.trials
        for row in map(json.loads, Path(trial.local_path, "result.json").read_text().splitlines())
        if "accuracy" in row
    }


def in_progress_csv(ran: Ran) -> Points:
    return {
        (trial.trial_id, int(row["generation"]), int(row["training_iteration"])): float(
            row["accuracy"]
        )
        for trial in ran.trials
        for row in csv.DictReader(Path(trial.local_path, "progress.csv").open())
        if row["accuracy"]
    }


def in_tensorboard(ran: Ran) -> Points:
    found: Points = {}
    for trial in ran.trials:
        for run, events in read(trial.local_path).items():
            generation = 0 if run == "." else int(run.removeprefix("generation_"))
            for step, value in scalars(events, "validation/accuracy"):
                assert (trial.trial_id, generation, step) not in found, "a point is there twice"
                found[trial.trial_id, generation, step] = value
    return found


def in_loaded(ran: Ran) -> Points:
    rows = tunekit.load(ran.home).reports.dropna(subset="accuracy")
    places = zip(rows.trial_id, rows.generation, rows.training_iteration, strict=True)
    return dict(zip(places, rows.accuracy, strict=True))


def in_results(ran: Ran) -> Points:
    analysis = ExperimentAnalysis(str(ran.home), default_metric="accuracy", default_mode="max")
    return {
        (row.trial_id, row.generation, row.training_iteration): row.accuracy
        for result in ResultGrid(analysis)
        for row in result.metrics_dataframe.itertuples()
        if not math.isnan(row.accuracy)
    }


def test_every_place_has_the_same_points(ran):
    wanted, lags = recorded(ran)
    assert max(lags) == LAG and len(wanted) > 30
    places = {
        "result.json": in_result_json(ran),
        "progress.csv": in_progress_csv(ran),
        "load": in_loaded(ran),
        "ResultGrid": in_results(ran),
    }
    for name, found in places.items():
        assert found == wanted, name
    shown = in_tensorboard(ran)
    assert shown.keys() == wanted.keys()
    for place, value in wanted.items():
        assert shown[place] == pytest.approx(value, rel=1e-6), "TensorBoard has 32 bits"


def test_generations_are_among_them(tmp_path):
    points, _ = recorded(pbt(tmp_path))
    assert {generation for _, generation, _ in points} > {0}


def test_the_lag_is_told(ran):
    loaded = tunekit.load(ran.home)
    at_last = loaded.trials.set_index("trial_id").iteration
    for _, row in loaded.validations.iterrows():
        left = at_last[row.trial_id] - row.iteration
        if row.generation == 0 and left >= LAG and not len(loaded.lineage):
            assert row.lag_iterations == LAG
    assert loaded.validations.lag_iterations.max() == LAG
    assert loaded.decisions.late_iterations.max() == LAG


def test_a_table_of_trials_has_the_newest_score_of_each(tmp_path):
    ran = late(
        tmp_path,
        base=FIFOScheduler(),
        trials=3,
        policy=tunekit.EveryIterations(4),
        param_space={"lr": 0.1},
    )
    analysis = ExperimentAnalysis(str(ran.home), default_metric="accuracy", default_mode="max")
    own = ResultGrid(analysis)
    results = ValidatedResults(own)
    wanted, _ = recorded(ran)
    newest = {place[0]: (*place[1:], score) for place, score in sorted(wanted.items())}
    table = results.get_dataframe().set_index("trial_id")
    assert len(table) == len(results) == len(ran.trials)
    for result in results:
        metrics, row = result.metrics, table.loc[result.metrics["trial_id"]]
        _, iteration, score = newest[metrics["trial_id"]]
        assert row["accuracy"] == metrics["accuracy"] == score
        assert row["validated_iteration"] == metrics["validated_iteration"] == iteration
        assert row["training_iteration"] == metrics["training_iteration"]
        assert row["config/lr"] == result.config["lr"]
        assert (metrics["training_iteration"], iteration) == (LENGTH, 12)
    # Tune's own table shows the last report alone.
    assert "accuracy" not in own.get_dataframe() or own.get_dataframe()["accuracy"].isna().all()
    # The best row of each trial is as it was reported and validated.
    best = results.get_dataframe("accuracy", "max")
    assert best.equals(own.get_dataframe("accuracy", "max"))
