"""How ``Tuner`` interprets its arguments; nothing here starts Ray."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path
from typing import Any

import pandas
import pytest
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.logger import CSVLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.search.optuna import OptunaSearch
from ray.tune.tune import _Config

import tunekit
from tunekit._ray import cluster
from tunekit._ray.distributed_trials import trainer_of
from tunekit._ray.tuner import settings_of
from tunekit.driver import resources
from tunekit.driver.resources import leave_room_for_data, share_cluster
from tunekit.errors import ConfigError
from tunekit.policies import CheckpointPolicy, FunctionCheckpoints
from tunekit.validating.ray_executor import executor_of

VALIDATION = tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5})


def trainable(config):
    tune.report({"loss": 1.0})


def make(folder, **settings):
    run_config = settings.pop("run_config", None) or tune.RunConfig()
    run_config.storage_path, run_config.name = str(folder), "sweep"
    return settings_of(tunekit.Tuner(trainable, run_config=run_config, **settings))


def validation_of(settings):
    return next(c for c in settings.callbacks if isinstance(c, tunekit.ValidationCallback))


def kinds(callbacks) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    def init(*args, **kwargs):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", init)


class AlgorithmConfig(_Config):
    """A configuration of RLlib's, as far as Tune knows it."""

    def to_dict(self):
        return {"env": "CartPole-v1", "lr": tune.loguniform(1e-4, 0.1)}


def test_a_configuration_of_rllib_is_a_search_space(tmp_path):
    settings = make(tmp_path, param_space=AlgorithmConfig(), validation_config=VALIDATION)
    assert settings.param_space["env"] == "CartPole-v1"
    assert validation_of(settings).program.space["lr"]["kind"] == "float"


def test_all_mistakes_of_a_call_are_in_one_message(tmp_path):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.Tuner(
            3,
            tune_config=tune.TuneConfig(mode="best", scheduler="asha", search_alg=7),
            run_config=tune.RunConfig(
                storage_path=str(tmp_path),
                callbacks=[tunekit.ValidationCallback(VALIDATION), 5],
            ),
            validation_config={"fn": 1},
            checkpoint_policy=10,
        )
    text = str(caught.value)
    tune_config = ("mode='best'", "scheduler='asha'", "search_alg=7")
    assert all(f"tune_config.{named}" in text for named in tune_config)
    assert "run_config.callbacks[0]" in text and "run_config.callbacks[1]=5" in text
    for named in ("trainable=3", "validation_config={'fn': 1}", "checkpoint_policy=10"):
        assert named in text
    assert len(caught.value.problems) == 8


def with_run(config):
    return {"trainable": trainable, "run_config": config}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "trainable is missing"),
        ({"trainable": "never registered"}, "'never registered' cannot be tuned"),
        ({"trainable": dict}, "cannot be tuned"),
        ({"trainable": lambda a, b: 0}, "cannot be tuned"),
        ({"trainable": trainable, "tune_config": {}}, "Pass ray.tune.TuneConfig(...)"),
        ({"trainable": trainable, "run_config": 3}, "Pass ray.tune.RunConfig(...)"),
        (with_run(train.RunConfig(name="x")), "Pass run_config=ray.tune.RunConfig(...)"),
        (
            with_run(tune.RunConfig(checkpoint_config=train.CheckpointConfig(num_to_keep=2))),
            "Pass RunConfig(checkpoint_config=ray.tune.CheckpointConfig(...))",
        ),
        (
            with_run(tune.RunConfig(failure_config=train.FailureConfig(max_failures=2))),
            "Pass RunConfig(failure_config=ray.tune.FailureConfig(...))",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.Tuner(**arguments)
    [problem] = caught.value.problems
    assert message in problem and "DEPRECATED" not in problem


@pytest.mark.parametrize("there", [True, False])
def test_where_no_experiment_is_restoring_raises_what_ray_does(tmp_path, there):
    path = str(tmp_path if there else tmp_path / "none")
    for tuner in (tune.Tuner, tunekit.Tuner):
        with pytest.raises(FileNotFoundError, match=r"tuner\.pkl") as caught:
            tuner.restore(path, lambda config: None)
    assert isinstance(caught.value, tunekit.errors.ConfigError)
    assert path in str(pickle.loads(pickle.dumps(caught.value)))


def test_a_scheduler_is_wrapped_once(tmp_path):
    def used(scheduler):
        config = tune.TuneConfig(scheduler=scheduler)
        return make(tmp_path, tune_config=config, validation_config=VALIDATION).tune_config

    ready = tunekit.ValidatedScheduler(FIFOScheduler())
    assert used(ready).scheduler is ready
    assert isinstance(used("async_hyperband").scheduler.scheduler, ASHAScheduler)
    assert isinstance(used(None).scheduler.scheduler, FIFOScheduler)


def test_a_users_limit_is_limit_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    elsewhere = tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5}, evaluators=1)
    for own, limit in ((None, 3), (2, None)):
        config = tune.TuneConfig(search_alg=OptunaSearch(), max_concurrent_trials=own)
        settings = make(tmp_path, tune_config=config, validation_config=elsewhere)
        validation = validation_of(settings)
        share_cluster(settings, validation)
        assert validation.shares.alongside == limit
        assert settings.tune_config.max_concurrent_trials == own


