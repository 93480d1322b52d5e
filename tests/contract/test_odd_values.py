"""A sweep ends, and its files can be read, with any value in its reports, scores and arguments."""

from __future__ import annotations

import copy
import json
import math
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray import train, tune
from ray.tune import ResultGrid
from ray.tune.analysis import ExperimentAnalysis
from ray.tune.schedulers import HyperBandScheduler, MedianStoppingRule

import tunekit
from tests.support import schedulers
from tests.support.journals import read
from tests.support.kills import run_killed
from tests.support.modes import Mode
from tests.support.odd_values import EXCEPTIONS, KEYS, ODD, VALUES, made
from tests.support.seeds import SCHEDULES
from tests.support.sweeps import Plan, Ran, rows_of
from tests.support.trainables import LENGTH, Counting
from tunekit.board.charts import draw_charts
from tunekit.board.page import render_sections, report_data
from tunekit.core.validation import Attempt
from tunekit.errors import ConfigError
from tunekit.validating.process import pack_result

ROUNDS = 3


def copied(value: Any) -> Any:
    """Return a value as another process receives it; None if it cannot be sent."""
    with suppress(Exception):
        return copy.deepcopy(value)
    return None


def odd_sweep(
    folder: Path,
    mode: Mode = Mode.CONTINUE,
    *,
    report: Any = dict,
    validated: Any = lambda attempt: {},
) -> Plan:
    """A sweep of two trials, the first of which returns odd values."""

    class Odd(Counting):
        def step(self):
            own = report() if self.trial_id.endswith("0") else {}
            return {**super().step(), "done": False, **own}

    def validate(attempt):
        odd = validated(attempt) if attempt.request.trial_id.endswith("0") else {}
        return {"accuracy": attempt.request.iteration / 10, **odd}

    plan = Plan(folder, mode=mode, trials=2).training(Odd).validating(validate, max_retries=0)
    return plan.tuning(stop={"training_iteration": ROUNDS}).logging()


def can_be_read(ran: Ran) -> tunekit.Sweep:
    """Read everything that a sweep has written, in every possible way."""
    for unpickle in (False, True):
        assert read(ran.home, unpickle=unpickle)
    loaded = tunekit.load(ran.home)
    for table in (loaded.trials, loaded.reports, loaded.validations, loaded.decisions):
        str(table)
    json.dumps(loaded.summary(), default=str)
    "".join(render_sections(report_data(loaded, draw_charts(loaded))).values()).encode()
    for trial in ran.trials:
        rows = rows_of(trial)
        assert len({row["training_iteration"] for row in rows}) == len(rows)
        Path(trial.local_path, "progress.csv").read_text()
    healthy = ran.trials[-1]
    assert healthy.status == "TERMINATED"
    own = loaded.reports[loaded.reports.trial_id == healthy.trial_id]
    assert list(own.accuracy) == [n / 10 for n in range(1, len(own) + 1)]
    return loaded


def everything() -> dict[str, Any]:
    """A report with every odd value that can be sent between processes, also as a key."""
    own: dict[str, Any] = {}
    for number, make in enumerate(ODD):
        value = copied(make())
        if value is not None:
            own[f"odd_{number}"] = value
            own[f"in/{number}"] = {"list": [value], "dict": {"it": (value,)}}
            with suppress(Exception):
                own[value] = number
                copy.deepcopy(own)
    return own


@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED])
def test_report_with_every_odd_value_is_recorded_and_its_checkpoint_scored(tmp_path, mode):
    ran = odd_sweep(tmp_path, mode, report=everything).run()
    loaded = can_be_read(ran)
    assert [trial.status for trial in ran.trials] == ["TERMINATED", "TERMINATED"]
    assert len(loaded.reports) == 2 * ROUNDS and set(ran.validated()[0]) == {1, 2, 3}


ROW = st.dictionaries(
    KEYS.filter(lambda key: key != "training_iteration")
    | st.sampled_from(["accuracy", "timestamp", "timesteps_total", "config", "done", "hostname"]),
    VALUES,
    max_size=3,
)


@settings(max_examples=6 * SCHEDULES, suppress_health_check=list(HealthCheck))
@given(
    row=ROW,
    validated=ROW,
    raises=st.none() | st.sampled_from(EXCEPTIONS),
    mode=st.sampled_from([Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED]),
    lives=st.lists(st.integers(8, 60), max_size=1),
)
def test_killed_sweep_with_odd_values_ends_and_its_files_can_be_read(
    tmp_path_factory, row, validated, raises, mode, lives
):
    def report():
        return {key: copied(made(tree)) for key, tree in row.items()}

    def returned(attempt):
        if raises is not None and attempt.request.iteration == 2:
            raise raises()
        return made(validated)

    def make(folder):
        return odd_sweep(folder, mode, report=report, validated=returned)

    ran, _ = run_killed(tmp_path_factory.mktemp("sweep"), make, iter(lives))
    can_be_read(ran)


