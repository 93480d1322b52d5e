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
from tunekit.core.words import confirmation_in_words
from tunekit.demo import digits
from tunekit.demo.progress import Progress
from tunekit.demo.words import bought_and_cost, next_commands, ranking, winner

EPOCHS = 27
# Trials that train at once; one more place is left for validation.
TRAINING = 3
# How many of the best checkpoints are confirmed.
_TOP = 3


def staged_validation(on_pending: str = "auto") -> tunekit.ValidationConfig:
    """Return how checkpoints are validated: in batches; promoted ones also by another function.

    At the end, the winner is confirmed.

    Args:
        on_pending: As in :class:`tunekit.ValidationConfig`.

    Example:
        >>> [stage.name for stage in staged_validation().stages], staged_validation().confirm.top
        (['plain'], 3)
    """
    return tunekit.ValidationConfig(
        fn=digits.validate_in_batches,
        on_pending=on_pending,
        sequential=tunekit.Sequential(min_examples=300),
        stages=[tunekit.Stage("plain", digits.validate, every="promoted")],
        confirm=tunekit.Confirm(top=_TOP),
    )


def in_stages(sweep: tunekit.Sweep) -> list[str]:
    """Say how many images the sweep took, what was validated besides, and how sure the winner is.

    Args:
        sweep: A sweep that was validated by :func:`staged_validation`.
    """
    table = sweep.validations
    scored = table[table.status == "validated"]
    decided, plain = scored[scored.stage == ""], scored[scored.stage == "plain"]
    seen, all_ = int(decided["metrics/accuracy_n"].sum()), len(decided) * digits.EXAMPLES
    lines = [
        "Validated in stages:",
        f"  to decide  {seen:,} images, where full validations take {all_:,}: {seen / all_:.0%}",
        "             (8 in 9 of them are moved by a pixel, which is hard)",
    ]
    if len(plain):
        best = plain["metrics/accuracy"].max()
        lines.append(
            f"  promoted   {len(plain)} checkpoints were right on up to {best:.2%} of images that "
            "are not moved"
        )
    found = sweep.confirmation
    if found is not None:
        more = sum(one.n or 0 for one in found.candidates)
        lines += [
            f"  confirmed  {confirmation_in_words(found)},",
            f"             by {more:,} images",
        ]
    return lines


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
