"""A sweep ends, and its files can be read, with any value in its reports, scores and arguments."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray import train, tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

import tunekit
from tests.support.journals import read
from tests.support.kills import run_killed
from tests.support.odd_values import EXCEPTIONS, KEYS, ODD, VALUES, made
from tests.support.seeds import SCHEDULES
from tests.support.sweeps import LENGTH, Counting, Ran, rows_of, sweep
from tunekit.board.charts import draw_charts
from tunekit.board.page import render_report, report_data
from tunekit.schedulers import PromotionASHA
from tunekit.validating.process import pack_result, result_of

ROUNDS = 3


def copied(value: Any) -> Any:
    """Return a value as another process receives it; None if it cannot be sent."""
    with suppress(Exception):
        return copy.deepcopy(value)
    return None


def odd_sweep(
    folder: Path,
    *,
    report: Any = dict,
    validated: Any = lambda attempt: {},
    **options: Any,
) -> Ran:
    """A sweep of two trials, the first of which returns odd values."""

    class Odd(Counting):
        def step(self):
            own = report() if self.trial_id.endswith("0") else {}
            return {**super().step(), "done": False, **own}

    def validate(attempt):
        odd = validated(attempt) if attempt.request.trial_id.endswith("0") else {}
        return {"accuracy": attempt.request.iteration / 10, **odd}

    return sweep(
        folder,
        trainable=Odd,
        validate=validate,
        trials=2,
        stop={"training_iteration": ROUNDS},
        loggers=True,
        settings={"max_retries": 0},
        **options,
    )


def can_be_read(ran: Ran, *, page: bool = False) -> tunekit.Sweep:
    """Read everything that a sweep has written, in every possible way."""
    for unpickle in (False, True):
        assert read(ran.home, unpickle=unpickle)
    loaded = tunekit.load(ran.home)
    for table in (loaded.trials, loaded.reports, loaded.validations, loaded.decisions):
        str(table)
    json.dumps(loaded.summary(), default=str)
    report_data(loaded, draw_charts(loaded))
    if page:
        render_report(loaded).encode()
    for trial in ran.trials:
        rows = rows_of(trial)
        assert len({row["training_iteration"] for row in rows}) == len(rows)
        Path(trial.local_path, "progress.csv").read_text()
    healthy = ran.trials[-1]
    assert healthy.status == "TERMINATED"
    own = loaded.reports[loaded.reports.trial_id == healthy.trial_id]
    assert list(own.accuracy) == [n / 10 for n in range(1, len(own) + 1)]
    return loaded


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


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


@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused"])
def test_report_with_every_odd_value_is_recorded_and_its_checkpoint_scored(tmp_path, on_pending):
    ran = odd_sweep(tmp_path, report=everything, on_pending=on_pending)
    loaded = can_be_read(ran, page=True)
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
    on_pending=st.sampled_from(["continue", "wait", "wait-paused"]),
    killed=st.none() | st.integers(8, 60),
)
def test_killed_sweep_with_odd_values_ends_and_its_files_can_be_read(
    tmp_path_factory, row, validated, raises, on_pending, killed
):
    folder = tmp_path_factory.mktemp("sweep")

    def report():
        return {key: copied(made(tree)) for key, tree in row.items()}

    def returned(attempt):
        if raises is not None and attempt.request.iteration == 2:
            raise raises()
        return made(validated)

    def make(folder, **options):
        return odd_sweep(
            folder,
            report=report,
            validated=returned,
            on_pending=on_pending,
            run=False,
            **options,
        )

    lives = iter(() if killed is None else [killed])
    ran, _ = run_killed(folder, make, lives)
    can_be_read(ran)


@pytest.mark.parametrize("on_pending", ["auto", "continue", "wait"])
def test_trial_that_reports_float_iterations_is_scored_at_each_iteration(tmp_path, on_pending):
    class Floats(Counting):
        def step(self):
            return {**super().step(), "training_iteration": float(self.steps)}

    ran = sweep(
        tmp_path,
        on_pending=on_pending,
        trainable=Floats,
        trials=2,
        validation_s=lambda attempt: 3.0,
    )
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

    ran = odd_sweep(tmp_path, validated=validated)
    rows = can_be_read(ran).reports
    row = rows[rows.trial_id.str.endswith("0")].iloc[-1]
    assert row["accuracy"] == ROUNDS / 10
    names = {"pixels": "2,097,152", "said/all": "2,400,000", "tensor": "2,09"}
    assert all(size in row[name] and len(row[name]) < 100 for name, size in names.items())
    assert size_of(ran.home) < 2**20
    [told] = [text for text in caplog.messages if "'pixels'" in text]
    assert all(repr(name) in told for name in names)


def test_long_message_of_a_failed_validation_is_not_recorded_in_full(tmp_path):
    def fail() -> None:
        raise ValueError("a line of a long message\n" * 10**5)

    ran = sweep(
        tmp_path,
        trials=1,
        validate=lambda attempt: result_of(attempt.id, fail),
        stop={"training_iteration": ROUNDS},
        settings={"max_retries": 0, "on_failure": "ignore"},
    )
    assert {event["status"] for event in read(ran.home, "validation_ended")} == {"failed"}
    assert size_of(ran.home) < 2**20


# Arguments --------------------------------------------------------------------------------------

N = numpy.int64
TIMED: list[Any] = [
    lambda: ASHAScheduler(max_t=N(LENGTH), grace_period=N(1), reduction_factor=N(3)),
    lambda: HyperBandScheduler(max_t=N(LENGTH)),
    lambda: PromotionASHA(max_t=N(LENGTH)),
    lambda: MedianStoppingRule(grace_period=N(2), min_samples_required=N(2)),
    lambda: PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=N(2),
        hyperparam_mutations={"lr": [N(1), N(2)]},
    ),
]


@pytest.mark.parametrize("make", TIMED)
def test_sweep_with_numpy_arguments_of_its_scheduler_can_be_restored_and_read(
    tmp_path, caplog, make
):
    def made(folder: Path, **options: Any) -> Ran:
        space = {"lr": tune.choice([N(1), N(2)])}
        return sweep(folder, make(), param_space=space, trials=5, run=False, **options)

    ran, kills = run_killed(tmp_path, made, iter([60]))
    assert kills == 1 and all(trial.status == "TERMINATED" for trial in ran.trials)
    loaded = tunekit.load(ran.home)
    assert len(loaded.decisions) > 5 and loaded.best().score > 0
    assert not [r for r in caplog.records if r.name.startswith("tunekit.journal")]


@pytest.mark.parametrize("seconds", [numpy.float64(60), numpy.float32(0.5), 2**33, 1])
def test_timeout_of_a_report_is_recorded_with_its_checkpoint_as_a_float(tmp_path, seconds):
    task = train.ValidationTaskConfig(timeout_s=seconds)
    ran = odd_sweep(tmp_path, report=lambda: {tunekit.training.VALIDATION_KEY: task})
    saved = [event for event in read(ran.home, "checkpoint_saved") if event.get("timeout_s")]
    assert [event["timeout_s"] for event in saved] == [float(seconds)] * ROUNDS
    tunekit.ValidationConfig(fn=lambda checkpoint: {}, task_config=task)


@pytest.mark.parametrize("seconds", [10**10, True])  # Ray refuses the others
def test_invalid_timeout_is_refused_in_the_config_and_ignored_in_a_report(
    tmp_path, caplog, seconds
):
    task = train.ValidationTaskConfig(timeout_s=seconds)
    with pytest.raises(tunekit.errors.ConfigError, match="timeout_s="):
        tunekit.ValidationConfig(fn=lambda checkpoint: {}, task_config=task)
    ran = odd_sweep(tmp_path, report=lambda: {tunekit.training.VALIDATION_KEY: task})
    assert "timeout_s" in caplog.text
    assert not any(event["timeout_s"] for event in read(ran.home, "checkpoint_saved"))
