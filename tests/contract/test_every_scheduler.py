"""Every scheduler gets each validation score once, in order, and one end of each trial."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

import tunekit
from tests.support.contract import check_contract, lags, run
from tests.support.fakes import FakeClock
from tests.support.journals import read
from tests.support.local_sweep import LocalSweep
from tests.support.schedulers import CASES, MODES, every_case
from tests.support.seeds import seeds
from tests.support.sweeps import (
    LENGTH,
    Counting,
    Endless,
    FailsOnce,
    SavesWhen,
    index_of,
    quality,
    sweep,
)
from tunekit.driver import shell

every_mode = pytest.mark.parametrize("on_pending", MODES)


@pytest.mark.filterwarnings("ignore:Using `CheckpointConfig.num_to_keep")
@every_case
def test_scheduler_gets_each_score_once_in_order_however_late_it_arrives(
    tmp_path, name, on_pending
):
    for seed in seeds(1, name, on_pending):
        draw = random.Random(seed)
        keep = {"num_to_keep": draw.choice([None, 1, 2, 3])}
        ran = run(
            name,
            tmp_path / str(seed),
            on_pending=on_pending,
            seed=seed,
            trials=10,
            # One at a time, PBT may overwrite its trials for ever, in every mode.
            slots=draw.randint(1 + CASES[name].clones, 6),
            validation_s=lags(seed, draw.choice([1.0, 8.0, 12.0])),
            settings={"max_in_flight": draw.choice([None, 1, 3])},
            checkpoint_config=tune.CheckpointConfig(**keep, checkpoint_score_attribute="accuracy"),
        )
        check_contract(ran)
        assert len(ran.trials) == CASES[name].options().get("trials", 10)
        assert all(t.status == Trial.TERMINATED for t in ran.trials)
        for index, scores in ran.validated().items() if name == "fifo" else ():
            assert sorted(scores) == list(range(1, LENGTH + 1))
            # The last report ends the trial by itself; as in Tune, its score goes with the end.
            assert ran.heard.of(index) == list(range(1, LENGTH))


@pytest.mark.parametrize(("name", "on_pending"), [("asha", "auto"), ("pbt", "continue")])
def test_reports_keep_their_iterations_if_ray_delivers_one_before_an_earlier_save(
    tmp_path, name, on_pending
):
    ran = run(
        name,
        tmp_path,
        on_pending=on_pending,
        trials=4,
        slots=4,
        training_s=lambda trial, method: {"train": 0.3}.get(method, 0.1),
        disordered=True,
    )
    check_contract(ran)
    for trial in ran.trials:
        assert trial.status == Trial.TERMINATED and not trial.num_failures
        assert trial.last_result["loss"] == 1 / trial.last_result["training_iteration"]
    reports = [event["report"] for event in read(ran.home, "reported")]
    assert all(one["loss"] == 1 / one["training_iteration"] for one in reports)


@every_case
def test_scheduler_gets_the_error_of_a_failed_trial_after_its_earlier_reports(
    tmp_path, name, on_pending
):
    only_one = CASES[name].options().get("trials") == 1
    victim, seen = (0 if only_one else 3), tmp_path / "seen"
    seen.mkdir()

    def number(trial_id: str) -> int:
        """In the order in which trials started; a file, as Tune pickles trainables."""
        mark = seen / trial_id
        if not mark.exists():
            mark.write_text(str(len(list(seen.iterdir()))))
        return int(mark.read_text())

    class Fails(Counting):
        def setup(self, config):
            super().setup(config)
            if number(self.trial_id) == victim:
                self.fail_at = 4

        def iteration_was_restored(self):
            return False

    ran = run(
        name,
        tmp_path,
        on_pending=on_pending,
        trainable=Fails,
        # The one that fails is the best: no scheduler ends it before.
        validate=lambda attempt: {"accuracy": float(number(attempt.request.trial_id) == victim)},
        validation_s=lambda attempt: 2.5,
        slots=8,
    )
    check_contract(ran)
    [failed] = [trial for trial in ran.trials if number(trial.trial_id) == victim]
    assert failed.status == Trial.ERROR
    assert ran.heard.errors == [index_of(failed)]
    assert index_of(failed) not in {index for index, _ in ran.heard.ends}
    assert failed.last_result["training_iteration"] == 3, "what it has reported is scored first"


@pytest.mark.one_mode
@every_mode
@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_hyperband_stops_each_trial_at_the_same_iteration_if_trials_restart(
    tmp_path, name, on_pending
):
    def lengths(trainable: type[tune.Trainable], folder: Path) -> dict[int, int]:
        ran = run(
            name,
            folder,
            on_pending=on_pending,
            trainable=trainable,
            max_failures=1,
            validation_s=lags(5, 3.0),
            slots=3,
        )
        check_contract(ran)
        assert any(t.num_failures for t in ran.trials) == (trainable is FailsOnce)
        assert sorted(ran.heard.added) == [index_of(t) for t in ran.trials], "added once"
        return {index: max(ran.heard.of(index)) for index in ran.lengths()}

    quiet = lengths(Counting, tmp_path / "quiet")
    assert min(quiet.values()) < max(quiet.values())
    assert lengths(FailsOnce, tmp_path / "restarts") == quiet


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "continue" in case.modes])
def test_stopped_trial_ends_at_the_iteration_of_its_decision_however_far_it_trained(tmp_path, name):
    ran = run(
        name,
        tmp_path,
        trainable=Endless,
        trials=12,
        validation_s=lambda attempt: 2.5,
        stop={"training_iteration": 15},
    )
    check_contract(ran)
    lengths = ran.lengths()
    for index, iteration, _, decision in ran.heard.results:
        if decision == TrialScheduler.STOP:
            assert lengths[index] == iteration
    if name.startswith("asha"):
        assert ran.executor.cancelled, "no trial has trained past its end: the test shows nothing"


@pytest.mark.sampled(2)
def test_sweep_finishes_if_its_storage_fails_to_delete_checkpoints(tmp_path, monkeypatch):
    kept: list[str] = []

    def fails(filesystem: Any, path: str) -> None:
        kept.append(path)
        raise OSError("no connection")

    monkeypatch.setattr(shell, "delete_checkpoint", fails)
    ran = run("asha", tmp_path, trainable=Endless, validation_s=lambda attempt: 2.5)
    check_contract(ran)
    assert kept and all(Path(path).exists() for path in kept)
    assert all(trial.status == Trial.TERMINATED for trial in ran.trials)


@pytest.mark.sampled(2)
@every_mode
def test_stop_that_arrives_during_a_save_ends_its_trial_once(tmp_path, on_pending):
    """Tune would keep a STOP for the next save, and end the trial then or never (fact of 2.60)."""
    for save_s in (0.4, 2.2):
        ran = sweep(
            tmp_path / str(save_s),
            ASHAScheduler(max_t=20, grace_period=1, reduction_factor=2),
            on_pending=on_pending,
            trainable=Endless,
            trials=10,
            validation_s=lambda attempt: 1.5,
            training_s=lambda _, method, s=save_s: {"train": 1.0, "save": s}.get(method, 0.0),
            stop={"training_iteration": 40},
        )
        check_contract(ran)
        stopped = [i for i, _, _, decision in ran.heard.results if decision == "STOP"]
        assert len(stopped) == len(set(stopped)) == 10
        assert all(t.status == Trial.TERMINATED and not t.is_saving for t in ran.trials)


def test_checkpoint_of_an_iteration_that_was_saved_before_is_not_validated_again(tmp_path):
    """A scheduler may ask a trial that has just saved to save once more."""
    ran = sweep(tmp_path, on_pending="wait", trials=1, run=False)
    controller, again = ran.sweep.controller, 0
    while not controller.is_finished():
        ran.sweep.step()
        [trial] = ran.trials
        waits = trial.status == Trial.RUNNING and ran.validation.run.waiting.waits(trial.trial_id)
        if waits and not trial.is_saving and again < 3 * LENGTH:
            controller._schedule_trial_save(trial)
            again += 1
    assert again >= LENGTH - 1
    check_contract(ran)
    assert len(ran.executor.started) == LENGTH


def test_validation_callback_without_a_validated_scheduler_raises_a_wiring_error(tmp_path):
    validation = tunekit.ValidationCallback(tunekit.ValidationConfig(fn=lambda checkpoint: {}))
    local = LocalSweep(Counting, tmp_path, FakeClock(), callbacks=[validation])
    with pytest.raises(tunekit.errors.WiringError, match="ValidatedScheduler"):
        local.run()


# Trials that fail to save, when their scheduler has just paused or stopped them -----------------


class FailsToSave:
    """A mixin for a trainable: each trial fails to save its third iteration, once."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        mark = Path(self.logdir, "save-failed")
        if self.steps == 3 and not mark.exists():
            mark.touch()
            raise OSError("not saved")
        return super().save_checkpoint(checkpoint_dir)


