"""Sweep a small network over the digits with ASHA, and say what came of it."""

from __future__ import annotations

import logging
import os
import tempfile
import time

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit.demo import digits

EPOCHS = 27
# Trials that train at once; one more place is left for validation.
TRAINING = 3


def run(
    trials: int = 16,
    on_pending: str = "auto",
    seed: int = 0,
    verbose: int = 0,
    storage: str | None = None,
    report: bool = False,
) -> None:
    """Run the sweep and print the ranking.

    Args:
        trials: How many to sample.
        on_pending: What a trial does while a score of it is pending.
        seed: Of the search.
        verbose: Tune's verbosity, 0 to 2.
        storage: Where the results go; by default a new temporary folder.
        report: Whether the sweep's report is written at the end.
    """
    if report:
        from tunekit.page import write_page
    ray.init(
        num_cpus=max(4, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    tuner = tunekit.Tuner(
        digits.train_digits,
        param_space={**digits.SPACE, "epochs": EPOCHS},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=trials,
            scheduler=_asha(),
            search_alg=tune.search.BasicVariantGenerator(
                max_concurrent=TRAINING, random_state=seed
            ),
        ),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=storage or tempfile.mkdtemp(prefix="tunekit-demo-"),
            verbose=verbose,
        ),
        validation_config=tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    print(f"Sweeping {trials} networks over scikit-learn's digits, {EPOCHS} epochs at most.")
    began = time.monotonic()
    results = tuner.fit()
    took = time.monotonic() - began
    print_ranking(results)
    print_timing(tuner, took)
    print_what_if(tunekit.load(results.experiment_path, results.filesystem), on_pending)
    best = results.get_best_result()
    at_best, _ = max(best.best_checkpoints, key=lambda pair: pair[1].get("accuracy", 0.0))
    print(f"Its best checkpoint is right on {digits.accuracy_of(at_best):.1%} of the test images.")
    print(f"Results: {results.experiment_path}")
    if report:
        sweep = tunekit.load(results.experiment_path, results.filesystem)
        print(f"Report: {write_page(sweep)}")
    ray.shutdown()


def _asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=EPOCHS, grace_period=1, reduction_factor=3, time_attr="training_iteration"
    )


def print_what_if(sweep: tunekit.Sweep, on_pending: str) -> None:
    """Print what late scores cost, and what validating inline would have taken instead."""
    summary = sweep.summary()
    lag = summary["lag_s"]
    if lag is None:
        return
    late, all_ = summary["iterations_after_stop"], summary["iterations"]
    print(
        f"Scores were there {lag['median']:.1f} s after their epoch (median); {late} of {all_} "
        "epochs were trained past a stop."
    )
    judged = tune.TuneConfig(
        metric="accuracy", mode="max", scheduler=_asha(), max_concurrent_trials=TRAINING
    )
    places = {"tune_config": judged, "slots": TRAINING + 1}
    config = tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending)
    beside = tunekit.simulate(sweep, validation_config=config, **places)
    inline = tunekit.simulate(sweep, inline="every", **places)
    print(
        "In virtual time, in which processes start at once, the sweep takes "
        f"{beside.makespan_s:.0f} s; with validation inline after each epoch, "
        f"{inline.makespan_s:.0f} s."
    )


def print_ranking(results: tune.ResultGrid) -> None:
    """The trials, by their newest validated accuracy."""
    ranked = sorted(results, key=lambda r: r.metrics.get("accuracy", -1.0), reverse=True)
    print(
        "\nrank  validated  at epoch  of  loss (training)  lr       width  decay    dropout  batch"
    )
    for rank, result in enumerate(ranked, 1):
        metrics, config = result.metrics, result.config
        print(
            f"{rank:4}  {metrics.get('accuracy', float('nan')):9.2%}  "
            f"{metrics.get('validated_iteration', 0):8}  {metrics['training_iteration']:2}  "
            f"{metrics['loss']:15.4f}  {config['lr']:.1e}  {config['width']:5}  "
            f"{config['weight_decay']:.1e}  {config['dropout']:7.2f}  {config['batch_size']:5}"
        )


def print_timing(tuner: tunekit.Tuner, took: float) -> None:
    """Print what validation cost: how long training waited, and how long validation ran beside
    it."""
    validation = tuner.validation
    if validation is None:
        return
    timing, counts = validation.timing(), validation.summary()
    beside = timing["validations_ran_s"] - timing["drained_s"]
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"\nThe sweep took {took:.1f} s. Validations: {shown}.")
    print(f"Training waited {timing['trials_waited_s']:.1f} s for validation;", end=" ")
    print(f"validation ran {max(0.0, beside):.1f} s beside training", end=" ")
    print(f"and {timing['drained_s']:.1f} s after it.")
