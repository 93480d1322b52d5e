"""A residual network on the digits, each trial trained by two workers.

    python scripts/resnet_digits.py --scheduler asha --validation evaluator

With ASHA a sweep over settings, with PBT a population of four; validated in tasks, by an evaluator
that lives on, by two workers of a trainer (which live on, too), or by mapping over a dataset.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

from harness import start_ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

import tunekit
from tunekit.demo import resnet

SPACE = {"lr": tune.loguniform(1e-3, 0.5), "weight_decay": tune.loguniform(1e-5, 1e-1)}

VALIDATION = {
    "task": {"fn": resnet.validate},
    "evaluator": {"fn": resnet.Evaluator, "evaluators": 1},
    "workers": {
        "fn": resnet.validate_by_workers,
        "evaluators": 1,
        "ray_remote_kwargs": {"num_cpus": 0},
    },
    "mapping": {
        "fn": resnet.validate_by_mapping,
        "ray_remote_kwargs": {"num_cpus": 0},
        "max_in_flight": 1,  # two datasets at once would wait for each other's actors and tasks
        "when": "decisions",  # each starts an actor, which imports torch
    },
}


def scheduler_of(name, epochs):
    if name == "asha":
        return ASHAScheduler(max_t=epochs, grace_period=1, reduction_factor=3)
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations={"train_loop_config": SPACE},
    )


def trials_of(scheduler, validation):
    if scheduler == "asha":
        return 6
    return limit_of(validation) or 4


def limit_of(validation):
    # A dataset takes an actor, and tasks that read and aggregate: three trials on eight CPUs leave
    # it two.
    return 3 if validation == "mapping" else None


def sweep(scheduler="asha", validation="evaluator", *, trials=None, epochs=9, folder, seed=0):
    """Run one; returns the tuner and its results."""
    tuner = tunekit.Tuner(
        resnet.trainer(workers=2, epochs=epochs),
        param_space={"train_loop_config": SPACE},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=trials or trials_of(scheduler, validation),
            scheduler=scheduler_of(scheduler, epochs),
            max_concurrent_trials=limit_of(validation),
        ),
        run_config=tune.RunConfig(name=f"{scheduler}-{validation}", storage_path=folder, verbose=0),
        validation_config=tunekit.ValidationConfig(
            **VALIDATION[validation], on_pending="wait" if scheduler == "pbt" else "continue"
        ),
    )
    return tuner, tuner.fit()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", choices=["asha", "pbt"], default="asha")
    parser.add_argument("--validation", choices=VALIDATION, default="evaluator")
    parser.add_argument("--trials", type=int, help="trials (6 with ASHA, 3 or 4 with PBT)")
    parser.add_argument("--epochs", type=int, default=9, help="at most (9)")
    parser.add_argument("--storage", help="where the results go (a new temporary folder)")
    options = parser.parse_args()
    start_ray(8)
    began = time.time()
    tuner, results = sweep(
        options.scheduler,
        options.validation,
        trials=options.trials,
        epochs=options.epochs,
        folder=options.storage or tempfile.mkdtemp(prefix="tunekit-resnet-"),
    )
    took = time.time() - began
    print("rank  validated  at epoch  of  lr       decay")
    ranked = sorted(results, key=lambda r: r.metrics.get("accuracy", 0.0), reverse=True)
    for rank, result in enumerate(ranked, start=1):
        shown, config = result.metrics, result.config["train_loop_config"]
        print(
            f"{rank:4}  {shown.get('accuracy', float('nan')):8.2%}  "
            f"{shown.get('validated_iteration', 0):8}  {shown['training_iteration']:2}  "
            f"{config['lr']:.1e}  {config['weight_decay']:.1e}"
        )
    ended = {name: count for name, count in tuner.validation.summary().items() if count}
    exploits = len(tuner.validation.lineage)
    print(f"The sweep took {took:.1f} s. Validations: {ended}; {exploits} exploits.")


if __name__ == "__main__":
    main()
