"""What ``Tuner`` makes of a trainer; nothing here starts Ray."""

from __future__ import annotations

import pytest
from ray import train, tune
from ray.train.torch import TorchTrainer
from ray.tune.schedulers import ResourceChangingScheduler

import tunekit
from tunekit._ray.trials import trainer_of
from tunekit._ray.tuner import settings_of
from tunekit.policies import FunctionCheckpoints


def loop(config): ...


def validate(checkpoint):
    return {"accuracy": 0.5}


def trainer(**options):
    options.setdefault("scaling_config", train.ScalingConfig(num_workers=2))
    return TorchTrainer(loop, train_loop_config={"lr": 0.1, "width": 8}, **options)


def make(source, folder, **options):
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
    settings = make(trainer(), tmp_path)
    request = settings.trainable.default_resource_request({})
    assert request.required_resources == {"CPU": 2.0}
    assert request.head_bundle_is_empty
    request = settings.trainable.default_resource_request({"scaling_config": {"num_workers": 3}})
    assert request.required_resources == {"CPU": 3.0}


def test_a_factory_says_what_each_trial_takes(tmp_path):
    factory = tunekit.distributed.TrainerFactory(
        lambda config: trainer(scaling_config=train.ScalingConfig(num_workers=config["workers"]))
    )
    settings = make(factory, tmp_path)
    request = settings.trainable.default_resource_request({"workers": 5})
    assert request.required_resources == {"CPU": 5.0}
    bad = make(tunekit.distributed.TrainerFactory(lambda config: "no trainer"), tmp_path)
    with pytest.raises(tunekit.errors.DistributedTrialError, match="returned 'no trainer'"):
        bad.trainable.default_resource_request({})


@pytest.mark.parametrize(("on_pending", "ahead"), [("auto", 1), ("continue", 1), ("wait", 0)])
def test_workers_wait_as_the_sweep_does(tmp_path, on_pending, ahead):
    config = tunekit.ValidationConfig(fn=validate, on_pending=on_pending)
    settings = make(trainer(), tmp_path, validation_config=config)
    assert settings.trainable.ahead == ahead
    assert not settings.tune_config.reuse_actors
    assert settings.trainable.validates


def test_without_validation_workers_do_not_wait_for_any(tmp_path):
    assert not make(trainer(), tmp_path).trainable.validates


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
    settings = make(trainer(), tmp_path)
    assert not any(isinstance(c, FunctionCheckpoints) for c in settings.callbacks)


def test_an_actor_deletes_what_it_has_uploaded_itself_and_no_more(tmp_path):
    import pyarrow.fs

    from tunekit._ray.trials import _Uploads

    former, present = (_Uploads(pyarrow.fs.LocalFileSystem(), str(tmp_path)) for _ in range(2))
    for uploads in (former, present):
        for name in ("taken", "not", "deep"):
            (tmp_path / f"{name}-{uploads.token}" / "model").mkdir(parents=True)
        uploads.keep(str(tmp_path / f"taken-{uploads.token}"))
        uploads.keep(str(tmp_path / f"deep-{uploads.token}" / "model"))
    (tmp_path / "result.json").touch()
    former.delete_rest()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        "result.json",
        *(f"{name}-{former.token}" for name in ("taken", "deep")),
        *(f"{name}-{present.token}" for name in ("taken", "not", "deep")),
    }


def test_labels_go_with_the_bundles():
    labels = {"ray.io/accelerator-type": "H100"}
    source = trainer(scaling_config=train.ScalingConfig(num_workers=2, label_selector=labels))
    trainable = settings_of(tunekit.Tuner(source)).trainable
    request = trainable.default_resource_request({})
    assert request._kwargs["bundle_label_selector"] == [labels, labels]
