"""``Tuner`` refuses wrong arguments before Ray starts, and derives its other settings."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from pyarrow.fs import LocalFileSystem
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.logger import CSVLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.search.optuna import OptunaSearch
from ray.tune.tune import _Config

import tunekit
from tunekit._ray import cluster
from tunekit._ray.distributed_trials import _Uploads, trainer_of
from tunekit._ray.tuner import settings_of
from tunekit.core.retention import unique_name
from tunekit.driver.resources import leave_room_for_data, share_cluster
from tunekit.errors import ConfigError
from tunekit.policies import CheckpointPolicy, FunctionCheckpoints
from tunekit.validating.ray_executor import executor_of

VALIDATION = tunekit.ValidationConfig(fn=lambda checkpoint: {"accuracy": 0.5})


def trainable(config):
    tune.report({"loss": 1.0})


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a Tuner and returns its settings."""

    def make(source: Any = trainable, run_config: Any = None, **options: Any) -> Any:
        run_config = run_config or tune.RunConfig()
        run_config.storage_path, run_config.name = str(tmp_path), "sweep"
        return settings_of(tunekit.Tuner(source, run_config=run_config, **options))

    return make


def validation_of(settings):
    return next(c for c in settings.callbacks if isinstance(c, tunekit.ValidationCallback))


def kinds(callbacks) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def assert_refused(call, named: list[str]) -> None:
    """Check that a call raises a ConfigError with one problem for each of these names."""
    with pytest.raises(ConfigError) as caught:
        call()
    problems = caught.value.problems
    assert len(problems) == len(named) and "DEPRECATED" not in str(caught.value)
    assert [name for name in named if not any(name in one for one in problems)] == []


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda *args, **options: pytest.fail("Ray was started"))


class AlgorithmConfig(_Config):
    """A config of RLlib, as Tune knows it."""

    def to_dict(self):
        return {"env": "CartPole-v1", "lr": tune.loguniform(1e-4, 0.1)}


def test_rllib_config_is_used_as_the_search_space(make):
    settings = make(param_space=AlgorithmConfig(), validation_config=VALIDATION)
    assert settings.param_space["env"] == "CartPole-v1"
    assert validation_of(settings).program.space["lr"]["kind"] == "float"


def test_config_error_of_tuner_names_every_wrong_argument(tmp_path):
    callbacks = [tunekit.ValidationCallback(VALIDATION), 5]
    wrong = {
        "trainable": 3,
        "tune_config": tune.TuneConfig(mode="best", scheduler="asha", search_alg=7),
        "run_config": tune.RunConfig(storage_path=str(tmp_path), callbacks=callbacks),
        "validation_config": {"fn": 1},
        "checkpoint_policy": 10,
    }
    named = [
        "trainable=3",
        "tune_config.mode='best'",
        "tune_config.scheduler='asha'",
        "tune_config.search_alg=7",
        "run_config.callbacks[0]",
        "run_config.callbacks[1]=5",
        "validation_config={'fn': 1}",
        "checkpoint_policy=10",
    ]
    assert_refused(lambda: tunekit.Tuner(**wrong), named)


@pytest.mark.parametrize("tuner", [tune.Tuner, tunekit.Tuner])
def test_restore_without_an_experiment_raises_file_not_found_as_ray_does(tmp_path, tuner):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=r"tuner\.pkl"):
            tuner.restore(str(path), trainable)


def test_tuner_wraps_a_scheduler_exactly_once(make):
    def used(scheduler):
        config = tune.TuneConfig(scheduler=scheduler)
        return make(tune_config=config, validation_config=VALIDATION).tune_config.scheduler

    ready = tunekit.ValidatedScheduler(FIFOScheduler())
    assert used(ready) is ready
    assert isinstance(used("async_hyperband").scheduler, ASHAScheduler)
    assert isinstance(used(None).scheduler, FIFOScheduler)