def test_without_validation_fit_is_tunes(tmp_path, monkeypatch):
    def of_tune(tuner):
        return signal.getsignal(signal.SIGTERM), settings_of(tuner).tune_config

    for name in ("init", "is_initialized", "cluster_resources"):
        monkeypatch.setattr(ray, name, lambda *given, **named: pytest.fail("Tune starts Ray"))
    monkeypatch.setattr(tune.Tuner, "fit", of_tune)
    tuner = tunekit.Tuner(
        tune.with_resources(trainable, {"cpu": 10**6}),  # Tune says what it waits for
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=tune.RunConfig(name="sweep", storage_path=str(tmp_path)),
    )
    handler, config = tuner.fit()
    assert handler == signal.getsignal(signal.SIGTERM)
    assert config.max_concurrent_trials is None


def test_wrapping_twice_is_refused():
    with pytest.raises(tunekit.errors.ConfigError, match="already"):
        tunekit.ValidatedScheduler(tunekit.ValidatedScheduler(FIFOScheduler()))
    with pytest.raises(tunekit.errors.ConfigError, match="scheduler=3"):
        tunekit.ValidatedScheduler(3)
    with pytest.raises(tunekit.errors.ConfigError, match="config=3"):
        tunekit.ValidationCallback(3)


def pbt(**settings):
    return PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]}, **settings)


def test_trials_share_processes_only_if_that_is_asked_for_and_possible(tmp_path):
    asked = tune.TuneConfig(reuse_actors=True)
    for validation_config in (None, VALIDATION):
        own = make(tmp_path, validation_config=validation_config)
        shared = make(tmp_path, validation_config=validation_config, tune_config=asked)
        assert (own.tune_config.reuse_actors, shared.tune_config.reuse_actors) == (False, True)
        for cannot in (tune.Trainable, tune.with_resources(tune.Trainable, {"CPU": 2})):
            with pytest.raises(tunekit.errors.ConfigError, match="Define reset_config"):
                tunekit.Tuner(cannot, tune_config=asked, validation_config=validation_config)


@pytest.mark.parametrize(
    ("settings", "on_pending", "fix"),
    [
        ({"scheduler": pbt(synch=True)}, "continue", "on_pending='wait', or"),
        ({"scheduler": ResourceChangingScheduler(pbt(synch=True))}, "continue", "synch=False"),
        ({"scheduler": pbt(), "search_alg": OptunaSearch()}, "wait", "Leave search_alg out"),
        ({"scheduler": HyperBandForBOHB()}, "wait", "TuneBOHB"),
        ({"scheduler": HyperBandForBOHB(), "search_alg": OptunaSearch()}, "wait", "TuneBOHB"),
        (
            {"scheduler": ResourceChangingScheduler(), "reuse_actors": True},
            "wait",
            "reuse_actors=False",
        ),
    ],
)
def test_what_cannot_be_right_together_is_refused(settings, on_pending, fix):
    with pytest.raises(tunekit.errors.ConfigError, match=fix):
        tunekit.Tuner(
            trainable,
            tune_config=tune.TuneConfig(**settings),
            validation_config=tunekit.ValidationConfig(fn=validate, on_pending=on_pending),
        )