class Floats(Counting):
    def step(self):
        return {**super().step(), "training_iteration": float(self.steps)}


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.CONTINUE, Mode.WAIT])
def test_trial_that_reports_float_iterations_is_scored_at_each_iteration(tmp_path, mode):
    ran = Plan(tmp_path, mode=mode, trials=2).training(Floats).validating(seconds=3.0).run()
    assert [ran.heard.of(index) for index in (0, 1)] == [list(range(1, LENGTH))] * 2
    rows = tunekit.load(ran.home).reports
    assert list(rows["training_iteration"]) == [*range(1, LENGTH + 1)] * 2
    assert list(rows["tunekit/reported/training_iteration"]) == list(rows["training_iteration"])
    assert rows["accuracy"].notna().all()


def test_oversized_values_are_recorded_as_their_sizes_and_the_score_counts(tmp_path, caplog):
    assert pack_result({"pixels": numpy.ones(2**17)})["pixels"].sum() == 2**17
    array, lines = numpy.zeros((512, 512)), ["a line of 24 characters."] * 100_000

    def validated(attempt):
        return pack_result({"pixels": array, "said": {"all": lines}, "tensor": torch.zeros(2**19)})

    ran = odd_sweep(tmp_path, validated=validated).run()
    rows = can_be_read(ran).reports
    row = rows[rows.trial_id.str.endswith("0")].iloc[-1]
    assert row["accuracy"] == ROUNDS / 10
    names = {"pixels": "2,097,152", "said/all": "2,400,000", "tensor": "2,09"}
    assert all(size in row[name] and len(row[name]) < 100 for name, size in names.items())
    assert sum(file.stat().st_size for file in ran.home.rglob("*")) < 2**20
    [told] = [text for text in caplog.messages if "'pixels'" in text]
    assert all(repr(name) in told for name in names)


# Arguments --------------------------------------------------------------------------------------

N = numpy.int64
WITH_NUMPY = {
    "asha": lambda: schedulers.asha(max_t=N(9), grace_period=N(1), reduction_factor=N(3)),
    "promotion": lambda: schedulers.promotion(max_t=N(9)),
    "hyperband": lambda: HyperBandScheduler(max_t=N(9)),
    "median": lambda: MedianStoppingRule(grace_period=N(2), min_samples_required=N(2)),
    "pbt": lambda: schedulers.pbt(
        perturbation_interval=N(2), hyperparam_mutations={"lr": [N(1), N(2)]}
    ),
}


@pytest.mark.parametrize("name", WITH_NUMPY)
def test_sweep_with_numpy_arguments_of_its_scheduler_can_be_restored_and_read(
    tmp_path, caplog, name
):
    def make(folder: Path) -> Plan:
        space = {"lr": tune.choice([N(1), N(2)])}
        return Plan(folder, WITH_NUMPY[name](), trials=5).tuning(param_space=space)

    ran, kills = run_killed(tmp_path, make, iter([60]))
    assert kills == 1 and all(trial.status == "TERMINATED" for trial in ran.trials)
    loaded = tunekit.load(ran.home)
    assert len(loaded.decisions) > 5 and loaded.best().score > 0
    assert not [r for r in caplog.records if r.name.startswith("tunekit.journal")]


@pytest.mark.parametrize(
    ("seconds", "recorded"),
    [
        (numpy.float64(60), 60.0),
        (numpy.float32(0.5), 0.5),
        (2**33, 2.0**33),
        (10**10, None),
        (True, None),
    ],
)
def test_timeout_of_a_report_is_recorded_as_a_float_or_ignored_with_a_warning(
    tmp_path, caplog, seconds, recorded
):
    task = train.ValidationTaskConfig(timeout_s=seconds)
    ran = odd_sweep(tmp_path, report=lambda: {tunekit.training.VALIDATION_KEY: task}).run()
    timeouts = [event["timeout_s"] for event in read(ran.home, "checkpoint_saved")]
    assert [one for one in timeouts if one is not None] == [recorded] * ROUNDS * bool(recorded)
    assert ("timeout_s" in caplog.text) == (recorded is None)
    refused = nullcontext() if recorded else pytest.raises(ConfigError, match="timeout_s=")
    with refused:
        tunekit.ValidationConfig(fn=lambda checkpoint: {}, task_config=task)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_best_result_is_of_the_newest_score_that_is_finite(tmp_path, odd):
    def validate(attempt: Attempt) -> dict[str, float]:
        if attempt.request.trial_id[-1] == "0":
            return {"accuracy": 0.7}
        return {"accuracy": odd if attempt.request.iteration in (2, LENGTH) else 0.9}

    ran = Plan(tmp_path, trials=2).validating(validate).run()
    results = ResultGrid(ExperimentAnalysis(str(ran.home), trials=ran.trials))
    for scope in ("last", "all", "avg"):
        best = results.get_best_result("accuracy", "max", scope)
        assert best.metrics["trial_id"] == ran.trials[1].trial_id
