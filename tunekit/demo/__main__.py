"""Sweep a small network over the digits with ASHA, and say what came of it."""

from __future__ import annotations

import argparse
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


def main() -> None:
    """Run the sweep and print the ranking."""
    parser = argparse.ArgumentParser(prog="python -m tunekit.demo", description=__doc__)
    parser.add_argument("--trials", type=int, default=16, help="trials to sample (16)")
    parser.add_argument(
        "--on-pending",
        choices=["continue", "hold", "pause"],
        default="continue",
        help="what a trial does while a score of it is pending (continue)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search (0)")
    parser.add_argument("--verbose", type=int, default=0, help="Tune's verbosity, 0 to 2 (0)")
    parser.add_argument("--storage", help="where the results go (a new temporary folder)")
    options = parser.parse_args()

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
            num_samples=options.trials,
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
            search_alg=tune.search.BasicVariantGenerator(
                max_concurrent=3, random_state=options.seed
            ),
        ),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=options.storage or tempfile.mkdtemp(prefix="tunekit-demo-"),
            verbose=options.verbose,
        ),
        validation_config=tunekit.ValidationConfig(
            fn=digits.validate, on_pending=options.on_pending
        ),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    print(
        f"Sweeping {options.trials} networks over scikit-learn's digits, {EPOCHS} epochs at most."
    )
    began = time.monotonic()
    results = tuner.fit()
    took = time.monotonic() - began
    print_ranking(results)
    print_timing(tuner, took)
    best = results.get_best_result()
    at_best, _ = max(best.best_checkpoints, key=lambda pair: pair[1].get("accuracy", 0.0))
    print(f"Its best checkpoint is right on {digits.accuracy_of(at_best):.1%} of the test images.")
    print(f"Results: {results.experiment_path}")
    ray.shutdown()


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
    """What validation cost: how long training waited, and how long validation ran beside it."""
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


if __name__ == "__main__":
    main()
