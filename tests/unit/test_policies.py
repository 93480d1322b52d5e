from __future__ import annotations

from ray import tune

from tests.support.sweeps import SavesWhen, sweep
from tunekit import EveryIterations


def saved_at(trial) -> list[int]:
    """The iterations of the checkpoints that Tune has of a trial."""
    results = trial.run_metadata.checkpoint_manager.best_checkpoint_results
    return sorted(result.metrics["training_iteration"] for result in results)


def test_a_policy_does_not_take_back_what_another_asked():
    report = {"training_iteration": 1, "should_checkpoint": True}
    EveryIterations(5).on_trial_result(0, [], None, report)
    assert report["should_checkpoint"]


class Late(tune.Callback):
    """Asks for checkpoints after the ValidationCallback."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] in (2, 4):
            result["should_checkpoint"] = True


def test_a_checkpoint_requested_late_is_saved_where_the_trial_stands_and_not_validated(
    tmp_path, caplog
):
    ran = sweep(
        tmp_path,
        trials=1,
        validation_s=lambda attempt: 0.5,
        policy=SavesWhen(lambda trial, result: result["training_iteration"] in (1, 5)),
        later_callbacks=(Late(),),
    )
    [trial] = ran.trials
    assert trial.status == "TERMINATED" and sorted(ran.validated()[0]) == [1, 5]
    assert {1, 5} < {*saved_at(trial)} <= {1, 2, 4, 5}
    [warned] = [r.getMessage() for r in caplog.records if "should_checkpoint" in r.getMessage()]
    assert "checkpoint_policy=" in warned


def test_a_trial_that_a_stopper_ends_saves_at_its_end(tmp_path):
    ran = sweep(
        tmp_path,
        trials=1,
        validation_s=lambda attempt: 0.5,
        policy=SavesWhen(lambda trial, result: result["training_iteration"] == 2),
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        stop=lambda trial_id, result: result["training_iteration"] == 4,
    )
    [trial] = ran.trials
    assert trial.status == "TERMINATED"
    assert saved_at(trial) == [2, 4]
