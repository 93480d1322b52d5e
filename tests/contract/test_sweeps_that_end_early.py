"""A sweep that ends early records why, and a restored sweep continues what was cut short."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ray import tune
from ray.exceptions import RaySystemError
from ray.tune import ResumeConfig, TuneError
from ray.tune.integration.ray_train import CHECKPOINT_PATH_KEY
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.stopper import CombinedStopper, NoopStopper, TimeoutStopper

import tunekit
from tests.support.contract import lags
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.modes import MODES, Mode
from tests.support.restores import contents
from tests.support.schedulers import every_case, planned
from tests.support.seeds import seeds
from tests.support.sweeps import Most, Plan, Ran, SavesWhen
from tests.support.trainables import LENGTH, Counting
from tunekit._ray.interruption import RayWatch
from tunekit.driver.program import Program
from tunekit.journal.journal import events_in

# All trials fail --------------------------------------------------------------------------------


def failing(folder: Path, *fail_at: int | None) -> Plan:
    space = {"fail_at": tune.grid_search(list(fail_at))}
    return Plan(folder, trials=1).tuning(param_space=space)


def failing_early(folder: Path, *fail_at: int | None) -> Plan:
    """They fail before a checkpoint."""
    return failing(folder, *fail_at).training(saves=tunekit.EveryIterations(100))


def test_sweep_whose_trials_all_fail_before_a_checkpoint_finishes_with_their_errors(tmp_path):
    ran = failing_early(tmp_path, 2, 3).run()
    assert [trial.status for trial in ran.trials] == ["ERROR", "ERROR"]
    assert all("fails at" in str(trial.get_error()) for trial in ran.trials)
    assert read(tmp_path / "sweep")[-1]["finished"] is True
    again = failing_early(tmp_path, 2, 3).restored().run()
    assert [trial.status for trial in again.trials] == ["ERROR", "ERROR"]


def test_error_about_missing_checkpoints_counts_failed_trials_apart(tmp_path):
    with pytest.raises(tunekit.errors.MetricNotFoundError, match=r"\b1 trial failed\b"):
        failing_early(tmp_path, 2, None).run()


# Time is up -------------------------------------------------------------------------------------


@pytest.fixture
def _a_second_per_step(monkeypatch):
    """Tune's own clock of time budgets, which it looks at once per step."""
    seconds = SimpleNamespace(time=itertools.count(1.0).__next__)
    monkeypatch.setattr("ray.tune.stopper.timeout.time", seconds)


def asha(folder: Path) -> Plan:
    """One trial at a time, so that those that wait for scores have to make room."""
    base = ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)
    return Plan(folder, base, Mode.WAIT_PAUSED, trials=6).tuning(max_concurrent=1)


def fifo(folder: Path) -> Plan:
    return Plan(folder, mode=Mode.WAIT, trials=5).training(slots=2).validating(seconds=2.5)


def late(folder: Path) -> Plan:
    return Plan(folder, trials=4).training(slots=3).validating(seconds=20.0)


@pytest.mark.parametrize("make", [asha, fifo, late])
def test_each_session_has_the_whole_time_budget_and_continues_trials_cut_short(
    tmp_path, make, _a_second_per_step
):
    whole = make(tmp_path / "whole").run()
    sessions, plan = 0, make(tmp_path)
    while not sessions or not read(tmp_path / "sweep")[-1]["finished"]:
        budget = TimeoutStopper(25)
        ran = plan.tuning(stop=CombinedStopper(NoopStopper(), budget)).run()
        sessions, plan = sessions + 1, make(tmp_path).restored()
        assert sessions < 20, "no session comes any further"
    assert sessions > 2, "the time was never up: the test shows nothing"
    assert [trial.status for trial in ran.trials] == ["TERMINATED"] * len(whole.trials)
    assert ran.scores() == whole.scores() and ran.lengths() == whole.lengths()
    decisions = [sorted(check_journal(events_in(one.home)).decisions) for one in (ran, whole)]
    assert decisions[0] == decisions[1]
    validated = tunekit.load(tmp_path / "sweep").validations
    assert not validated.duplicated(["trial_id", "iteration"]).any(), "what was done is done once"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", [FIFOScheduler, partial(ASHAScheduler, max_t=9)])
def test_each_checkpoint_is_scored_and_ranked_when_time_is_up(
    tmp_path, base, mode, _a_second_per_step
):
    plan = Plan(tmp_path, base(), mode, trials=4).training(slots=3).validating(seconds=20.0)
    ran = plan.tuning(stop=TimeoutStopper(40)).run()
    sweep = tunekit.load(ran.home)
    scores = [score for own in ran.scores().values() for score in own.values()]
    assert sweep.summary()["state"] == "interrupted" and sweep.best().score == max(scores)
    assert sweep.summary()["unprocessed"] == 0 < len(scores)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


