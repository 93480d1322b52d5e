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
from tests.support.local_sweep import index_of
from tests.support.modes import Mode
from tests.support.readers import tunekit_
from tests.support.sweeps import Plan
from tests.support.trainables import LENGTH, Counting
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in


def broken(attempt: Attempt) -> dict[str, float]:
    raise KeyError(f"no weights in {attempt.request.path}")


def recording(folder: Path, mode: Mode = Mode.CONTINUE, *, trials: int = 4) -> Plan:
    """Failures of validations are recorded, and none is retried."""
    return Plan(folder, mode=mode, trials=trials).validating(on_failure="record", max_retries=0)


def outcomes(folder: Path) -> list[str]:
    return [event["status"] for event in read(folder / "sweep", "validation_ended")]


@pytest.mark.parametrize("max_failures", [0, 1])
@pytest.mark.parametrize("when", ["auto", "decisions"])
def test_failed_trial_has_its_last_checkpoint_validated_unless_it_restarts(
    tmp_path, when, max_failures
):
    base = ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3)
    plan = Plan(tmp_path, base, Mode.CONTINUE, trials=4).validating(when=when)
    ran = plan.tuning(param_space={"fail_at": 6}, max_failures=max_failures).run()
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
        recording(tmp_path).validating(broken).run()
    named = ("KeyError", "Traceback of a test", "validation_config=", "on_failure='ignore'")
    assert [name for name in named if name not in str(caught.value)] == []
    assert outcomes(tmp_path)[:3] == ["failed"] * 3
    reports = read(tmp_path / "sweep", "reported")
    assert len(reports) < 4 * LENGTH / 2


def test_sweep_continues_past_failures_with_on_failure_ignore_or_after_a_success(tmp_path):
    ran = recording(tmp_path / "choice").validating(broken, on_failure="ignore").run()
    assert outcomes(tmp_path / "choice") == ["failed"] * 4 * LENGTH
    assert all(len(scores) == 0 for scores in ran.scores().values())

    def fails_but_once(attempt: Attempt) -> dict[str, float]:
        return {"accuracy": 0.5} if attempt.request.iteration == 1 else broken(attempt)

    recording(tmp_path / "success").validating(fails_but_once).run()
    assert outcomes(tmp_path / "success").count("validated") == 4


def test_first_failed_validation_ends_the_sweep_with_on_failure_raise(tmp_path):
    with pytest.raises(tunekit.errors.ValidationFailedError, match="on_failure='raise'"):
        recording(tmp_path, trials=1).validating(broken, on_failure="raise").run()
    assert outcomes(tmp_path) == ["failed"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_metric_is_no_failure_and_leaves_the_last_score_in_place(tmp_path, value, caplog):
    """As in reinforcement learning, before an episode has ended."""
    without = {1, 2, LENGTH}

    def validate(attempt: Attempt) -> dict[str, float]:
        n = attempt.request.iteration
        return {"accuracy": value if n in without else n / 10}

    ran = recording(tmp_path).validating(validate, on_failure="raise").run()
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
    ran = recording(tmp_path).validating(lambda attempt: {"accuracy": math.nan}).run()
    assert all(trial.status == trial.TERMINATED for trial in ran.trials)
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "'accuracy'" in told and "NaN" in told
    loaded = tunekit.load(ran.home)
    assert [one.rank for one in loaded.ranking()] == [None] * 4
    assert len(loaded.trials) == 4 and tunekit_("status", ran.home).exit_code == 0
    with pytest.raises(tunekit.errors.MetricNotFoundError):
        loaded.best()


@pytest.mark.parametrize("mode", [Mode.CONTINUE, Mode.WAIT, Mode.WAIT_PAUSED, Mode.AUTO])
@pytest.mark.parametrize("slots", [1, 4])
def test_restores_with_a_broken_function_leave_all_checkpoints_for_a_fixed_one(
    tmp_path, mode, slots
):
    plan = recording(tmp_path, mode).training(slots=slots)
    with pytest.raises(Killed), killed_after(60):
        plan.run()
    scored = outcomes(tmp_path).count("validated")
    assert 0 < scored < 4 * LENGTH
    for restores in (1, 2):
        with pytest.raises(tunekit.errors.ValidationFailedError):
            plan.validating(broken).restored().run()
        assert outcomes(tmp_path).count("failed") <= 6 * restores
    plan.restored().run()
    lives = check_journal(events_in(tmp_path / "sweep"))
    assert len(lives.scores) == 4 * LENGTH
    # Tune gets those also, but for one where no other validation could show what is broken.
    assert len(lives.decisions) >= 4 * LENGTH - 2
    sweep = tunekit.load(tmp_path / "sweep")
    assert set(sweep.validations["status"]) == {"validated"}
    assert sweep.reports["accuracy"].notna().all()


def test_restored_finished_sweep_validates_its_failed_checkpoints(tmp_path):
    ran = recording(tmp_path).validating(broken, on_failure="ignore").run()
    assert tunekit.load(ran.home).summary()["state"] == "finished"
    again = recording(tmp_path).restored().run()
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

    no_policy, config = tune.Callback(), tune.CheckpointConfig(**checkpoints)
    plan = Plan(tmp_path, trials=2).training(Reports, saves=no_policy)
    ran = plan.tuning(checkpoint_config=config).start()
    for _ in range(12):
        ran.sweep.step()
    told = [r.getMessage() for r in caplog.records if "checkpoint_policy=" in r.getMessage()]
    assert len(told) == forgotten
    if forgotten:
        assert "'accuracy'" in told[0]
        assert max(t.last_result.get("training_iteration", 0) for t in ran.trials) < LENGTH


def test_sweep_that_ended_for_a_missing_metric_finishes_once_it_is_returned(tmp_path):
    plan = Plan(tmp_path, mode=Mode.WAIT, trials=2)
    with pytest.raises(tunekit.errors.MetricNotFoundError, match=r"'accuracy'.*'other'"):
        plan.validating(lambda attempt: {"other": 1.0}).run()
    ran = plan.restored().run()
    assert [trial.status for trial in ran.trials] == ["TERMINATED"] * 2
    assert all("accuracy" in trial.last_result for trial in ran.trials)