def failed_saves(folder: Path) -> int:
    return len([*Path(f"{folder}-session").rglob("save-failed")])


def a_second_each(trial: Trial, method: str) -> float:
    """Saves take as long as iterations, so that decisions arrive meanwhile."""
    return 1.0 if method in ("train", "save") else 0.0


class PausesAtTheSecond(FIFOScheduler):
    """Pauses each trial at its second score, and resumes them when all have one."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[str] = set()
        self.resumed: set[str] = set()

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] == 2:
            self.paused.add(trial.trial_id)
            return self.PAUSE
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Any) -> Trial | None:
        trials = controller.get_trials()
        if all(trial.trial_id in self.paused for trial in trials):
            self.resumed |= self.paused
        able = [t for t in trials if t.status == Trial.PENDING or t.trial_id in self.resumed]
        return next((t for t in able if t.status in (Trial.PENDING, Trial.PAUSED)), None)


def test_paused_trial_whose_save_fails_does_not_restart_until_it_is_resumed(tmp_path):
    base = PausesAtTheSecond()

    class Watch(tune.Callback):
        trained: list[str] = []

        def on_trial_start(self, iteration: int, trials: list, trial: Trial, **info: Any) -> None:
            if trial.trial_id in base.paused - base.resumed:
                self.trained.append(trial.trial_id)

    ran = sweep(
        tmp_path,
        base,
        trainable=type("Fails", (FailsToSave, Counting), {}),
        trials=2,
        slots=2,
        max_failures=1,
        training_s=a_second_each,
        # The first trial's second score arrives while the trial saves its third checkpoint, and the
        # other's when the first has long restarted.
        validation_s=lambda attempt: 1.5 if attempt.request.trial_id.endswith("0") else 20.0,
        more_callbacks=(Watch(),),
    )
    check_contract(ran)
    assert [t.status for t in ran.trials] == [Trial.TERMINATED] * 2
    assert failed_saves(tmp_path) == 2 and base.resumed
    assert not Watch.trained


class EndsInItsSecondLife(Counting):
    """Fails after iteration 5, goes back to iteration 4, and ends by itself at 5."""

    def step(self) -> dict[str, Any]:
        reported = super().step()
        if self.steps == 6:
            raise RuntimeError("fails at 6")
        return {**reported, "done": self.steps == 5 and self._restored}


def test_trial_that_ends_at_a_repeated_iteration_completes_with_its_score(tmp_path):
    saves = SavesWhen(lambda trial, report: report["training_iteration"] == 4 or report["done"])
    options = {"trainable": EndsInItsSecondLife, "policy": saves, "max_failures": 1}
    ran = sweep(tmp_path, trials=1, **options)
    assert ran.heard.of(0) == [4]  # as in Tune, the last score goes with the end only
    assert ran.heard.ends == [(0, quality(0, 5))]


class StopsAtTheFirstScore(FIFOScheduler):
    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self.STOP


def test_stopped_trial_ends_where_it_was_stopped_if_its_save_fails(tmp_path):
    ran = sweep(
        tmp_path,
        StopsAtTheFirstScore(),
        trainable=type("Fails", (FailsToSave, Endless), {}),
        trials=1,
        # The score of iteration 1, saved at 2 s, arrives while iteration 3 is saved, from 4 s on.
        policy=SavesWhen(lambda trial, result: result["training_iteration"] % 2),
        validation_s=lambda attempt: 2.5,
        training_s=a_second_each,
        max_failures=1,
    )
    [trial] = ran.trials
    assert failed_saves(tmp_path) == 1
    assert [(i, decision) for _, i, _, decision in ran.heard.results] == [(1, "STOP")]
    assert trial.status == "TERMINATED" and trial.last_result["training_iteration"] == 1