def test_policies_get_reports_and_all_other_callbacks_validated_results(tmp_path):
    given = [CSVLoggerCallback(), tunekit.EveryIterations(3), TBXLoggerCallback()]
    run_config = tune.RunConfig(callbacks=list(given))
    settings = make(
        tmp_path,
        run_config=run_config,
        validation_config=VALIDATION,
        checkpoint_policy=tunekit.EveryIterations(2),
    )
    assert kinds(settings.callbacks) == [
        "EveryIterations",
        "EveryIterations",
        "FunctionCheckpoints",
        "ValidationCallback",
        "CSVLoggerCallback",
        "TBXLoggerCallback",
    ]
    assert run_config.callbacks == given


def test_without_a_validation_config_it_is_a_tuner_with_policies(tmp_path):
    kept = tune.CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=True)
    run_config, policy = tune.RunConfig(checkpoint_config=kept), tunekit.EveryIterations(1)
    settings = make(tmp_path, run_config=run_config, checkpoint_policy=policy)
    assert settings.tune_config.scheduler is None
    assert kinds(settings.callbacks) == ["EveryIterations", "FunctionCheckpoints"]
    assert (settings.callbacks[1].frequency, settings.callbacks[1].at_end) == (3, True)


def test_a_plain_validation_config_is_refused_with_what_to_write(tmp_path):
    plain = train.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5})
    for call in (
        lambda: make(tmp_path, validation_config=plain),
        lambda: tunekit.Tuner.restore(str(tmp_path), trainable, validation_config=plain),
        lambda: tunekit.ValidationCallback(plain),
    ):
        with pytest.raises(tunekit.errors.ConfigError, match="when='requested'"):
            call()


def validate(checkpoint):
    return {"accuracy": 0.5}


def saves(config):
    tunekit.checkpoint_with(lambda directory: None)
    tune.report({"loss": 1.0})


