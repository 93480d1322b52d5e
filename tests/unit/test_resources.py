"""What fits on the cluster; nothing here starts Ray."""

from __future__ import annotations

import pytest
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit._ray import cluster
from tunekit._ray.tuner import settings_of
from tunekit.driver import resources
from tunekit.driver.resources import share_cluster
from tunekit.errors import ConfigError


def validate(checkpoint):
    return {"accuracy": 0.5}


BY_WORKERS = tunekit.distributed.TrainerValidation(
    lambda config: {}, train.ScalingConfig(num_workers=3)
)


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Look what a sweep does on a cluster with these resources."""

    def look(cluster, trainable, scheduler=None, space=None, **options):
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "cluster_resources", lambda: cluster)
        tuner = tunekit.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
            run_config=tune.RunConfig(name="sweep", storage_path=str(tmp_path)),
            validation_config=tunekit.ValidationConfig(**{"fn": validate, **options}),
        )
        share_cluster(settings_of(tuner), tuner.validation)
        return tuner.validation.shares

    return look


@pytest.fixture
def on_cluster(look):
    """Look what a sweep of trainers does on a cluster of so many CPUs."""

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