def test_fit_without_validation_leaves_signals_limits_and_starting_ray_to_tune(
    tmp_path, monkeypatch
):
    def of_tune(tuner):
        return signal.getsignal(signal.SIGTERM), settings_of(tuner).tune_config

    for name in ("is_initialized", "cluster_resources"):
        monkeypatch.setattr(ray, name, lambda *given, **named: pytest.fail("called by tunekit"))
    monkeypatch.setattr(tune.Tuner, "fit", of_tune)
    greedy = tune.with_resources(lambda config: 0, {"cpu": 10**6})  # Tune itself logs that it waits
    run_config = tune.RunConfig(name="sweep", storage_path=str(tmp_path))
    handler, config = tunekit.Tuner(greedy, run_config=run_config).fit()
    assert handler == signal.getsignal(signal.SIGTERM)
    assert config.max_concurrent_trials is None


def pbt(**settings):
    return PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]}, **settings)


@pytest.mark.parametrize("validation", [None, VALIDATION], ids=["no-validation", "validation"])
def test_reuse_actors_is_off_by_default_and_refused_without_reset_config(make, validation):
    asked = {"tune_config": tune.TuneConfig(reuse_actors=True), "validation_config": validation}
    assert not make(validation_config=validation).tune_config.reuse_actors
    assert make(**asked).tune_config.reuse_actors
    for cannot in (tune.Trainable, tune.with_resources(tune.Trainable, {"CPU": 2})):
        with pytest.raises(ConfigError, match="reset_config"):
            tunekit.Tuner(cannot, **asked)


@pytest.mark.parametrize(
    ("scheduler", "more", "on_pending", "fix"),
    [
        (pbt(synch=True), {}, "continue", "on_pending='wait'"),
        (ResourceChangingScheduler(pbt(synch=True)), {}, "continue", "synch=False"),
        (pbt(), {"search_alg": OptunaSearch()}, "wait", "search_alg"),
        (HyperBandForBOHB(), {}, "wait", "TuneBOHB"),
        (HyperBandForBOHB(), {"search_alg": OptunaSearch()}, "wait", "TuneBOHB"),
        (ResourceChangingScheduler(), {"reuse_actors": True}, "wait", "reuse_actors=False"),
    ],
)
def test_contradicting_settings_are_refused_with_the_setting_to_change(
    scheduler, more, on_pending, fix
):
    with pytest.raises(ConfigError, match=fix):
        tunekit.Tuner(
            trainable,
            tune_config=tune.TuneConfig(scheduler=scheduler, **more),
            validation_config=tunekit.ValidationConfig(fn=validate, on_pending=on_pending),
        )


def test_checkpoint_policies_precede_validation_and_other_callbacks_follow_it(make):
    given = [CSVLoggerCallback(), tunekit.EveryIterations(3), TBXLoggerCallback()]
    run_config = tune.RunConfig(callbacks=list(given))
    policy = tunekit.EveryIterations(2)
    settings = make(run_config=run_config, validation_config=VALIDATION, checkpoint_policy=policy)
    before = ["EveryIterations", "EveryIterations", "FunctionCheckpoints"]
    after = ["CSVLoggerCallback", "TBXLoggerCallback"]
    assert kinds(settings.callbacks) == [*before, "ValidationCallback", *after]
    assert run_config.callbacks == given


def test_tuner_without_validation_config_adds_only_checkpoint_policies(make):
    kept = tune.CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=True)
    run_config, policy = tune.RunConfig(checkpoint_config=kept), tunekit.EveryIterations(1)
    settings = make(run_config=run_config, checkpoint_policy=policy)
    assert settings.tune_config.scheduler is None
    assert kinds(settings.callbacks) == ["EveryIterations", "FunctionCheckpoints"]
    assert (settings.callbacks[1].frequency, settings.callbacks[1].at_end) == (3, True)


def validate(checkpoint):
    return {"accuracy": 0.5}