class Asks(tune.Callback):
    """Sets should_checkpoint, perhaps."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        pass


@pytest.mark.parametrize(
    ("settings", "policies"),
    [
        ({}, ["EveryIterations(1)"]),
        ({"when": 2}, ["EveryIterations(2)"]),
        ({"when": "auto"}, ["AtDecisions()"]),
        ({"when": "decisions"}, ["AtDecisions()"]),
        ({"scheduler": HyperBandScheduler()}, ["EveryIterations(1)"]),
        ({"when": "requested"}, []),
        ({"checkpoint_policy": tunekit.EveryIterations(3)}, ["EveryIterations(3)"]),
        ({"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=2)}, []),
        ({"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=True)}, []),
        ({"checkpoint_policy": Asks()}, []),
        ({"callbacks": [tunekit.EveryIterations(4)]}, ["EveryIterations(4)"]),
        ({"callbacks": [Asks()]}, ["EveryIterations(1)"]),
    ],
)
def test_by_default_checkpoints_are_saved_where_nothing_else_requests_them(
    tmp_path, settings, policies
):
    settings = dict(settings)
    known = {k: settings.pop(k) for k in ("checkpoint_config", "callbacks") if k in settings}
    scheduler, when = settings.pop("scheduler", None), settings.pop("when", 1)
    tuner = tunekit.Tuner(
        saves,
        validation_config=tunekit.ValidationConfig(validate, when=when),
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="sweep", **known),
        **settings,
    )
    found = [one for one in settings_of(tuner).callbacks if isinstance(one, CheckpointPolicy)]
    assert [repr(getattr(one, "policy", one)) for one in found] == policies


# Trainers ---------------------------------------------------------------------------------------


def loop(config): ...


def trainer(**options):
    options.setdefault("scaling_config", train.ScalingConfig(num_workers=2))
    return TorchTrainer(loop, train_loop_config={"lr": 0.1, "width": 8}, **options)


def of_trainer(source, folder, **options):
    options.setdefault("run_config", tune.RunConfig(name="sweep", storage_path=str(folder)))
    return settings_of(tunekit.Tuner(source, **options))


def test_all_mistakes_about_a_trainer_are_in_one_message(tmp_path):
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        tunekit.Tuner(
            trainer(scaling_config=train.ScalingConfig(num_workers=0)),
            param_space={"lr": tune.uniform(0, 1), "scaling_config": {"num_workers": (1, 4)}},
            tune_config=tune.TuneConfig(scheduler=ResourceChangingScheduler()),
            run_config=tune.RunConfig(
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2)
            ),
            checkpoint_policy=tunekit.EveryIterations(2),
        )
    text = str(caught.value)
    assert len(caught.value.problems) == 6
    for part in (
        "num_workers=0, which trains in the driver",
        "param_space has 'lr'",
        "num_workers=(1, 4)",
        "ResourceChangingScheduler changes the resources",
        "checkpoint_policy=EveryIterations(2) cannot make",
        "CheckpointConfig(checkpoint_frequency=2) cannot make",
    ):
        assert part in text


def test_mistakes_about_workers():
    with pytest.raises(tunekit.errors.ConfigError, match="make=3"):
        tunekit.distributed.TrainerFactory(3)


def test_the_search_space_is_laid_over_the_trainer_s_settings():
    source = trainer()
    made = trainer_of(
        source,
        {
            "train_loop_config": {"lr": 0.5},
            "scaling_config": {"num_workers": 4},
            "datasets": {"train": "data"},
        },
    )
    assert made.train_loop_config == {"lr": 0.5, "width": 8}
    assert made.scaling_config.num_workers == 4
    assert made.datasets == {"train": "data"}
    assert source.train_loop_config == {"lr": 0.1, "width": 8}, "the user's own is not changed"
    assert source.scaling_config.num_workers == 2 and source.datasets == {}
    whole = train.ScalingConfig(num_workers=3)
    assert trainer_of(source, {"scaling_config": whole}).scaling_config is whole


def test_a_trial_takes_what_its_workers_do(tmp_path):
    settings = of_trainer(trainer(), tmp_path)
    request = settings.trainable.default_resource_request({})
    assert request.required_resources == {"CPU": 2.0}
    assert request.head_bundle_is_empty
    request = settings.trainable.default_resource_request({"scaling_config": {"num_workers": 3}})
    assert request.required_resources == {"CPU": 3.0}


def test_a_factory_says_what_each_trial_takes(tmp_path):
    factory = tunekit.distributed.TrainerFactory(
        lambda config: trainer(scaling_config=train.ScalingConfig(num_workers=config["workers"]))
    )
    settings = of_trainer(factory, tmp_path)
    request = settings.trainable.default_resource_request({"workers": 5})
    assert request.required_resources == {"CPU": 5.0}
    bad = of_trainer(tunekit.distributed.TrainerFactory(lambda config: "no trainer"), tmp_path)
    with pytest.raises(tunekit.errors.DistributedTrialError, match="returned 'no trainer'"):
        bad.trainable.default_resource_request({})


@pytest.mark.parametrize(("on_pending", "ahead"), [("auto", 1), ("continue", 1), ("wait", 0)])
def test_workers_wait_as_the_sweep_does(tmp_path, on_pending, ahead):
    config = tunekit.ValidationConfig(fn=validate, on_pending=on_pending)
    settings = of_trainer(trainer(), tmp_path, validation_config=config)
    assert settings.trainable.ahead == ahead
    assert not settings.tune_config.reuse_actors
    assert settings.trainable.validates
    assert not of_trainer(trainer(), tmp_path).trainable.validates, "without validation"


def test_a_trainer_s_own_settings_are_the_sweep_s(tmp_path):
    own = trainer(
        validation_config=train.ValidationConfig(fn=validate),
        run_config=train.RunConfig(
            name="mine",
            storage_path=str(tmp_path),
            checkpoint_config=train.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="accuracy"
            ),
        ),
    )
    tuner = tunekit.Tuner(own)
    assert tuner.validation.config.when == "requested"
    internal = tuner._local_tuner
    assert internal._run_config.name == "mine"
    assert internal._run_config.checkpoint_config.num_to_keep == 2
    given = tunekit.ValidationConfig(fn=validate, when=3)
    assert tunekit.Tuner(own, validation_config=given).validation.config.when == 3
    own.validation_config = given
    assert tunekit.Tuner(own).validation.config is given


def test_policies_for_functions_are_not_added(tmp_path):
    settings = of_trainer(trainer(), tmp_path)
    assert not any(isinstance(c, FunctionCheckpoints) for c in settings.callbacks)


def test_an_actor_deletes_what_it_has_uploaded_itself_and_no_more(tmp_path):
    import pyarrow.fs

    from tunekit._ray.distributed_trials import _Uploads
    from tunekit.core.retention import unique_name

    former, present = (_Uploads(pyarrow.fs.LocalFileSystem(), str(tmp_path)) for _ in range(2))
    for uploads in (former, present):
        for name in ("taken", "not", "deep"):
            (tmp_path / unique_name(name, uploads.run, 1) / "model").mkdir(parents=True)
        uploads.keep(str(tmp_path / unique_name("taken", uploads.run, 1)))
        uploads.keep(str(tmp_path / unique_name("deep", uploads.run, 1) / "model"))
    (tmp_path / "result.json").touch()
    former.delete_rest()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        "result.json",
        *(unique_name(name, former.run, 1) for name in ("taken", "deep")),
        *(unique_name(name, present.run, 1) for name in ("taken", "not", "deep")),
    }


def test_labels_go_with_the_bundles():
    labels = {"ray.io/accelerator-type": "H100"}
    source = trainer(scaling_config=train.ScalingConfig(num_workers=2, label_selector=labels))
    trainable = settings_of(tunekit.Tuner(source)).trainable
    request = trainable.default_resource_request({})
    assert request._kwargs["bundle_label_selector"] == [labels, labels]


# What fits on the cluster -----------------------------------------------------------------------


BY_WORKERS = tunekit.distributed.TrainerValidation(
    lambda config: {}, train.ScalingConfig(num_workers=3)
)


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Return what a sweep does on a cluster with these resources."""

    def look(cluster, trainable, scheduler=None, space=None, limit=None, **options):
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "cluster_resources", lambda: cluster)
        tuner = tunekit.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="accuracy", mode="max", scheduler=scheduler, max_concurrent_trials=limit
            ),
            run_config=tune.RunConfig(name="sweep", storage_path=str(tmp_path)),
            validation_config=tunekit.ValidationConfig(**{"fn": validate, **options}),
        )
        share_cluster(settings_of(tuner), tuner.validation)
        return tuner.validation.shares

    return look