@every_case
def test_sweep_ends_when_time_is_up_and_continues_when_restored(
    tmp_path, name, mode, _a_second_per_step
):
    def plan(seed: int) -> Plan:
        stop = TimeoutStopper(random.Random(seed).randint(20, 70))
        plan = planned(name, tmp_path / str(seed), mode, seed=seed).tuning(stop=stop)
        return plan.training(slots=3).validating(seconds=lags(seed, 12.0))

    for seed in seeds(1, name, str(mode)):
        ran, sessions = plan(seed).run(), 1
        while not read(ran.home)[-1]["finished"]:
            ran, sessions = plan(seed).restored().run(), sessions + 1
            assert sessions < 60, "no session comes any further"
        check_journal(events_in(ran.home))
        assert all(trial.status == "TERMINATED" for trial in ran.trials)


def test_no_iteration_continues_when_time_is_up(tmp_path, _a_second_per_step):
    begun = Counter()

    def training_s(trial, method):
        begun[trial.trial_id] += method == "train"
        return 1.0 if begun[trial.trial_id] < 4 else 1e6

    plan = Plan(tmp_path, trials=2).training(seconds=training_s).validating(seconds=20.0)
    ran = plan.tuning(stop=TimeoutStopper(16)).run()
    assert set(begun.values()) == {4} and set(ran.lengths().values()) == {3}


def test_sweep_whose_time_budget_ends_before_any_checkpoint_raises_no_error(
    tmp_path, _a_second_per_step
):
    plan = Plan(tmp_path, trials=3).training(saves=tunekit.EveryIterations(8))
    ran = plan.tuning(stop=TimeoutStopper(12)).run()
    assert all(0 < length < 8 for length in ran.lengths().values())
    assert read(tmp_path / "sweep")[-1]["finished"] is False


# A failure ends all ------------------------------------------------------------------------------


@pytest.mark.parametrize("errored", [ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.SKIP])
def test_restored_sweep_continues_trials_that_fail_fast_cut_short(tmp_path, errored):
    plan = failing(tmp_path, None, 3, None, None, None, None).tuning(max_concurrent=3)
    ran = plan.start()
    ran.sweep.controller._fail_fast = True
    ran.sweep.run()
    first = tunekit.load(ran.home)
    assert first.summary()["state"] == "interrupted"
    assert len(first.trials) == 3 and not first.trials["stopped"].any()
    assert sorted(first.trials["status"]) == ["error", "running", "running"]

    ran = plan.restored(errored=errored).start()
    assert ran.sweep.controller._fail_fast
    ran.sweep.run()
    skips = errored is ResumeConfig.ResumeType.SKIP
    assert sorted(ran.lengths().values()) == [LENGTH if not skips else 2] + [LENGTH] * 5
    assert tunekit.load(ran.home).summary()["state"] == "finished"


# A limit of trials ------------------------------------------------------------------------------


def has_process(trial: Any) -> bool:
    return trial.status == "RUNNING" and trial.temporary_state.ray_actor is not None


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("how", [ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.RESTART])
def test_limit_of_concurrent_trials_holds_in_a_restored_sweep(tmp_path, how, most):
    plan = failing(tmp_path, *[3] * 5).training(slots=8).tuning(max_concurrent=most)
    first, again = Most(has_process), Most(has_process)
    assert {trial.status for trial in plan.calling(first).run().trials} == {"ERROR"}
    ran = plan.calling(again).restored(errored=how).run()
    assert len(ran.trials) == 5 and all(trial.is_finished() for trial in ran.trials)
    assert first.most == again.most == most


# Who may go on with it --------------------------------------------------------------------------


@pytest.mark.parametrize("at", [15, 60])
def test_stock_restore_of_a_tunekit_sweep_is_refused_and_changes_no_file(tmp_path, monkeypatch, at):
    with pytest.raises(Killed), killed_after(at):
        fifo(tmp_path).run()
    before = contents(tmp_path / "sweep")
    as_tuner_leaves_it = partial(Program, is_owned=True)
    monkeypatch.setattr("tunekit.driver.callback.Program", as_tuner_leaves_it)
    with pytest.raises(tunekit.errors.RestoreError, match=f"tunekit resume {tmp_path}/sweep"):
        fifo(tmp_path).tuning(resume=ResumeConfig()).run()
    assert contents(tmp_path / "sweep") == before
    monkeypatch.undo()
    ran = fifo(tmp_path).restored().run()
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}


# A trainer in a driver function -----------------------------------------------------------------


