"""Sweep a small network over the digits with ASHA, and say what came of it."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit
from tunekit.demo import digits
from tunekit.demo.progress import Progress
from tunekit.demo.staged import in_stages, staged_validation
from tunekit.demo.words import bought_and_cost, next_commands, ranking, winner

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
    staged: bool = False,
) -> None:
    """Run the sweep, and say how far it is, which checkpoint is best and what it has cost.

    Args:
        trials: How many to sample.
        on_pending: What a trial does while a score of it is pending.
        seed: Of the search.
        verbose: Tune's verbosity, 0 to 2.
        storage: Where the results go; by default a new temporary folder.
        report: Whether the sweep's report is written at the end.
        staged: Whether to validate less: in batches, with a stage and a confirmation.
    """
    if report:
        from tunekit.board.page import write_page
    ray.init(
        num_cpus=max(4, os.cpu_count() or 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    progress = Progress("accuracy") if verbose == 0 else None
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
            callbacks=[] if progress is None else [progress],
        ),
        validation_config=staged_validation(on_pending)
        if staged
        else tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending),
        checkpoint_policy=tunekit.EveryIterations(1),
    )
    if progress is not None:
        progress.validation = tuner.validation
    print(
        f"Sweeping {trials} networks over scikit-learn's digits, {EPOCHS} epochs at most.",
        flush=True,
    )
    results = tuner.fit()
    if progress is not None:
        progress.close()
    sweep = tunekit.load(results.experiment_path, results.filesystem)
    print("", *ranking(sweep), sep="\n")
    best = sweep.best()
    tested = None if best.checkpoint is None else digits.accuracy_of(best.checkpoint)
    print("", winner(best, tested), "", sep="\n")
    if staged:
        print(*in_stages(sweep), "", sep="\n")
    print(*bought_and_cost(sweep, *in_virtual_time(sweep, on_pending)), sep="\n")
    if report:
        print("", f"Report: {write_page(sweep)}", sep="\n")
    print("", *next_commands(sweep.source or results.experiment_path), sep="\n")
    ray.shutdown()


def _asha() -> ASHAScheduler:
    return ASHAScheduler(
        max_t=EPOCHS, grace_period=1, reduction_factor=3, time_attr="training_iteration"
    )


def in_virtual_time(sweep: tunekit.Sweep, on_pending: str) -> tuple[float, float]:
    """Return how long the sweep takes in virtual time, and with validation inline, in seconds."""
    judged = tune.TuneConfig(
        metric="accuracy", mode="max", scheduler=_asha(), max_concurrent_trials=TRAINING
    )
    places: dict[str, Any] = {"tune_config": judged, "slots": TRAINING + 1}
    config = tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending)
    beside = tunekit.simulate(sweep, validation_config=config, **places)
    inline = tunekit.simulate(sweep, inline="every", **places)
    return beside.makespan_s, inline.makespan_s