@pytest.fixture
def on_cluster(look):
    """Return what a sweep of trainers does on a cluster of so many CPUs."""

    def on_cluster(cpus, scheduler=None, workers=2, **options):
        scaling = train.ScalingConfig(num_workers=workers)
        trainer = TorchTrainer(lambda config: None, scaling_config=scaling)
        return look({"CPU": float(cpus)}, trainer, scheduler, **options)

    return on_cluster


@pytest.mark.parametrize(
    ("cpus", "options", "limit"),
    [
        (8, {}, 3),  # 3 trials of 2 workers, and 1 for validation
        (8, {"max_in_flight": 3}, 2),
        (8, {"evaluators": 4}, 2),
        (8, {"fn": BY_WORKERS}, 2),  # 1 for the validation itself, and 3 for its workers
    ],
)
def test_trials_workers_and_validations_fit_together(on_cluster, cpus, options, limit):
    assert on_cluster(cpus, ASHAScheduler(), **options).alongside == limit


def test_a_validation_that_must_run_in_a_trial_has_to_fit_there(on_cluster):
    on_cluster(12, ASHAScheduler(), workers=3, where="trial")
    with pytest.raises(ConfigError, match="a trial has 2 CPU and a validation takes 2 CPU"):
        on_cluster(12, ASHAScheduler(), where="trial", ray_remote_kwargs={"num_cpus": 2})


DATA: Any = {"train": object()}


