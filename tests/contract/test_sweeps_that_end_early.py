"""A sweep that ends early records why, and a restored sweep continues what was cut short."""

from __future__ import annotations

import itertools
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
from tests.support.contract import run as contract_run
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.restores import contents, restoring
from tests.support.schedulers import MODES
from tests.support.sweeps import LENGTH, Counting, Most, Ran, SavesWhen, sweep
from tunekit._ray.interruption import RayWatch
from tunekit.driver.program import Program
from tunekit.journal.journal import events_in


def run(folder: Path, **options: Any) -> Ran:
    return sweep(folder, listening=False, **options)


# All trials fail --------------------------------------------------------------------------------


def failing(folder: Path, *fail_at: int | None, **options: Any) -> Ran:
    return run(
        folder,
        param_space={"fail_at": tune.grid_search(list(fail_at))},
        trials=1,
        policy=tunekit.EveryIterations(100),
        **options,
    )


def test_sweep_whose_trials_all_fail_before_a_checkpoint_finishes_with_their_errors(tmp_path):
    ran = failing(tmp_path, 2, 3)
    assert [trial.status for trial in ran.trials] == ["ERROR", "ERROR"]
    assert all("fails at" in str(trial.get_error()) for trial in ran.trials)
    assert read(tmp_path / "sweep")[-1]["finished"] is True
    again = failing(tmp_path, 2, 3, **restoring(tmp_path / "sweep"))
    assert [trial.status for trial in again.trials] == ["ERROR", "ERROR"]


def test_error_about_missing_checkpoints_counts_failed_trials_apart(tmp_path):
    with pytest.raises(tunekit.errors.MetricNotFoundError, match=r"\b1 trial failed\b"):
        failing(tmp_path, 2, None)


# Time is up -------------------------------------------------------------------------------------


@pytest.fixture
def _a_second_per_step(monkeypatch):
    """Tune's own clock of time budgets, which it looks at once per step."""
    seconds = SimpleNamespace(time=itertools.count(1.0).__next__)
    monkeypatch.setattr("ray.tune.stopper.timeout.time", seconds)


def asha(folder: Path, **options: Any) -> Ran:
    """One trial at a time, so that those that wait for scores have to make room."""
    scheduler = ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)
    known = {"on_pending": "wait-paused", "trials": 6, "max_concurrent": 1}
    return run(folder, base=scheduler, **known, **options)


def fifo(folder: Path, **options: Any) -> Ran:
    late = {"on_pending": "wait", "validation_s": lambda attempt: 2.5}
    return run(folder, trials=5, slots=2, **late, **options)


def late(folder: Path, **options: Any) -> Ran:
    return run(folder, trials=4, slots=3, validation_s=lambda attempt: 20.0, **options)


@pytest.mark.parametrize("make", [asha, fifo, late])
def test_each_session_has_the_whole_time_budget_and_continues_trials_cut_short(
    tmp_path, make, _a_second_per_step
):
    whole = make(tmp_path / "whole")
    sessions, options = 0, {}
    while not sessions or not read(tmp_path / "sweep")[-1]["finished"]:
        budget = TimeoutStopper(25)
        ran = make(tmp_path, stop=CombinedStopper(NoopStopper(), budget), **options)
        sessions, options = sessions + 1, restoring(tmp_path / "sweep")
        assert sessions < 20, "no session comes any further"
    assert sessions > 2, "the time was never up: the test shows nothing"
    assert [trial.status for trial in ran.trials] == ["TERMINATED"] * len(whole.trials)
    assert ran.scores() == whole.scores() and ran.lengths() == whole.lengths()
    decisions = [sorted(check_journal(events_in(one.home)).decisions) for one in (ran, whole)]
    assert decisions[0] == decisions[1]
    validated = tunekit.load(tmp_path / "sweep").validations
    assert not validated.duplicated(["trial_id", "iteration"]).any(), "what was done is done once"