class Drives(Counting):
    """Reports as Ray's ``TuneReportCallback`` does: with the path of a checkpoint, not with one."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), CHECKPOINT_PATH_KEY: f"/results/run/checkpoint_{self.steps}"}


def test_trainer_in_a_driver_function_is_an_error_at_its_first_report(tmp_path, caplog):
    never = SavesWhen(lambda trial, result: False)
    with pytest.raises(tunekit.errors.MetricNotFoundError) as caught:
        Plan(tmp_path, trials=2).training(Drives, saves=never).run()
    assert "checkpoint_with" not in str(caught.value), "advice that does not help"
    [logged] = [m for m in caplog.messages if "TuneReportCallback" in m]
    assert f"{CHECKPOINT_PATH_KEY}='/results/run/checkpoint_1'" in logged
    assert "tunekit.Tuner(TorchTrainer(" in logged and "TrainerFactory" in logged


# Ray itself dies --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["trial", "validation"])
def test_sweep_that_ray_ends_records_no_failed_trial_or_validation_and_is_restored(
    tmp_path, monkeypatch, what
):
    def validate(attempt: Any) -> Any:
        if what == "validation" and attempt.request.iteration == 3:
            raise RuntimeError("was lost")
        return {"accuracy": 0.5}

    space = {"fail_at": 5} if what == "trial" else {}
    plan = Plan(tmp_path, trials=2).validating(seconds=2.5).tuning(param_space=space)
    monkeypatch.setattr(RayWatch, "check", Mock(side_effect=RaySystemError("the raylet is gone")))
    with pytest.raises((RaySystemError, TuneError), match="the raylet is gone"):
        plan.validating(validate).run()
    happened = read(tmp_path / "sweep")
    assert not {"trial_failed", "trial_errored"} & {event["event"] for event in happened}
    assert {e["status"] for e in happened if e["event"] == "validation_ended"} <= {"validated"}
    monkeypatch.undo()
    ran = plan.restored().run()
    assert {trial.status for trial in ran.trials} == {"TERMINATED"}
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}
    check_journal(events_in(tmp_path / "sweep"))


# Finished, or not ------------------------------------------------------------------------------


class Raises(tune.Callback):
    """Fails at the sixth report, or at the start or the end of a step with nothing to validate."""

    def __init__(self, when: str):
        self.when, self.reports = when, 0
        self.idle = lambda: False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def may_raise(self, now: str) -> None:
        if self.when == now and self.reports > 5 and (now == "report" or self.idle()):
            raise TuneError("of a user's callback")

    def on_trial_result(self, **info: Any) -> None:
        self.reports += 1
        self.may_raise("report")

    def on_step_begin(self, **info: Any) -> None:
        self.may_raise("step begins")

    def on_step_end(self, **info: Any) -> None:
        self.may_raise("step ends")


def run_as_tune_does(ran: Ran, steps: int | None = None) -> None:
    """Run a sweep as ``tune.run``: it cleans up in any case, and that ends every trial."""
    try:
        if steps is None:
            ran.sweep.run()
        for _ in range(steps or 0):
            ran.sweep.step()
    finally:
        ran.sweep.controller.cleanup()


def few(folder: Path) -> Plan:
    """Three trials, whose validations have ended whenever anything else happens."""
    return Plan(folder, trials=3).validating(seconds=0.001)


@pytest.mark.parametrize("when", ["report", "step begins", "step ends"])
@pytest.mark.parametrize("place", ["before", "after"])
def test_sweep_that_a_callback_error_ends_is_interrupted_and_can_be_restored(tmp_path, when, place):
    raises = Raises(when)
    plan = few(tmp_path)
    ran = (plan.calling(raises) if place == "before" else plan.calling(last=(raises,))).start()
    raises.idle = lambda: ran.validation.validator.pool.idle
    with pytest.raises(TuneError, match="of a user"):
        run_as_tune_does(ran)
    assert all(trial.is_finished() for trial in ran.trials)
    assert [end["finished"] for end in read(ran.home, "session_closed")] == [False]
    assert tunekit.load(ran.home).summary()["state"] == "interrupted"
    again = plan.restored().run()
    assert set(again.lengths().values()) == {LENGTH}
    check_journal(events_in(ran.home))


@pytest.mark.parametrize("steps", [20, None], ids=["interrupted", "ended"])
def test_sweep_is_finished_only_if_it_ran_to_its_end(tmp_path, steps):
    ran = few(tmp_path).start()
    run_as_tune_does(ran, steps)
    assert all(trial.is_finished() for trial in ran.trials) and ran.validation.validator.pool.idle
    assert [end["finished"] for end in read(ran.home, "session_closed")] == [steps is None]
