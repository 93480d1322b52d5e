"""PBT clones continue exactly the scored weights, in reused actors and in functions."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import tunekit
from tests.support.real_sweeps import by_accuracy, fit
from tests.support.versioned import AfterExploits, Versioned, Versions, score_of, version_at

NOISE = 5.0


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    """The score of the version, after 0 to 10 iterations of 0.05 s."""
    with checkpoint.as_directory() as folder:
        version = version_at(folder)
    time.sleep(0.5 * random.Random(version).random())
    return {"accuracy": score_of(version, NOISE)}


class Slow(Versioned):
    def step(self):
        time.sleep(0.05)
        return super().step()


def versioned(config):
    """The same as a function that registers how to save."""
    state = {"version": random.Random(tune.get_context().get_trial_id()).randrange(1, 10**9) * 1000}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state["version"] = version_at(folder)
    tunekit.checkpoint_with(lambda d: (d / "version").write_text(str(state["version"])))
    while True:
        time.sleep(0.05)
        state["version"] += 1
        tune.report({"version": state["version"]})


def pbt(**settings):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(0.0, 1.0)},
        quantile_fraction=0.4,
        **settings,
    )


def run(folder, trainable, scheduler, *, on_pending, keep=None, stop, **tune_settings):
    versions = Versions(noise=NOISE)
    results = fit(
        trainable,
        folder,
        param_space={"lr": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=4, scheduler=scheduler, **tune_settings
        ),
        stop=stop,
        callbacks=[versions],
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=keep, checkpoint_score_attribute="accuracy" if keep else None
        ),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            on_pending=on_pending,
            when="decisions",
            ray_remote_kwargs={"num_cpus": 0.1},
        ),
        checkpoint_policy=tunekit.policies.AtDecisions(),
    )
    assert not results.errors
    for result in results:
        table = result.metrics_dataframe
        assert not table.duplicated(["tunekit/generation", "training_iteration"]).any()
        assert table["tunekit/generation"].is_monotonic_increasing
        assert Path(result.checkpoint.path).exists()
    return results, versions.exact_clones(results)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("on_pending", "exploits"), [("continue", 4), ("wait", 5)])
def test_pbt_clones_in_reused_actors_continue_the_scored_weights(
    ray_cluster, tmp_path, on_pending, exploits
):
    """Half of the population runs at a time, one checkpoint is kept.

    How soon trials exploit others is a matter of timing, so the run goes on until they have.
    """
    results, clones = run(
        tmp_path,
        tune.with_resources(Slow, {"cpu": 2.5}),
        pbt(),
        on_pending=on_pending,
        keep=1,
        stop=AfterExploits(10, exploits),
        reuse_actors=True,
    )
    assert clones >= exploits
    lineage = tunekit.load(results.experiment_path).lineage
    for result in results:
        config = lineage.ancestors(result.metrics["trial_id"])
        if len(config):
            assert result.config["lr"] == config["config/lr"].iloc[-1]


@pytest.mark.at_night
def test_pbt_clones_in_waiting_functions_continue_the_scored_weights(ray_cluster, tmp_path):
    _, clones = run(
        tmp_path,
        versioned,
        pbt(synch=True),
        on_pending="wait",
        stop={"training_iteration": 6},
        reuse_actors=True,
    )
    assert clones >= 3


def ends_at_an_exploit(config):
    epoch = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            epoch = int(Path(folder, "epoch").read_text())
    tunekit.checkpoint_with(lambda folder: (folder / "epoch").write_text(str(epoch)))
    while epoch < 8:
        epoch += 1
        tune.report({"loss": epoch})


def by_learning_rate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    return {"accuracy": tunekit.get_validation_context().config["lr"]}


def test_clone_of_a_fully_trained_checkpoint_terminates(ray_cluster, tmp_path):
    pbt = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=4,
        quantile_fraction=0.5,
        hyperparam_mutations={"lr": tune.uniform(0.01, 0.1)},
        synch=True,
    )
    results = fit(
        ends_at_an_exploit,
        tmp_path,
        param_space={"lr": tune.uniform(0.01, 0.1)},
        tune_config=by_accuracy(pbt, 2),
        validation_config=tunekit.ValidationConfig(fn=by_learning_rate),
    )
    assert not results.errors
    assert [result.metrics["training_iteration"] for result in results] == [8] * 2
    assert len(tunekit.load(results.experiment_path).lineage)
