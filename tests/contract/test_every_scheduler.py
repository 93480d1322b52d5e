"""Every scheduler gets each validation score once, in order, and one end of each trial."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import ResumeConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.support.contract import check_contract, lags
from tests.support.fakes import FakeClock
from tests.support.journals import read
from tests.support.kills import Killed, killed_after
from tests.support.local_sweep import LocalSweep, index_of
from tests.support.modes import MODES, Mode
from tests.support.schedulers import CASES, every_case, planned
from tests.support.seeds import seeds
from tests.support.sweeps import Plan, SavesWhen
from tests.support.trainables import LENGTH, Counting, Endless, FailsOnce, quality
from tunekit.core.validation import Attempt
from tunekit.driver import shell


@pytest.mark.filterwarnings("ignore:Using `CheckpointConfig.num_to_keep")
@every_case
def test_scheduler_gets_each_score_once_in_order_however_late_it_arrives(tmp_path, name, mode):
    for seed in seeds(1, name, str(mode)):
        draw = random.Random(seed)
        keep = {"num_to_keep": draw.choice([None, 1, 2, 3])}
        times = {"train": 1.0, "save": draw.choice([0.0, 0.4, 2.2])}
        kept = tune.CheckpointConfig(**keep, checkpoint_score_attribute="accuracy")
        # One at a time, PBT may overwrite its trials for ever, in every mode.
        slots = draw.randint(1 + CASES[name].clones, 6)
        late, most = lags(seed, draw.choice([1.0, 8.0, 12.0])), draw.choice([None, 1, 3])
        ran = (
            planned(name, tmp_path / str(seed), mode, trials=10, seed=seed)
            .training(seconds=times, slots=slots)
            .validating(seconds=late, max_in_flight=most)
            .tuning(checkpoint_config=kept)
            .run()
        )
        check_contract(ran)
        assert len(ran.trials) == (CASES[name].trials or 10)
        assert all(t.status == Trial.TERMINATED for t in ran.trials)
        for index, scores in ran.validated().items() if name == "fifo" else ():
            assert sorted(scores) == list(range(1, LENGTH + 1))
            # The last report ends the trial by itself; as in Tune, its score goes with the end.
            assert ran.heard.of(index) == list(range(1, LENGTH))


@pytest.mark.parametrize(("name", "mode"), [("asha", Mode.AUTO), ("pbt", Mode.CONTINUE)])
def test_reports_keep_their_iterations_if_ray_delivers_one_before_an_earlier_save(
    tmp_path, name, mode
):
    ran = (
        planned(name, tmp_path, mode, trials=4)
        .training(seconds=lambda trial, method: {"train": 0.3}.get(method, 0.1), slots=4)
        .tuning(disordered=True)
        .run()
    )
    check_contract(ran)
    for trial in ran.trials:
        assert trial.status == Trial.TERMINATED and not trial.num_failures
        assert trial.last_result["loss"] == 1 / trial.last_result["training_iteration"]
    reports = [event["report"] for event in read(ran.home, "reported")]
    assert all(one["loss"] == 1 / one["training_iteration"] for one in reports)


class FailsAtFour(Counting):
    def setup(self, config):
        super().setup(config)
        self.fail_at = 4

    def iteration_was_restored(self):
        return False


@pytest.mark.sampled(2)
@every_case
def test_scheduler_gets_the_error_of_a_failed_trial_after_its_earlier_reports(tmp_path, name, mode):
    plan = planned(name, tmp_path, mode).training(FailsAtFour, slots=8)
    ran = plan.validating(seconds=2.5).run()
    check_contract(ran)
    failed = [trial for trial in ran.trials if trial.status == Trial.ERROR]
    assert failed and sorted(ran.heard.errors) == [index_of(trial) for trial in failed]
    assert not {*ran.heard.errors} & {index for index, _ in ran.heard.ends}
    # What they have reported is scored first.
    assert {trial.last_result["training_iteration"] for trial in failed} == {3}


class FirstEndsAtThree(Counting):
    def step(self):
        result = super().step()
        return {
            **result,
            "done": result["done"] or (self.trial_id.endswith("0") and self.steps == 3),
        }


@pytest.mark.sampled(2)
@every_case
def test_sweep_ends_as_usual_if_a_trial_ends_without_any_score(tmp_path, name, mode):
    def all_but_the_first(attempt: Attempt) -> dict[str, float]:
        index, iteration = int(attempt.request.trial_id[-1], 16), attempt.request.iteration
        return {"accuracy": quality(index, iteration) if index else float("nan")}

    plan = planned(name, tmp_path, mode).training(FirstEndsAtThree, slots=8)
    ran = plan.validating(all_but_the_first).run()
    check_contract(ran)
    assert all(trial.status == Trial.TERMINATED for trial in ran.trials)


@pytest.mark.one_mode
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_hyperband_stops_each_trial_at_the_same_iteration_if_trials_restart(tmp_path, name, mode):
    def lengths(trainable: type[tune.Trainable], folder: Path) -> dict[int, int]:
        ran = (
            planned(name, folder, mode)
            .training(trainable, slots=3)
            .validating(seconds=lags(5, 3.0))
            .tuning(max_failures=1)
            .run()
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
    ran = planned("asha", tmp_path).training(Endless).validating(seconds=2.5).run()
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

    def due(trial: Trial, report: Mapping[str, Any]) -> bool:
        return report["training_iteration"] == 4 or again(trial, report)

    plan = Plan(tmp_path, trials=1).training(saves=SavesWhen(due))
    ran = plan.tuning(stop=again, param_space={"fail_at": 6}, max_failures=1).run()
    assert ran.heard.of(0) == [4]  # as in Tune, the last score goes with the end only
    assert ran.heard.ends == [(0, quality(0, 5))]


class FailsToSave(Endless):
    """Fails to save its third iteration, once."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        mark = Path(self.logdir, "save-failed")
        if self.steps == 3 and not mark.exists():
            mark.touch()
            raise OSError("not saved")
        return super().save_checkpoint(checkpoint_dir)


