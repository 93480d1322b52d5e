"""Every scheduler gets each validation score once, in order, and one end of each trial."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

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
from tunekit.core.events import Processed, Reported
from tunekit.driver import shell
from tunekit.journal.journal import events_in


@pytest.mark.filterwarnings("ignore:Using `CheckpointConfig.num_to_keep")
@every_case
def test_scheduler_gets_each_score_once_in_order_however_late_it_arrives(
    tmp_path, name, on_pending
):
    for seed in seeds(1, name, on_pending):
        draw = random.Random(seed)
        keep = {"num_to_keep": draw.choice([None, 1, 2, 3])}
        times = {"train": 1.0, "save": draw.choice([0.0, 0.4, 2.2])}
        ran = run(
            name,
            tmp_path / str(seed),
            on_pending=on_pending,
            seed=seed,
            trials=10,
            # One at a time, PBT may overwrite its trials for ever, in every mode.
            slots=draw.randint(1 + CASES[name].clones, 6),
            validation_s=lags(seed, draw.choice([1.0, 8.0, 12.0])),
            training_s=lambda trial, method, times=times: times.get(method, 0.0),
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
    mark = tmp_path / "first"

    def is_first(trial_id: str) -> bool:
        """The first trial that starts; in a file, as Tune pickles trainables."""
        if not mark.exists():
            mark.write_text(trial_id)
        return mark.read_text() == trial_id

    class Fails(Counting):
        def setup(self, config):
            super().setup(config)
            self.fail_at = 4 if is_first(self.trial_id) else None

        def iteration_was_restored(self):
            return False

    ran = run(
        name,
        tmp_path,
        on_pending=on_pending,
        trainable=Fails,
        # The one that fails is the best: no scheduler ends it before.
        validate=lambda attempt: {"accuracy": float(is_first(attempt.request.trial_id))},
        validation_s=lambda attempt: 2.5,
        slots=8,
    )
    check_contract(ran)
    [failed] = [trial for trial in ran.trials if is_first(trial.trial_id)]
    assert failed.status == Trial.ERROR
    assert ran.heard.errors == [index_of(failed)]
    assert index_of(failed) not in {index for index, _ in ran.heard.ends}
    assert failed.last_result["training_iteration"] == 3, "what it has reported is scored first"


@pytest.mark.one_mode
@pytest.mark.parametrize("on_pending", MODES)
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


def test_validation_callback_without_a_validated_scheduler_raises_a_wiring_error(tmp_path):
    validation = tunekit.ValidationCallback(tunekit.ValidationConfig(fn=lambda checkpoint: {}))
    local = LocalSweep(Counting, tmp_path, FakeClock(), callbacks=[validation])
    with pytest.raises(tunekit.errors.WiringError, match="ValidatedScheduler"):
        local.run()


def test_trial_that_ends_at_a_repeated_iteration_completes_with_its_score(tmp_path):
    def again(trial: Any, report: Mapping[str, Any]) -> bool:
        """It fails after iteration 5, goes back to iteration 4, and is stopped at 5."""
        return report["training_iteration"] == 5 and report["iterations_since_restore"] == 1

    ran = sweep(
        tmp_path,
        trials=1,
        policy=SavesWhen(
            lambda trial, report: report["training_iteration"] == 4 or again(0, report)
        ),
        stop=again,
        param_space={"fail_at": 6},
        max_failures=1,
    )
    assert ran.heard.of(0) == [4]  # as in Tune, the last score goes with the end only
    assert ran.heard.ends == [(0, quality(0, 5))]


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
    """Pauses each of two trials at its second score, and resumes both when both have one."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[Trial] = set()

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] != 2:
            return self.CONTINUE
        self.paused.add(trial)
        return self.PAUSE

    def choose_trial_to_run(self, controller: Any) -> Trial | None:
        able = (Trial.PENDING, Trial.PAUSED) if len(self.paused) == 2 else (Trial.PENDING,)
        return next((trial for trial in controller.get_trials() if trial.status in able), None)


def test_paused_trial_whose_save_fails_does_not_restart_until_it_is_resumed(tmp_path):
    ran = sweep(
        tmp_path,
        PausesAtTheSecond(),
        trainable=type("Fails", (FailsToSave, Counting), {}),
        trials=2,
        slots=2,
        max_failures=1,
        training_s=a_second_each,
        # The first trial's second score arrives while the trial saves its third checkpoint, and the
        # other's when the first has long restarted.
        validation_s=lambda attempt: 1.5 if attempt.request.trial_id.endswith("0") else 20.0,
    )
    check_contract(ran)
    assert [t.status for t in ran.trials] == [Trial.TERMINATED] * 2
    assert failed_saves(tmp_path) == 2
    events = events_in(ran.home)
    first, last = (
        n for n, e in enumerate(events) if isinstance(e, Processed) and e.decision == "PAUSE"
    )
    reported = [e.trial_id for e in events[first:last] if isinstance(e, Reported)]
    assert events[first].trial_id not in reported


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