@pytest.mark.parametrize(
    ("cpus", "options", "at_once"),
    [
        (8, {}, 2),
        (4, {}, 1),
        (9, {"limit": 4}, 3),
        (12, {"limit": 2}, 2),
        # Validations that need no CPU do not limit trials otherwise.
        (8, {"ray_remote_kwargs": {"num_cpus": 0, "resources": {"v": 1}}}, 2),
    ],
)
@pytest.mark.parametrize("where", ["trainer", "space", "factory"])
def test_trials_leave_a_cpu_each_to_ray_data(look, cpus, options, at_once, where):
    own = DATA if where != "space" else None
    scaling = train.ScalingConfig(num_workers=2)
    source = TorchTrainer(lambda config: None, scaling_config=scaling, datasets=own)
    if where == "factory":
        source = tunekit.distributed.TrainerFactory(lambda config, made=source: made)
    space = {"datasets": DATA} if where == "space" else {}
    shares = look({"CPU": float(cpus), "v": 1.0}, source, space=space, **options)
    in_trials = "ray_remote_kwargs" not in options
    assert (shares.at_once if in_trials else shares.alongside) == at_once
    config = tune.TuneConfig(max_concurrent_trials=options.get("limit"))
    settings = settings_of(tunekit.Tuner(source, param_space=space, tune_config=config))
    leave_room_for_data(settings)
    assert settings.tune_config.max_concurrent_trials == at_once, "also without validation"


def test_trial_that_leaves_no_cpu_to_ray_data_is_refused(look, monkeypatch):
    monkeypatch.setattr(cluster, "cannot_grow", lambda: True)
    scaling = train.ScalingConfig(num_workers=2)
    source = TorchTrainer(lambda config: None, scaling_config=scaling, datasets=DATA)
    with pytest.raises(ConfigError) as caught:
        look({"CPU": 2.0}, source)
    assert "3 CPU" in str(caught.value) and "2 CPU" in str(caught.value)
    with pytest.raises(ConfigError):
        leave_room_for_data(settings_of(tunekit.Tuner(source)))


def test_validation_by_a_trainer_with_datasets_leaves_a_cpu_to_ray_data():
    loads = tunekit.distributed.TrainerValidation(
        lambda config: {}, train.ScalingConfig(num_workers=3), datasets=DATA
    )
    config = tunekit.ValidationConfig(fn=loads)
    assert executor_of(config).need == {"CPU": 1 + 3 + 1}


@pytest.mark.parametrize("grows", [True, False])
def test_a_limit_is_logged_and_that_it_does_not_grow_with_the_cluster(
    on_cluster, monkeypatch, caplog, grows
):
    monkeypatch.setattr(resources, "cannot_grow", lambda: not grows)
    caplog.set_level("INFO")
    on_cluster(8, ASHAScheduler(), evaluators=1)
    assert "At most 3 trials train (2 CPU each) at once, to leave room" in caplog.text
    assert ("if the cluster will grow" in caplog.text) is grows


def test_what_cannot_fit_at_all_is_said(on_cluster, caplog):
    on_cluster(3, workers=4)
    assert "Each trial needs 4 CPU but the cluster has 3 CPU" in caplog.text
    assert "fewer workers" in caplog.text
    on_cluster(3, ray_remote_kwargs={"num_cpus": 1, "resources": {"validation": 1}})
    assert (
        "Each validation needs 1 CPU, 1 validation but the cluster has 0 validation" in caplog.text
    )


def test_what_a_machine_of_its_own_lacks_is_an_error_rather_than_an_endless_wait(
    on_cluster, monkeypatch
):
    monkeypatch.setattr(cluster, "cannot_grow", lambda: True)
    with pytest.raises(tunekit.errors.ConfigError, match="no validation can start") as caught:
        on_cluster(4, ray_remote_kwargs={"num_cpus": 1, "num_gpus": 1})
    assert "needs 1 CPU, 1 GPU but this machine has 0 GPU" in str(caught.value)
    with pytest.raises(tunekit.errors.ConfigError) as caught:
        on_cluster(3, workers=4, ray_remote_kwargs={"resources": {"validator": 1}})
    assert len(caught.value.problems) == 2, "both at once"
    assert on_cluster(8, ASHAScheduler(), evaluators=1).alongside == 3


