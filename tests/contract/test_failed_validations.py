"""A failed validation is recorded and fails no trial; a broken function is reported early."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.readers import tunekit_
from tests.support.restores import restoring
from tests.support.sweeps import LENGTH, Counting, Ran, index_of, sweep
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in


def broken(attempt: Attempt) -> dict[str, float]:
    raise KeyError(f"no weights in {attempt.request.path}")


def run(folder: Path, *, on_failure: str = "record", **options: Any) -> Ran:
    settings = {"on_failure": on_failure, "max_retries": 0}
    return sweep(folder, **{"trials": 4, **options}, settings=settings)


def outcomes(folder: Path) -> list[str]:
    return [event["status"] for event in read(folder / "sweep", "validation_ended")]


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("when", ["auto", "decisions"])
def test_failed_trial_has_its_last_checkpoint_validated_unless_it_restarts(
    tmp_path, when, max_failures
):
    ran = sweep(
        tmp_path,
        ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3),
        on_pending="continue",
        settings={"when": when},
        param_space={"fail_at": 6},
        max_failures=max_failures,
        trials=4,
    )
    check_journal(events_in(ran.home))
    for trial in ran.trials:
        scored = [iteration for _, iteration in ran.scores()[index_of(trial)]]
        if max_failures:
            assert trial.status == Trial.TERMINATED and scored in ([3], [3, 9])
        else:  # its last checkpoint is validated
            last = trial.last_result
            assert trial.status == Trial.TERMINATED or scored == [3, 5]
            assert last["tunekit/validated_at"] == last["training_iteration"] == scored[-1]


def test_sweep_with_a_broken_function_ends_before_half_of_its_training(tmp_path):
    with pytest.raises(tunekit.errors.ValidationFailedError) as caught:
        run(tmp_path, validate=broken)
    named = ("KeyError", "Traceback of a test", "validation_config=", "on_failure='ignore'")
    assert [name for name in named if name not in str(caught.value)] == []
    assert outcomes(tmp_path)[:3] == ["failed"] * 3
    reports = read(tmp_path / "sweep", "reported")
    assert len(reports) < 4 * LENGTH / 2


def test_sweep_continues_past_failures_with_on_failure_ignore_or_after_a_success(tmp_path):
    ran = run(tmp_path / "choice", validate=broken, on_failure="ignore")
    assert outcomes(tmp_path / "choice") == ["failed"] * 4 * LENGTH
    assert all(len(scores) == 0 for scores in ran.scores().values())

    def fails_but_once(attempt: Attempt) -> dict[str, float]:
        return {"accuracy": 0.5} if attempt.request.iteration == 1 else broken(attempt)

    run(tmp_path / "success", validate=fails_but_once)
    assert outcomes(tmp_path / "success").count("validated") == 4


def test_first_failed_validation_ends_the_sweep_with_on_failure_raise(tmp_path):
    with pytest.raises(tunekit.errors.ValidationFailedError, match="on_failure='raise'"):
        run(tmp_path, validate=broken, trials=1, on_failure="raise")
    assert outcomes(tmp_path) == ["failed"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_metric_is_no_failure_and_leaves_the_last_score_in_place(tmp_path, value, caplog):
    """As in reinforcement learning, before an episode has ended."""
    without = {1, 2, LENGTH}

    def validate(attempt: Attempt) -> dict[str, float]:
        n = attempt.request.iteration
        return {"accuracy": value if n in without else n / 10}

    ran = run(tmp_path, validate=validate, on_failure="raise")
    assert outcomes(tmp_path) == ["validated"] * 4 * LENGTH
    for trial in ran.trials:
        assert trial.status == trial.TERMINATED
        assert ran.heard.of(index_of(trial)) == list(range(3, LENGTH))
        assert trial.last_result["accuracy"] == (LENGTH - 1) / 10
        assert trial.last_result["tunekit/validated_at"] == LENGTH - 1
    loaded = tunekit.load(ran.home)
    assert loaded.best().score == (LENGTH - 1) / 10
    shown = loaded.reports[loaded.reports.training_iteration.isin(without)].accuracy
    assert all(repr(float(one)) == repr(value) for one in shown)
    assert tunekit_("status", ran.home).exit_code == 0
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([r for r in warned if "'accuracy'" in r.getMessage()]) == 1


def test_sweep_without_any_score_logs_one_error_and_has_no_best_checkpoint(tmp_path, caplog):
    ran = run(tmp_path, validate=lambda attempt: {"accuracy": math.nan})
    assert all(trial.status == trial.TERMINATED for trial in ran.trials)
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "'accuracy'" in told and "NaN" in told
    loaded = tunekit.load(ran.home)
    assert [one.rank for one in loaded.ranking()] == [None] * 4
    assert len(loaded.trials) == 4 and tunekit_("status", ran.home).exit_code == 0
    with pytest.raises(tunekit.errors.MetricNotFoundError):
        loaded.best()


@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused", "auto"])
@pytest.mark.parametrize("slots", [1, 4])
def test_restores_with_a_broken_function_leave_all_checkpoints_for_a_fixed_one(
    tmp_path, on_pending, slots
):
    how = {"on_pending": on_pending, "slots": slots}
    with pytest.raises(Killed), killed_after(60):
        run(tmp_path, **how)
    scored = outcomes(tmp_path).count("validated")
    assert 0 < scored < 4 * LENGTH
    for restores in (1, 2):
        with pytest.raises(tunekit.errors.ValidationFailedError):
            run(tmp_path, validate=broken, **how, **restoring(tmp_path / "sweep"))
        assert outcomes(tmp_path).count("failed") <= 6 * restores
    run(tmp_path, **how, **restoring(tmp_path / "sweep"))
    lives = check_journal(events_in(tmp_path / "sweep"))
    assert len(lives.scores) == 4 * LENGTH
    # Tune gets those also, but for one where no other validation could show what is broken.
    assert len(lives.decisions) >= 4 * LENGTH - 2
    sweep = tunekit.load(tmp_path / "sweep")
    assert set(sweep.validations["status"]) == {"validated"}
    assert sweep.reports["accuracy"].notna().all()


def test_restored_finished_sweep_validates_its_failed_checkpoints(tmp_path):
    ran = run(tmp_path, validate=broken, on_failure="ignore")
    assert tunekit.load(ran.home).summary()["state"] == "finished"
    again = run(tmp_path, **restoring(ran.home))
    assert all(len(scores) == LENGTH for scores in again.scores().values())
    sweep = tunekit.load(ran.home)
    assert sweep.summary()["state"] == "finished"
    assert sweep.validations["status"].tolist() == ["validated"] * 4 * LENGTH


@pytest.mark.parametrize(
    ("reported", "checkpoints", "forgotten"),
    [
        pytest.param({}, {}, True, id="none"),
        pytest.param({}, {"checkpoint_frequency": 5}, False, id="checkpoint_frequency"),
        pytest.param({}, {"checkpoint_at_end": True}, False, id="checkpoint_at_end"),
        pytest.param({"should_checkpoint": True}, {}, False, id="should_checkpoint"),
        pytest.param({"accuracy": 0.5}, {}, False, id="metric in reports"),
    ],
)
def test_missing_checkpoint_policy_is_logged_once_at_the_first_report(
    tmp_path, caplog, reported, checkpoints, forgotten
):
    class Reports(Counting):
        def step(self) -> dict[str, Any]:
            return {**super().step(), **reported}

    config = tune.CheckpointConfig(**checkpoints)
    options = {"checkpoint_config": config, "policy": tune.Callback(), "run": False}
    ran = sweep(tmp_path, trainable=Reports, trials=2, **options)
    for _ in range(12):
        ran.sweep.step()
    told = [r.getMessage() for r in caplog.records if "checkpoint_policy=" in r.getMessage()]
    assert len(told) == forgotten
    if forgotten:
        assert "'accuracy'" in told[0]
        assert max(t.last_result.get("training_iteration", 0) for t in ran.trials) < LENGTH


def test_sweep_that_ended_for_a_missing_metric_finishes_once_it_is_returned(tmp_path):
    options: dict = {"trials": 2, "on_pending": "wait", "listening": False}
    with pytest.raises(tunekit.errors.MetricNotFoundError, match=r"'accuracy'.*'other'"):
        sweep(tmp_path, validate=lambda attempt: {"other": 1.0}, **options)
    ran = sweep(tmp_path, **restoring(tmp_path / "sweep"), **options)
    assert [trial.status for trial in ran.trials] == ["TERMINATED"] * 2
    assert all("accuracy" in trial.last_result for trial in ran.trials)