class DecidesAtTheFirstScore(FIFOScheduler):
    def __init__(self, decision: str):
        super().__init__()
        self.decision = decision

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self.decision if result["training_iteration"] == 1 else self.CONTINUE


@pytest.mark.parametrize(("decision", "length"), [("STOP", 1), ("PAUSE", 7)])
def test_failed_save_after_the_iteration_at_which_a_trial_stops_or_pauses_is_void(
    tmp_path, decision, length
):
    # The score of iteration 1, saved at 2 s, arrives while iteration 3 is saved, from 4 s on.
    odd = SavesWhen(lambda trial, result: result["training_iteration"] % 2)
    ran = (
        Plan(tmp_path, DecidesAtTheFirstScore(decision), trials=1)
        .training(FailsToSave, seconds={"train": 1.0, "save": 1.0}, saves=odd)
        .validating(seconds=2.5)
        .tuning(max_failures=1, stop={"training_iteration": 7})
        .run()
    )
    check_contract(ran)
    assert [*Path(f"{tmp_path}-session").rglob("save-failed")], "it has failed"
    assert ran.heard.results[0][1::2] == (1, decision)
    assert ran.lengths() == {0: length} and ran.trials[0].num_failures == 0


class Flawed(Endless):
    """Every fourth one made fails in its first iteration, and as many in the second."""

    made, mended = 0, False

    def setup(self, config):
        super().setup(config)
        self.fails_after = {0: 0, 2: 1}.get(Flawed.made % 4)
        Flawed.made += 1

    def step(self):
        if self.steps == self.fails_after and not Flawed.mended:
            raise RuntimeError
        return super().step()


@every_case
def test_trial_that_restarts_from_scratch_is_scheduled_like_a_new_one(
    tmp_path, name, mode, monkeypatch
):
    def plan() -> Plan:
        stop = {"training_iteration": 9}
        return planned(name, tmp_path, mode).training(Flawed).tuning(stop=stop)

    monkeypatch.setattr(Flawed, "made", 0)
    with suppress(Killed), killed_after(random.choice([200, 10**6])):
        plan().run()
    before = tunekit.load(tmp_path / "sweep").trials
    failed = set(before[before.status == "error"].trial_id)
    assert failed
    monkeypatch.setattr(Flawed, "mended", True)
    ran = plan().restored(errored=ResumeConfig.ResumeType.RESTART).run()
    assert {trial.status for trial in ran.trials} == {Trial.TERMINATED}
    restarted = {index_of(t) for t in ran.trials if t.trial_id not in set(before.trial_id)}
    assert len(restarted) >= len(failed), "the searcher may also have made others"
    for index in restarted:
        assert min(ran.validated()[index]) == 1, "it began again"
        assert ran.processed()[index], "the scheduler has heard of it"