@pytest.mark.parametrize("several", [tune.choice([1, 3]), tune.grid_search([3, 2])])
def test_the_largest_number_of_workers_counts(on_cluster, several):
    space = {"scaling_config": {"num_workers": several}}
    assert on_cluster(8, ASHAScheduler(), space=space).alongside == 2


@pytest.mark.parametrize("evaluators", [1, None])
def test_on_one_gpu_validations_get_it_from_trials_that_wait(look, caplog, evaluators):
    cluster, trainable = {"CPU": 4.0, "GPU": 1.0}, tune.with_resources(lambda config: 0, {"gpu": 1})
    needs = {"evaluators": evaluators, "ray_remote_kwargs": {"num_gpus": 1}}
    shares = look(cluster, trainable, **needs)
    assert shares.exclusive and shares.alongside is None
    # A function runs in a trial that waits.
    assert ("a trial that waits for a score pauses" in caplog.text) is (evaluators is not None)


@pytest.mark.parametrize(
    ("cluster", "validation", "beside"),
    [
        ({"CPU": 3.0, "train": 2.0}, {"num_cpus": 1}, True),
        ({"CPU": 2.0, "train": 2.0}, {"num_cpus": 1}, False),
        ({"CPU": 2.0, "train": 2.0, "validate": 1.0}, {"resources": {"validate": 1}}, False),
        (
            {"CPU": 2.0, "train": 2.0, "validate": 1.0},
            {"num_cpus": 0, "resources": {"validate": 1}},
            True,
        ),
    ],
)
def test_what_trials_cannot_use_is_apart(look, cluster, validation, beside):
    place = tune.PlacementGroupFactory([{"CPU": 1, "train": 1}])
    trainable = tune.with_resources(lambda config: None, place)
    assert look(cluster, trainable, ASHAScheduler(), ray_remote_kwargs=validation).apart is beside


# What is no argument at all -----------------------------------------------------------------------

FRAME = pandas.DataFrame({"a": [1]})
LOOP = TorchTrainer(lambda config: None, scaling_config=train.ScalingConfig(num_workers=1))


def changed(kind: Any, **given: Any) -> Any:
    """Settings of Ray's, which checks few of them."""
    made = kind()
    vars(made).update(given)
    return made


@pytest.mark.parametrize("given", ["out", "./out", Path("out"), "~/out", "file://HOME/out"])
def test_results_are_where_the_storage_path_says_in_any_notation(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    given = given.replace("HOME", str(tmp_path)) if isinstance(given, str) else given
    made = tune.RunConfig(name="sweep", storage_path=given)
    tunekit.Tuner(trainable, run_config=made)
    assert (tmp_path / "out/sweep/tuner.pkl").exists()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: tunekit.ValidationCallback(None), "config is None"),
        (lambda: tunekit.ValidationCallback(FRAME), "config="),
        (lambda: tunekit.ValidationConfig(len, ray_remote_kwargs=FRAME, where="trial"), "kwargs="),
        (lambda: tunekit.ValidationConfig(len, where=FRAME, when={}), "where="),
        (lambda: tunekit.checkpointable(LOOP), "is a trainer"),
        (lambda: tunekit.schedulers.MOASHA({}, grace_period=10**400), "grace_period="),
        (lambda: tunekit.Tuner(LOOP, param_space="lr"), "param_space='lr'"),
        (lambda: tunekit.Tuner(LOOP, validation_config=FRAME, run_config=FRAME), "run_config="),
        (lambda: tunekit.Tuner(trainable, run_config=changed(tune.RunConfig, callbacks=-1)), "=-1"),
        (
            lambda: tunekit.Tuner(
                trainable, run_config=changed(tune.RunConfig, storage_filesystem="s3")
            ),
            "storage_filesystem='s3'",
        ),
        (lambda: tunekit.Tuner.restore(b"/none", trainable), "path="),
        (lambda: tunekit.Tuner.restore("/none", trainable, restart_errored=FRAME), "restart_err"),
    ],
)
def test_what_is_no_argument_is_named_before_anything_starts(call, named):
    with pytest.raises(ConfigError) as caught:
        call()
    assert any(named in problem for problem in caught.value.problems)
