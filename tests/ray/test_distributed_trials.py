"""Trials with several workers are scored, cloned, restarted and restored like any other."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

import tunekit
from tests.support import real_sweeps
from tests.support.real_sweeps import by_accuracy, events
from tests.support.versioned import AfterExploits, Versions, score_of, version_at
from tests.support.worker_groups import fit, trainer, validate

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def test_asha_over_trainers_ranks_by_validated_accuracy(tmp_path):
    results = fit(
        trainer(tmp_path, length=9, sleep_s=0.05),
        tmp_path,
        param_space={"train_loop_config": {"lr": tune.uniform(0, 1)}},
        tune_config=by_accuracy(ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3), 4),
    )
    assert not results.errors
    best = results.get_best_result()
    assert best.metrics["accuracy"] == max(r.metrics["accuracy"] for r in results)
    for result in results:
        table = result.metrics_dataframe
        assert table["training_iteration"].tolist() == list(range(1, len(table) + 1))
        scored = table.dropna(subset="accuracy")
        assert scored["accuracy"].tolist() == [score_of(v, 5.0) for v in scored["version"]]
        # One that trained on while nobody needed its place may lack its last, when it is stopped.
        lacking = ({1, 3, 9} & {*table["training_iteration"]}) - {*scored["training_iteration"]}
        assert not lacking or (lacking == {len(table)} and len(table) < 9)
        # What the workers have uploaded is what Tune tracks. Beside it lies at most what they had
        # uploaded when the trial was stopped, and Tune had not heard of.
        on_disk = {str(path) for path in Path(result.path).glob("checkpoint_*")}
        tracked = {checkpoint.path for checkpoint, _ in result.best_checkpoints}
        unheard = on_disk - tracked
        assert tracked <= on_disk
        assert not unheard or (len(unheard) == 1 and len(table) < 9)
        assert all(path > max(tracked) for path in unheard)
        in_files = {c.path: m for c, m in tune.Result.from_path(result.path).best_checkpoints}
        for checkpoint, metrics in result.best_checkpoints:
            assert in_files[checkpoint.path]["version"] == metrics["version"]
        assert {p.name for p in Path(result.checkpoint.path).iterdir()} == {
            "rank0",
            "rank1",
            "version",
        }


def test_distributed_clones_load_the_scored_weights_on_all_ranks_in_their_own_workers(tmp_path):
    # Both run at once. Where trials have to take turns, PBT always chooses a clone before an older
    # trial at the same iteration, so with such noise it can overwrite the same one forever.
    versions = Versions(noise=5.0)
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"train_loop_config": {"lr": tune.uniform(0.0, 1.0)}},
        quantile_fraction=0.5,
    )
    results = fit(
        trainer(tmp_path, length=500, sleep_s=0.05, named=True),
        tmp_path,
        param_space={"train_loop_config": {"lr": tune.uniform(0, 1)}},
        tune_config=by_accuracy(pbt, 2),
        stop=AfterExploits(8, 4),
        callbacks=[versions],
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=3, checkpoint_score_attribute="accuracy"
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            evaluators=1,
            when="decisions",
            on_pending="wait",
            ray_remote_kwargs={"num_cpus": 0.5},
        ),
    )
    assert not results.errors
    assert versions.exact_clones(results) >= 4
    # A clone repeats iterations, and so the names of their checkpoints.
    for checkpoint, metrics in (pair for result in results for pair in result.best_checkpoints):
        assert Path(checkpoint.path).name.startswith(f"epoch-{metrics['version'] % 1000}-")
        assert version_at(checkpoint.path) == metrics["version"]
    first, second = [{*result.metrics_dataframe["worker_pid"]} for result in results]
    assert len(first) == len(second) == 1 and first != second, "they kept their workers"


def test_reused_worker_group_computes_the_same_numbers_as_a_new_one(tmp_path):
    def draws(config):
        """Leave behind whatever a loop can; the numbers are still the same."""
        import os

        import torch

        before = {
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()),
            "mark": os.environ.get("MARK", ""),
            "checkpoint": train.get_checkpoint() is not None,
        }
        torch.set_num_threads(3)
        torch.set_default_dtype(torch.float64)
        os.environ["MARK"] = "left behind"
        for step in range(2):
            numbers = {"draw": torch.rand(1).item(), "folder": os.getcwd(), **before}
            with tempfile.TemporaryDirectory() as directory:
                saved = train.Checkpoint.from_directory(directory) if step == 0 else None
                train.report({**numbers, "worker_pid": os.getpid()}, checkpoint=saved)

    results = fit(
        TorchTrainer(draws, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=1, reuse_actors=True),
        validation_config=None,
    )
    first, second = [result.metrics_dataframe for result in results]
    assert (first["worker_pid"] == second["worker_pid"]).all(), (
        "the second has taken over the workers"
    )
    same = ["draw", "threads", "dtype", "checkpoint"]
    assert first[same].equals(second[same])
    assert second["mark"].isna().all() or (second["mark"] == "").all()
    assert first["folder"][0] != second["folder"][0]


def test_worker_group_restarts_from_its_last_checkpoint_after_a_worker_dies(tmp_path):
    """The trainer restarts workers without Tune's knowledge: the iterations continue.

    The second trial takes over workers that have used up the first one's failures.
    """
    results = fit(
        trainer(
            tmp_path,
            length=4,
            kill_at=3,
            run_config=train.RunConfig(failure_config=train.FailureConfig(max_failures=1)),
        ),
        tmp_path,
        tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=1, reuse_actors=True),
    )
    assert not results.errors
    for result in results:
        table = result.metrics_dataframe
        assert table["training_iteration"].tolist() == [1, 2, 3, 4]
        assert (table["version"] % 1000).tolist() == [1, 2, 3, 4]
    requested = [event["iteration"] for event in events(results, "checkpoint_saved")]
    assert requested == [1, 2, 3, 4] * 2, "nothing is validated twice"


class Slow(tune.Callback):
    """Decides about the first report long after both ranks made the second, and notes when."""

    def __init__(self, ran):
        self.ran = ran

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] == 1:
            while len(self.ran.read_text().splitlines()) < 4:
                time.sleep(0.05)
            time.sleep(1)
            self.decided_at = time.time()


def test_workers_train_at_most_one_report_ahead_of_tune(tmp_path):
    slow = Slow(tmp_path / "ran")
    source = trainer(tmp_path, length=6)
    results = fit(source, tmp_path, callbacks=[slow], validation_config=None)
    reported = results[0].metrics_dataframe["at"]
    assert (reported < slow.decided_at).sum() == 2


def test_distributed_trials_that_hold_all_cpus_make_room_for_validations(tmp_path):
    """Their idle workers would keep the resources that validations wait for."""
    results = fit(
        trainer(tmp_path, length=2, cpus=3),
        tmp_path,
        tune_config=tune.TuneConfig(num_samples=1),
        validation_config=tunekit.ValidationConfig(fn=validate, on_pending="wait"),
    )
    assert not results.errors
    assert results[0].metrics["tunekit/validated_at"] == 2
    assert results[0].metrics_dataframe["accuracy"].notna().all()


def test_paused_loop_that_ignores_its_checkpoint_raises_not_resumed_error(tmp_path):
    def forgetful(config):
        for step in range(1, 4):
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "version").write_text(str(step))
                checkpoint = train.Checkpoint.from_directory(directory)
                train.report({"step": step}, checkpoint=checkpoint)

    results = fit(
        TorchTrainer(forgetful, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        max_failures=-1,
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            on_pending="wait",
            ray_remote_kwargs={"num_cpus": 6},  # all that there are: the trial pauses for it
        ),
    )
    [error] = results.errors
    assert isinstance(error.cause, tunekit.errors.NotResumedError)
    assert "ray.train.get_checkpoint()" in str(error)
    [report] = events(results, "reported")
    assert (report["report"]["training_iteration"], report["report"]["step"]) == (1, 1)


class KillsTrial(tune.Callback):
    """Kills the process of each trial at an iteration, the first time."""

    def __init__(self, iteration):
        self.iteration, self.killed = iteration, set()

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] == self.iteration and trial.trial_id not in self.killed:
            self.killed.add(trial.trial_id)
            os.kill(result["pid"], signal.SIGKILL)


def dies_once(checkpoint, *, marks):
    """Kills its own process for the third checkpoint, the first time."""
    with checkpoint.as_directory() as directory:
        mark = Path(marks, f"validated-{version_at(directory)}")
    if version_at(checkpoint.path) % 1000 == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return validate(checkpoint)


def test_killed_worker_trial_and_validation_change_no_score_of_the_sweep(tmp_path):
    results = fit(
        trainer(tmp_path, length=12, sleep_s=0.1, kill_at=2, named=True),
        tmp_path,
        max_failures=2,
        callbacks=[KillsTrial(11)],
        # "epoch-9" sorts after the newest checkpoint, from which the trial continues.
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=1, checkpoint_score_attribute="accuracy", checkpoint_score_order="min"
        ),
        validation_config=tunekit.ValidationConfig(
            fn=dies_once,
            task_config=train.ValidationTaskConfig(fn_kwargs={"marks": str(tmp_path)}),
            ray_remote_kwargs={"num_cpus": 0.5},
        ),
    )
    assert not results.errors
    table = results[0].metrics_dataframe
    assert table["training_iteration"].tolist() == list(range(1, 13))
    assert (table["version"] % 1000).tolist() == list(range(1, 13))
    assert table["accuracy"].tolist() == [score_of(v, 5.0) for v in table["version"]]
    # What the killed trial had saved and Tune had not taken yet is trained, and scored, again.
    ended = [event["id"] for event in events(results, "validation_ended")]
    assert len(ended) == len(set(ended))
    assert len({id_.rsplit(":", 1)[0] for id_ in ended}) == 12
    assert len(ended) <= 14


def test_interrupted_distributed_sweep_restores_from_the_workers_checkpoints(tmp_path):
    source = trainer(tmp_path, length=8, sleep_s=0.1)
    hold = tunekit.ValidationConfig(
        fn=validate, on_pending="wait", ray_remote_kwargs={"num_cpus": 0.5}
    )
    ctrl_c = real_sweeps.After(4, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    interrupted = fit(source, tmp_path, callbacks=[ctrl_c], validation_config=hold)
    assert interrupted[0].metrics["training_iteration"] < 8
    restored = tunekit.Tuner.restore(str(tmp_path / "sweep"), source)
    results = restored.fit()
    assert not results.errors
    table = results[0].metrics_dataframe
    assert table["training_iteration"].tolist() == list(range(1, 9))
    assert (table["version"] % 1000).tolist() == list(range(1, 9))
    assert table["accuracy"].tolist() == [score_of(v, 5.0) for v in table["version"]]
    # Those of the former run are not run again, and workers hold as before.
    ran = Path(tmp_path, "ran").read_text().split("\n")[:-1]
    assert len(ran) <= 2 * 9


def test_error_in_a_training_loop_becomes_the_error_of_its_trial(tmp_path):
    missing = tmp_path / "missing"
    results = fit(trainer(missing, length=6), tmp_path)
    assert str(missing) in str(results.errors[0])


def test_trainers_own_validation_config_validates_the_reports_that_request_it(tmp_path):
    def asks(config):
        for step in range(1, 5):
            directory = tempfile.mkdtemp()
            Path(directory, "version").write_text(str(step))
            train.report(
                {"step": step},
                checkpoint=train.Checkpoint.from_directory(directory),
                validation=step % 2 == 0,
                checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
                delete_local_checkpoint_after_upload=True,
            )

    results = fit(
        TorchTrainer(
            asks,
            scaling_config=train.ScalingConfig(num_workers=1),
            validation_config=train.ValidationConfig(fn=validate),
        ),
        tmp_path,
        validation_config=None,
    )
    [result] = results
    assert result.metrics_dataframe["accuracy"].notna().tolist() == [False, True, False, True]


def test_trial_begins_at_the_checkpoint_given_as_resume_from_checkpoint(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    for name in ("version", "rank0", "rank1"):
        (first / name).write_text("5003")
    results = fit(
        trainer(tmp_path, length=6),
        tmp_path,
        param_space={"resume_from_checkpoint": tune.Checkpoint.from_directory(first)},
    )
    [result] = results
    assert result.metrics_dataframe["version"].tolist() == [5004, 5005, 5006]


def test_trainer_factory_gives_each_trial_its_own_trainer(tmp_path):
    results = fit(
        tunekit.distributed.TrainerFactory(
            lambda config: trainer(tmp_path, length=config["length"], workers=config["workers"])
        ),
        tmp_path,
        param_space={"length": 3, "workers": tune.grid_search([1, 2])},
    )
    assert not results.errors
    assert [len(list(Path(r.checkpoint.path).glob("rank*"))) for r in results] == [1, 2]


# Data, and other trainers ------------------------------------------------------------------------


@pytest.mark.at_night
def test_datasets_are_sharded_though_trials_could_take_all_cpus(tmp_path):
    def loop(config):
        shard = train.get_dataset_shard("train")
        for epoch in range(2):
            rows = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=8))
            train.report({"rows": rows, "epoch": epoch})

    from ray import data

    results = real_sweeps.fit(
        TorchTrainer(
            loop,
            scaling_config=train.ScalingConfig(num_workers=2),
            datasets={"train": data.range(64)},
        ),
        tmp_path,
        tune_config=tune.TuneConfig(num_samples=3),
    )
    assert not results.errors
    assert [r.metrics_dataframe["rows"].tolist() for r in results] == [[32, 32]] * 3


@pytest.mark.at_night
def test_xgboost_trainer_checkpoints_are_validated_at_each_round(tmp_path):
    pytest.importorskip("xgboost")
    from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

    def loop(config):
        import xgboost

        rank = train.get_context().get_world_rank()
        x = np.random.default_rng(rank).normal(size=(64, 3))
        rows = xgboost.DMatrix(x, x[:, 0] > 0)
        xgboost.train(
            {"objective": "binary:logistic", "eta": config["eta"], "nthread": 1},
            rows,
            num_boost_round=4,
            evals=[(rows, "train")],
            callbacks=[RayTrainReportCallback(metrics={"loss": "train-logloss"}, frequency=1)],
            verbose_eval=False,
        )

    def validate(checkpoint):
        model = RayTrainReportCallback.get_model(checkpoint)
        return {"trees": len(model.get_dump())}

    results = real_sweeps.fit(
        XGBoostTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2)),
        tmp_path,
        param_space={"train_loop_config": {"eta": tune.grid_search([0.1, 0.5])}},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        validation_config=tunekit.ValidationConfig(fn=validate),
    )
    assert not results.errors
    for result in results:
        assert result.metrics_dataframe["trees"].tolist()[:4] == [1, 2, 3, 4]
