"""A resumed function continues from its checkpoint or fails; it never silently starts over."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ray import tune
from ray.train import ValidationTaskConfig
from ray.train._internal.session import get_checkpoint, shutdown_session
from ray.tune import ResumeConfig
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

import tunekit
from tests.support.invariants import check_journal
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.modes import Mode
from tests.support.schedulers import pbt
from tests.support.sweeps import Plan, Ran
from tests.support.trainables import Counting
from tunekit._ray.functions import CAN_SAVE, HAS_ASKED, let_tell_of_resuming
from tunekit.journal.journal import events_in
from tunekit.policies import DefaultPolicy

LENGTH = 5


@pytest.fixture(autouse=True)
def no_session_is_left():
    yield
    shutdown_session()


# How a function may ask for its checkpoint -------------------------------------------------------


def from_tune(config: dict[str, Any]) -> Any:
    return tune.get_checkpoint()


def from_train(config: dict[str, Any]) -> Any:
    """As functions did before Ray Train had a session of its own, and integrations do."""
    return get_checkpoint()


def in_a_thread(config: dict[str, Any]) -> Any:
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(tune.get_checkpoint()))
    thread.start()
    thread.join()
    return found[0]


def counting(ask: Any = None, *, fails_at: int = 0) -> Any:
    """A function that counts to ``LENGTH``, starting from its checkpoint."""

    def function(config: dict[str, Any]) -> None:
        state = {"steps": 0}
        checkpoint = ask and ask(config)
        if checkpoint:
            with checkpoint.as_directory() as folder:
                state = json.loads(Path(folder, "state.json").read_text())
        tunekit.checkpoint_with(lambda d: (d / "state.json").write_text(json.dumps(state)))
        while state["steps"] < LENGTH:
            state["steps"] += 1
            if state["steps"] == fails_at and not checkpoint:
                raise RuntimeError("fails")
            tune.report({"steps": state["steps"]})

    return function


def one_by_one(
    folder: Path,
    function: Any,
    base: TrialScheduler | None = None,
    mode: Mode = Mode.CONTINUE,
    *,
    trials: int = 1,
) -> Plan:
    """A sweep of a function, one trial at a time: Ray has one session in a process."""
    plan = Plan(folder, base, mode, trials=trials)
    return plan.training(tunekit.checkpointable(function), slots=1)


def rows(ran: Ran) -> list[list[tuple[int, int]]]:
    """Of each trial, (training_iteration, steps) of its reports, as the journal has them."""
    found: dict[str, list[tuple[int, int]]] = {trial.trial_id: [] for trial in ran.trials}
    for event in read(ran.home, "reported"):
        report = event["report"]
        found[event["trial_id"]].append((report["training_iteration"], report["steps"]))
    return [*found.values()]


WHOLE = [(n, n) for n in range(1, LENGTH + 1)]


def ignoring(config: dict[str, Any]) -> None:
    from_tune(config)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (from_tune, WHOLE),
        (from_train, WHOLE),
        (in_a_thread, WHOLE),
        (ignoring, [(n, 1) for n in range(1, LENGTH + 1)]),
    ],
)
def test_paused_trial_continues_with_what_its_function_makes_of_its_checkpoint(
    tmp_path, ask, expected
):
    plan = one_by_one(tmp_path, counting(ask), mode=Mode.WAIT_PAUSED, trials=2)
    sweep = plan.tuning(stop={"training_iteration": LENGTH}).run()
    assert rows(sweep) == [expected, expected]
    assert [trial.status for trial in sweep.trials] == ["TERMINATED"] * 2


@pytest.mark.parametrize("asks", [True, False])
def test_waiting_trial_releases_its_slot_only_if_its_function_gets_checkpoints(tmp_path, asks):
    trainable = tunekit.checkpointable(counting(from_tune if asks else None))
    let_tell_of_resuming(trainable)
    base = ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=2)
    plan = one_by_one(tmp_path, trainable, base, Mode.AUTO_BESIDE, trials=4)
    sweep = plan.validating(seconds=20.0).run()
    assert [trial.status for trial in sweep.trials] == ["TERMINATED"] * 4
    for row in rows(sweep):
        assert row == WHOLE[: len(row)]
    events = read(sweep.home, "reported")
    turns = [trial_id for trial_id, _ in groupby(event["trial_id"] for event in events)]
    assert (len(turns) > len(set(turns))) is asks, "others report in between"
    assert not any({HAS_ASKED, CAN_SAVE} & event["report"].keys() for event in events)


@pytest.mark.parametrize("max_failures", [0, 2, -1])
def test_function_that_starts_over_after_a_pause_fails_and_is_not_retried(tmp_path, max_failures):
    plan = one_by_one(tmp_path, counting(), mode=Mode.WAIT_PAUSED, trials=2)
    sweep = plan.tuning(max_failures=max_failures).run()
    assert rows(sweep) == [[(1, 1)], [(1, 1)]]
    for trial in sweep.trials:
        assert trial.status == "ERROR" and trial.num_failures == 1
        assert trial.last_result["training_iteration"] == 1
        error = Path(trial.error_file).read_text()
        assert "iteration 1" in error and "checkpoint = tune.get_checkpoint()" in error
    check_journal(events_in(sweep.home))


@pytest.mark.parametrize(
    ("ask", "fails_at", "status", "failures", "reported"),
    [
        pytest.param(None, 4, "ERROR", 2, WHOLE[:3], id="starts over, and is not retried"),
        pytest.param(from_tune, 4, "TERMINATED", 1, WHOLE[:3] + WHOLE[2:], id="gets it"),
        pytest.param(None, 2, "ERROR", 4, 4 * WHOLE[:1], id="has none yet, and is retried"),
    ],
)
def test_failed_function_continues_from_its_checkpoint_if_it_has_one_or_its_trial_fails(
    tmp_path, ask, fails_at, status, failures, reported
):
    plan = one_by_one(tmp_path, counting(ask, fails_at=fails_at)).tuning(max_failures=3)
    sweep = plan.training(saves=tunekit.EveryIterations(2)).run()
    [trial] = sweep.trials
    assert (trial.status, trial.num_failures) == (status, failures)
    assert rows(sweep) == [reported]


@pytest.mark.parametrize(("asks", "status"), [(False, "ERROR"), (True, "TERMINATED")])
def test_clone_whose_function_does_not_get_its_checkpoint_fails(tmp_path, asks, status):
    scheduler = pbt(
        hyperparam_mutations={"lr": [0.1]},
        custom_explore_fn=lambda config: {"lr": 0.2},
        quantile_fraction=0.5,
    )
    function = counting(
        lambda config: tune.get_checkpoint() if asks or config["lr"] == 0.1 else None
    )
    sweep = (
        one_by_one(tmp_path, function, scheduler, trials=2)
        .training(saves=tunekit.EveryIterations(2))
        .validating(lambda a: {"accuracy": 1.0 - int(a.request.trial_id[-1])}, seconds=0.1)
        .tuning(param_space={"lr": 0.1})
        .run()
    )
    assert [e["iteration"] for e in read(sweep.home, "exploited")]
    assert status in {trial.status for trial in sweep.trials} <= {status, "TERMINATED"}
    assert all(iteration == steps for row in rows(sweep) for iteration, steps in row)
    check_journal(events_in(sweep.home))


def test_restored_function_that_starts_over_fails_and_continues_once_fixed(tmp_path):
    def plan(function: Any) -> Plan:
        saved = one_by_one(tmp_path, function).training(saves=tunekit.EveryIterations(2))
        return saved.validating(seconds=0.5)

    with suppress(Killed), killed_after(14):
        plan(counting()).run()
        raise AssertionError("it was not killed")
    shutdown_session()  # of the killed driver
    before = [e["report"]["training_iteration"] for e in read(tmp_path / "sweep", "reported")]
    assert 2 <= len(before) < LENGTH
    sweep = plan(counting()).restored().run()
    assert [trial.status for trial in sweep.trials] == ["ERROR"]
    assert rows(sweep) == [WHOLE[: len(before)]]

    sweep = plan(counting(from_tune)).restored(errored=ResumeConfig.ResumeType.RESUME).run()
    assert [trial.status for trial in sweep.trials] == ["TERMINATED"]
    assert dict(rows(sweep)[0]) == dict(WHOLE)


# What a report says of its checkpoint -------------------------------------------------------------


def test_validation_argument_of_a_report_decides_how_its_checkpoint_is_validated(tmp_path):
    def choosing(config: dict[str, Any]) -> None:
        for wrong in (True, "yes"):  # there is no checkpoint yet; the type is wrong
            with pytest.raises(tunekit.errors.ConfigError, match="validation="):
                tunekit.report({"loss": 1.0}, validation=wrong)
        tunekit.checkpoint_with(lambda directory: None)
        for choice in (None, True, False, ValidationTaskConfig(fn_kwargs={"divide_by": 100})):
            tunekit.report({"loss": 1.0}, validation=choice)

    def validate(attempt: Any) -> dict[str, float]:
        return {"accuracy": attempt.request.iteration / attempt.request.kwargs.get("divide_by", 10)}

    plan = one_by_one(tmp_path, choosing)
    sweep = plan.validating(validate, when=5, fn=lambda checkpoint, divide_by=10: {}).run()
    assert sweep.trials[0].status == "TERMINATED"
    assert sweep.validated() == {0: {2: 0.2, 4: 0.04}}
    assert not [name for name in sweep.trials[0].last_result if "tunekit_validation" in name]


def test_error_of_a_trial_whose_save_function_raises_names_its_exception(tmp_path):
    def train(config: dict[str, Any]) -> None:
        def save(directory: Path) -> None:
            raise TypeError("cannot serialize Net")

        tunekit.checkpoint_with(save)
        tune.report({"loss": 1.0})

    error = Path(one_by_one(tmp_path, train).run().trials[0].error_file).read_text()
    assert "tunekit.checkpoint_with(save)" in error and "TypeError: cannot serialize Net" in error


# What saves by default ---------------------------------------------------------------------------


def reporting_checkpoints(config: dict[str, Any]) -> None:
    for step in range(1, LENGTH + 1):
        with tempfile.TemporaryDirectory() as folder:
            own = tune.Checkpoint.from_directory(folder) if step % 2 == 0 else None
            tune.report({"steps": step}, checkpoint=own)


def choosing(config: dict[str, Any]) -> None:
    tunekit.checkpoint_with(lambda directory: None)
    for step in range(1, LENGTH + 1):
        tunekit.report({"steps": step}, validation=step == 3)


class SavingByItself(Counting):
    def step(self) -> dict[str, Any]:
        report = super().step()
        return {**report, **({"should_checkpoint": True} if self.steps in (1, 3) else {})}


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        pytest.param(counting(), [1, 2, 3, 4, 5], id="function"),
        pytest.param(reporting_checkpoints, [2, 4], id="function reports checkpoints"),
        pytest.param(choosing, [3], id="function requests validation"),
        pytest.param(Counting, [*range(1, 10)], id="class"),
        pytest.param(SavingByItself, [1, 3], id="class requests checkpoints"),
    ],
)
@pytest.mark.parametrize("when", ["auto", 1])
def test_default_policy_saves_each_iteration_only_if_the_trainable_requests_none(
    tmp_path, caplog, trainable, expected, when
):
    if not isinstance(trainable, type):
        trainable = tunekit.checkpointable(trainable)
    let_tell_of_resuming(trainable)
    plan = one_by_one(tmp_path, trainable).training(saves=DefaultPolicy(when))
    sweep = plan.validating(when=when).run()
    events = read(sweep.home, "checkpoint_saved")
    assert [e["iteration"] for e in events] == expected
    assert "tunekit._ray.functions" not in {record.name for record in caplog.records}