@pytest.mark.parametrize("on_pending", MODES)
@pytest.mark.parametrize("base", [FIFOScheduler, partial(ASHAScheduler, max_t=9)])
def test_each_checkpoint_is_scored_and_ranked_when_time_is_up(
    tmp_path, base, on_pending, _a_second_per_step
):
    options = {"on_pending": on_pending, "validation_s": lambda attempt: 20.0, "trials": 4}
    ran = run(tmp_path, base=base(), stop=TimeoutStopper(40), slots=3, **options)
    sweep = tunekit.load(ran.home)
    scores = [score for own in ran.scores().values() for score in own.values()]
    assert sweep.summary()["state"] == "interrupted" and sweep.best().score == max(scores)
    assert sweep.summary()["unprocessed"] == 0 < len(scores)
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


@pytest.mark.parametrize("name", ["hyperband", "bohb", "pbt-sync"])
@pytest.mark.parametrize("on_pending", ["auto", "wait", "wait-paused"])
@pytest.mark.parametrize("budget", [25, 60])
def test_sweep_with_rounds_ends_when_time_is_up_and_continues_when_restored(
    tmp_path, name, on_pending, budget, _a_second_per_step
):
    known = {"on_pending": on_pending, "slots": 3, "validation_s": lags(1, 12.0)}
    known |= {"stop": TimeoutStopper(budget), "listening": False}
    ran = contract_run(name, tmp_path, **known)
    for _ in range(40):
        if read(ran.home)[-1]["finished"]:
            break
        ran = contract_run(name, tmp_path, **known, **restoring(ran.home))
    check_journal(events_in(ran.home))
    assert all(trial.status == "TERMINATED" for trial in ran.trials)


def test_no_iteration_continues_when_time_is_up(tmp_path, _a_second_per_step):
    begun = Counter()

    def training_s(trial, method):
        begun[trial.trial_id] += method == "train"
        return 1.0 if begun[trial.trial_id] < 4 else 1e6

    options = {"validation_s": lambda attempt: 20.0, "training_s": training_s}
    ran = run(tmp_path, stop=TimeoutStopper(16), trials=2, **options)
    assert set(begun.values()) == {4} and set(ran.lengths().values()) == {3}


def test_sweep_whose_time_budget_ends_before_any_checkpoint_raises_no_error(
    tmp_path, _a_second_per_step
):
    options = {"policy": tunekit.EveryIterations(8), "stop": TimeoutStopper(12)}
    ran = run(tmp_path, trials=3, **options)
    assert all(0 < length < 8 for length in ran.lengths().values())
    assert read(tmp_path / "sweep")[-1]["finished"] is False


# A failure ends all ------------------------------------------------------------------------------


@pytest.mark.parametrize("errored", [ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.SKIP])
def test_restored_sweep_continues_trials_that_fail_fast_cut_short(tmp_path, errored):
    def make(**options: Any) -> Ran:
        return run(
            tmp_path,
            param_space={"fail_at": tune.grid_search([None, 3, None, None, None, None])},
            trials=1,
            max_concurrent=3,
            run=False,
            **options,
        )

    ran = make()
    ran.sweep.controller._fail_fast = True
    ran.sweep.run()
    first = tunekit.load(ran.home)
    assert first.summary()["state"] == "interrupted"
    assert len(first.trials) == 3 and not first.trials["stopped"].any()
    assert sorted(first.trials["status"]) == ["error", "running", "running"]

    ran = make(**restoring(tmp_path / "sweep", errored=errored))
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
    def make(live: Most, **options: Any) -> Ran:
        return run(
            tmp_path,
            param_space={"fail_at": tune.grid_search([3] * 5)},
            trials=1,
            slots=8,
            max_concurrent=most,
            more_callbacks=(live,),
            **options,
        )

    first, again = Most(has_process), Most(has_process)
    assert {trial.status for trial in make(first).trials} == {"ERROR"}
    ran = make(again, **restoring(tmp_path / "sweep", errored=how))
    assert len(ran.trials) == 5 and all(trial.is_finished() for trial in ran.trials)
    assert first.most == again.most == most