def saves(config):
    tunekit.checkpoint_with(lambda directory: None)
    tune.report({"loss": 1.0})


class Asks(tune.Callback):
    """May set should_checkpoint."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        pass


@pytest.mark.parametrize(
    ("when", "options", "run_config", "policies"),
    [
        (1, {}, {}, ["EveryIterations(1)"]),
        (2, {}, {}, ["EveryIterations(2)"]),
        ("auto", {}, {}, ["AtDecisions()"]),
        ("decisions", {}, {}, ["AtDecisions()"]),
        ("requested", {}, {}, []),
        (1, {"checkpoint_policy": tunekit.EveryIterations(3)}, {}, ["EveryIterations(3)"]),
        (1, {"checkpoint_policy": Asks()}, {}, []),
        (1, {}, {"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=2)}, []),
        (1, {}, {"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=True)}, []),
        (1, {}, {"callbacks": [tunekit.EveryIterations(4)]}, ["EveryIterations(4)"]),
        (1, {}, {"callbacks": [Asks()]}, ["EveryIterations(1)"]),
    ],
)
def test_default_checkpoint_policy_follows_when_unless_another_one_is_set(
    make, when, options, run_config, policies
):
    settings = make(
        saves,
        validation_config=tunekit.ValidationConfig(validate, when=when),
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(**run_config),
        **options,
    )
    found = [one for one in settings.callbacks if isinstance(one, CheckpointPolicy)]
    assert [repr(getattr(one, "policy", one)) for one in found] == policies


# Trainers ---------------------------------------------------------------------------------------


def loop(config): ...


def trainer(**options):
    options.setdefault("scaling_config", train.ScalingConfig(num_workers=2))
    return TorchTrainer(loop, train_loop_config={"lr": 0.1, "width": 8}, **options)


def test_config_error_of_a_trainer_names_every_wrong_argument():
    saves = tune.CheckpointConfig(checkpoint_frequency=2)
    wrong = {
        "trainable": trainer(scaling_config=train.ScalingConfig(num_workers=0)),
        "param_space": {"lr": tune.uniform(0, 1), "scaling_config": {"num_workers": (1, 4)}},
        "tune_config": tune.TuneConfig(scheduler=ResourceChangingScheduler()),
        "run_config": tune.RunConfig(checkpoint_config=saves),
        "checkpoint_policy": tunekit.EveryIterations(2),
    }
    named = [
        "num_workers=0",
        "'lr'",
        "num_workers=(1, 4)",
        "ResourceChangingScheduler",
        "checkpoint_policy=EveryIterations(2)",
        "CheckpointConfig(checkpoint_frequency=2)",
    ]
    assert_refused(lambda: tunekit.Tuner(**wrong), named)


def test_param_space_overrides_settings_of_each_trials_trainer_but_not_the_users_own():
    source = trainer()
    space = {"train_loop_config": {"lr": 0.5}, "datasets": {"train": "data"}}
    made = trainer_of(source, {**space, "scaling_config": {"num_workers": 4}})
    assert made.train_loop_config == {"lr": 0.5, "width": 8}
    assert made.scaling_config.num_workers == 4
    assert made.datasets == {"train": "data"}
    assert source.train_loop_config == {"lr": 0.1, "width": 8}, "the user's own is not changed"
    assert source.scaling_config.num_workers == 2 and source.datasets == {}
    whole = train.ScalingConfig(num_workers=3)
    assert trainer_of(source, {"scaling_config": whole}).scaling_config is whole


def test_trial_of_a_trainer_requests_the_resources_of_its_workers_only(make):
    labels = {"ray.io/accelerator-type": "H100"}
    source = trainer(scaling_config=train.ScalingConfig(num_workers=2, label_selector=labels))
    settings = make(source)
    assert not any(isinstance(one, FunctionCheckpoints) for one in settings.callbacks)
    for space, workers in (({}, 2), ({"scaling_config": {"num_workers": 3}}, 3)):
        request = settings.trainable.default_resource_request(space)
        assert request.required_resources == {"CPU": workers} and request.head_bundle_is_empty
        assert request._kwargs["bundle_label_selector"] == [labels] * workers


def test_trial_of_a_trainer_factory_requests_the_resources_of_its_own_trainer(make):
    def make_trainer(config):
        workers = config["workers"]
        return trainer(scaling_config=train.ScalingConfig(num_workers=workers)) if workers else 0

    trial = make(tunekit.distributed.TrainerFactory(make_trainer)).trainable
    assert trial.default_resource_request({"workers": 5}).required_resources == {"CPU": 5.0}
    with pytest.raises(tunekit.errors.DistributedTrialError, match="returned 0"):
        trial.default_resource_request({"workers": None})


@pytest.mark.parametrize(("on_pending", "ahead"), [("auto", 1), ("continue", 1), ("wait", 0)])
def test_workers_train_ahead_of_pending_scores_unless_on_pending_is_wait(make, on_pending, ahead):
    config = tunekit.ValidationConfig(fn=validate, on_pending=on_pending)
    settings = make(trainer(), validation_config=config)
    assert settings.trainable.ahead == ahead and settings.trainable.validates
    assert not settings.tune_config.reuse_actors
    assert not make(trainer()).trainable.validates, "without validation"


def test_sweep_takes_over_run_config_and_validation_config_of_its_trainer(tmp_path):
    kept = train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    run_config = train.RunConfig(name="mine", storage_path=str(tmp_path), checkpoint_config=kept)
    own = trainer(validation_config=train.ValidationConfig(fn=validate), run_config=run_config)
    tuner = tunekit.Tuner(own)
    assert tuner.validation.config.when == "requested"
    taken = settings_of(tuner).run_config
    assert taken.name == "mine" and taken.checkpoint_config.num_to_keep == 2
    given = tunekit.ValidationConfig(fn=validate, when=3)
    assert tunekit.Tuner(own, validation_config=given).validation.config.when == 3
    own.validation_config = given
    assert tunekit.Tuner(own).validation.config is given


def test_worker_group_deletes_its_own_unreported_uploads_and_no_other_files(tmp_path):
    former, present = (_Uploads(LocalFileSystem(), str(tmp_path)) for _ in range(2))

    def upload(uploads: _Uploads, name: str) -> Path:
        return tmp_path / unique_name(name, uploads.run, 1)

    for uploads in (former, present):
        for name in ("taken", "not", "deep"):
            (upload(uploads, name) / "model").mkdir(parents=True)
        uploads.keep(str(upload(uploads, "taken")))
        uploads.keep(str(upload(uploads, "deep") / "model"))
    (tmp_path / "result.json").touch()
    before = set(tmp_path.iterdir())
    former.delete_rest()
    assert before - set(tmp_path.iterdir()) == {upload(former, "not")}


# What fits on the cluster -----------------------------------------------------------------------


BY_WORKERS = tunekit.distributed.TrainerValidation(
    lambda config: {}, train.ScalingConfig(num_workers=3)
)


@pytest.fixture
def look(monkeypatch, make):
    """Return how trials and validations of a sweep share a cluster with these resources."""

    def look(cluster, trainable, scheduler=None, space=None, limit=None, **options):
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "cluster_resources", lambda: cluster)
        goal = {"metric": "accuracy", "mode": "max", "scheduler": scheduler}
        settings = make(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(**goal, num_samples=100, max_concurrent_trials=limit),
            validation_config=tunekit.ValidationConfig(**{"fn": validate, **options}),
        )
        validation = validation_of(settings)
        share_cluster(settings, validation)
        return validation.shares

    return look


@pytest.fixture
def on_cluster(look):
    """Return how trainers and their validations share a cluster with this many CPUs."""

    def on_cluster(cpus, scheduler=None, workers=2, **options):
        source = trainer(scaling_config=train.ScalingConfig(num_workers=workers))
        return look({"CPU": float(cpus)}, source, scheduler, **options)

    return on_cluster


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 3),  # 3 trials of 2 workers, and 1 for validation
        ({"max_in_flight": 3}, 2),
        ({"evaluators": 4}, 2),
        ({"fn": BY_WORKERS}, 2),  # 1 for the validation itself, and 3 for its workers
        # The largest number of workers in the search space counts.
        ({"space": {"scaling_config": {"num_workers": tune.choice([1, 3])}}}, 2),
        ({"space": {"scaling_config": {"num_workers": tune.grid_search([3, 2])}}}, 2),
    ],
    ids=["default", "max_in_flight", "evaluators", "by workers", "choice", "grid"],
)
def test_number_of_distributed_trials_leaves_room_for_validations(on_cluster, options, limit):
    assert on_cluster(8, ASHAScheduler(), **options).alongside == limit


def test_users_max_concurrent_trials_replaces_the_limit_that_leaves_room_for_validation(look):
    for own, limit in ((None, 3), (2, None)):
        assert look({"CPU": 4.0}, lambda config: 0, limit=own, evaluators=1).alongside == limit


def test_validation_in_its_trial_is_refused_if_a_trials_process_is_too_small(on_cluster):
    on_cluster(12, ASHAScheduler(), workers=3, where="trial")
    with pytest.raises(ConfigError, match=r"where='trial'.* 2 CPU .* 2 CPU"):
        on_cluster(12, ASHAScheduler(), where="trial", ray_remote_kwargs={"num_cpus": 2})


DATA: Any = {"train": object()}


@pytest.mark.parametrize(
    ("cpus", "options", "at_once"), [(8, {}, 2), (4, {}, 1), (9, {"limit": 4}, 3)]
)
@pytest.mark.parametrize("where", ["trainer", "space", "factory"])
def test_number_of_trials_leaves_a_cpu_each_to_ray_data(look, cpus, options, at_once, where):
    source = trainer(datasets=DATA if where != "space" else None)
    if where == "factory":
        source = tunekit.distributed.TrainerFactory(lambda config, made=source: made)
    space = {"datasets": DATA} if where == "space" else {}
    assert look({"CPU": float(cpus)}, source, space=space, **options).at_once == at_once
    config = tune.TuneConfig(max_concurrent_trials=options.get("limit"))
    settings = settings_of(tunekit.Tuner(source, param_space=space, tune_config=config))
    leave_room_for_data(settings)
    assert settings.tune_config.max_concurrent_trials == at_once, "also without validation"


def test_validation_by_a_trainer_with_datasets_leaves_a_cpu_to_ray_data():
    loads = tunekit.distributed.TrainerValidation(
        lambda config: {}, train.ScalingConfig(num_workers=3), datasets=DATA
    )
    config = tunekit.ValidationConfig(fn=loads)
    assert executor_of(config).need == {"CPU": 1 + 3 + 1}


def test_trial_or_validation_that_the_cluster_cannot_fit_is_logged_with_its_resources(
    on_cluster, caplog
):
    on_cluster(3, workers=4)
    on_cluster(3, ray_remote_kwargs={"num_cpus": 1, "resources": {"special": 1}})
    trial, validation = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert all(fact in trial for fact in ("trial", "4 CPU", "3 CPU", "scaling_config"))
    facts = ("validation", "1 CPU, 1 special", "0 special", "ray_remote_kwargs")
    assert all(fact in validation for fact in facts)


def test_trial_or_validation_that_a_fixed_machine_cannot_fit_is_refused(
    on_cluster, look, make, monkeypatch
):
    monkeypatch.setattr(cluster, "cannot_grow", lambda: True)
    with pytest.raises(ConfigError, match=r"validation .*1 CPU, 1 GPU .* 0 GPU"):
        on_cluster(4, ray_remote_kwargs={"num_cpus": 1, "num_gpus": 1})
    with pytest.raises(ConfigError) as caught:
        on_cluster(3, workers=4, ray_remote_kwargs={"resources": {"validator": 1}})
    assert len(caught.value.problems) == 2, "of a trial and of a validation"
    reads_data = trainer(datasets=DATA)
    with pytest.raises(ConfigError, match=r"3 CPU .* 2 CPU"):
        look({"CPU": 2.0}, reads_data)
    with pytest.raises(ConfigError):
        leave_room_for_data(make(reads_data))
    assert on_cluster(8, ASHAScheduler(), evaluators=1).alongside == 3


# Wrong arguments ----------------------------------------------------------------------------------

LOOP = trainer()


@pytest.mark.parametrize("given", ["out", "./out", Path("out"), "~/out", "file://HOME/out"])
def test_storage_path_in_any_notation_leads_to_the_same_folder(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    given = given.replace("HOME", str(tmp_path)) if isinstance(given, str) else given
    tunekit.Tuner(trainable, run_config=tune.RunConfig(name="sweep", storage_path=given))
    assert (tmp_path / "out/sweep/tuner.pkl").exists()


def tuner_of(**settings: Any) -> tunekit.Tuner:
    """Make a Tuner from a RunConfig with values that Ray itself may refuse."""
    run_config = tune.RunConfig()
    vars(run_config).update(settings)
    return tunekit.Tuner(trainable, run_config=run_config)


PLAIN = train.ValidationConfig(fn=validate)


#: What each of these calls is told.
WRONG: dict[str, Callable[[], Any]] = {
    "trainable": lambda: tunekit.Tuner(),
    "'never registered'": lambda: tunekit.Tuner("never registered"),
    "trainable=<class 'dict'>": lambda: tunekit.Tuner(dict),
    "trainable=<function": lambda: tunekit.Tuner(lambda a, b: 0),
    "ray.tune.TuneConfig(...)": lambda: tunekit.Tuner(trainable, tune_config={}),
    "ray.tune.RunConfig(...)": lambda: tunekit.Tuner(trainable, run_config=train.RunConfig()),
    "RunConfig(checkpoint_config=ray.tune.CheckpointConfig(...))": lambda: tuner_of(
        checkpoint_config=train.CheckpointConfig(num_to_keep=2)
    ),
    "RunConfig(failure_config=ray.tune.FailureConfig(...))": lambda: tuner_of(
        failure_config=train.FailureConfig(max_failures=2)
    ),
    "run_config.callbacks=-1": lambda: tuner_of(callbacks=-1),
    "storage_filesystem='s3'": lambda: tuner_of(storage_filesystem="s3"),
    "param_space='lr'": lambda: tunekit.Tuner(LOOP, param_space="lr"),
    "Tuner: when='requested'": lambda: tunekit.Tuner(trainable, validation_config=PLAIN),
    "restore: when='requested'": lambda: tunekit.Tuner.restore(
        "/none", trainable, validation_config=PLAIN
    ),
    "ValidationCallback: when='requested'": lambda: tunekit.ValidationCallback(PLAIN),
    "tunekit.ValidationConfig(fn=...)": lambda: tunekit.ValidationCallback(None),
    "scheduler=3": lambda: tunekit.ValidatedScheduler(3),
    "ValidatedScheduler": lambda: tunekit.ValidatedScheduler(
        tunekit.ValidatedScheduler(FIFOScheduler())
    ),
    "checkpointable: trainable": lambda: tunekit.checkpointable(LOOP),
}


@pytest.mark.parametrize("named", WRONG)
def test_wrong_argument_is_refused_and_named_before_anything_starts(named):
    assert_refused(WRONG[named], [named.partition(": ")[2] or named])