# Who may go on with it --------------------------------------------------------------------------


@pytest.mark.parametrize("at", [15, 60])
def test_stock_restore_of_a_tunekit_sweep_is_refused_and_changes_no_file(tmp_path, monkeypatch, at):
    with pytest.raises(Killed), killed_after(at):
        fifo(tmp_path)
    before = contents(tmp_path / "sweep")
    as_tuner_leaves_it = partial(Program, is_owned=True)
    monkeypatch.setattr("tunekit.driver.callback.Program", as_tuner_leaves_it)
    with pytest.raises(tunekit.errors.RestoreError, match=f"tunekit resume {tmp_path}/sweep"):
        fifo(tmp_path, resume=ResumeConfig())
    assert contents(tmp_path / "sweep") == before
    monkeypatch.undo()
    ran = fifo(tmp_path, **restoring(tmp_path / "sweep"))
    assert {len(scores) for scores in ran.scores().values()} == {LENGTH}


# A trainer in a driver function -----------------------------------------------------------------


class Drives(Counting):
    """Reports as Ray's ``TuneReportCallback`` does: with the path of a checkpoint, not with one."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), CHECKPOINT_PATH_KEY: f"/results/run/checkpoint_{self.steps}"}


def test_trainer_in_a_driver_function_is_an_error_at_its_first_report(tmp_path, caplog):
    never = SavesWhen(lambda trial, result: False)
    with pytest.raises(tunekit.errors.MetricNotFoundError) as caught:
        run(tmp_path, trainable=Drives, trials=2, policy=never)
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

    fails = {"param_space": {"fail_at": 5}} if what == "trial" else {}
    options = {"trials": 2, "validation_s": lambda attempt: 2.5, **fails}
    monkeypatch.setattr(RayWatch, "check", Mock(side_effect=RaySystemError("the raylet is gone")))
    with pytest.raises((RaySystemError, TuneError), match="the raylet is gone"):
        run(tmp_path, validate=validate, **options)
    happened = read(tmp_path / "sweep")
    assert not {"trial_failed", "trial_errored"} & {event["event"] for event in happened}
    assert {e["status"] for e in happened if e["event"] == "validation_ended"} <= {"validated"}
    monkeypatch.undo()
    ran = run(tmp_path, **options, **restoring(tmp_path / "sweep"))
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


def few(folder: Path, **options: Any) -> Ran:
    """Three trials, whose validations have ended whenever anything else happens."""
    return run(folder, run=False, trials=3, validation_s=lambda attempt: 0.001, **options)


@pytest.mark.parametrize("when", ["report", "step begins", "step ends"])
@pytest.mark.parametrize("place", ["more_callbacks", "later_callbacks"])
def test_sweep_that_a_callback_error_ends_is_interrupted_and_can_be_restored(tmp_path, when, place):
    raises = Raises(when)
    ran = few(tmp_path, **{place: (raises,)})
    raises.idle = lambda: ran.validation.validator.pool.idle
    with pytest.raises(TuneError, match="of a user"):
        run_as_tune_does(ran)
    assert all(trial.is_finished() for trial in ran.trials)
    assert [end["finished"] for end in read(ran.home, "session_closed")] == [False]
    assert tunekit.load(ran.home).summary()["state"] == "interrupted"
    again = few(tmp_path, **restoring(ran.home))
    again.sweep.run()
    assert set(again.lengths().values()) == {LENGTH}
    check_journal(events_in(ran.home))


@pytest.mark.parametrize("steps", [20, None], ids=["interrupted", "ended"])
def test_sweep_is_finished_only_if_it_ran_to_its_end(tmp_path, steps):
    ran = few(tmp_path)
    run_as_tune_does(ran, steps)
    assert all(trial.is_finished() for trial in ran.trials) and ran.validation.validator.pool.idle
    assert [end["finished"] for end in read(ran.home, "session_closed")] == [steps is None]
