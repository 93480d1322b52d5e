"""Tune a small network for digits with ASHA, and print the results."""

from __future__ import annotations

import shlex
import tempfile
import time

import ray
from ray import tune

import tunekit
from tunekit.demo import digits
from tunekit.demo.inline import Spent, compared, run_alone


def run(
    trials: int = 16,
    on_pending: str = "auto",
    seed: int = 0,
    verbose: int = 1,
    storage: str | None = None,
    report: bool = False,
    inline: bool = False,
) -> None:
    """Run the sweep, and print which checkpoint is best.

    Args:
        trials: The number of trials.
        on_pending: What a trial does while one of its scores is pending.
        seed: The seed of the search.
        verbose: Tune's verbosity, 0 to 2.
        storage: Where the results go; by default a new temporary folder.
        report: Whether to write the sweep's report at the end.
        inline: Whether to run the same sweep again with inline validation, and compare.
    """
    if report:
        from tunekit.board.page import write_page
    digits.start_ray()
    print(
        f"Training {trials} networks on scikit-learn's digits, for at most {digits.EPOCHS} epochs.",
        flush=True,
    )
    began = time.monotonic()
    results = tunekit.Tuner(
        digits.train_digits,
        param_space={**digits.SPACE, "epochs": digits.EPOCHS},
        tune_config=digits.tune_config(trials, seed),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=storage or tempfile.mkdtemp(prefix="tunekit-demo-"),
            verbose=verbose,
        ),
        validation_config=tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending),
    ).fit()
    seconds = time.monotonic() - began
    sweep = tunekit.load(results.experiment_path, results.filesystem)
    ranked = sweep.trials.sort_values("best", ascending=False)
    columns = ["trial_id", "best", "best_iteration", "iteration"]
    columns += [f"config/{name}" for name in digits.SPACE]
    print("", ranked[columns].to_string(index=False, float_format="{:.3g}".format), sep="\n")
    best = sweep.best()
    tested = None if best.checkpoint is None else digits.accuracy_of(best.checkpoint)
    print("", winner(best, tested), sep="\n")
    if report:
        print("", f"Report: {write_page(sweep)}", sep="\n")
    ray.shutdown()
    if inline:
        print("\nThe same sweep, with inline validation after each epoch ...", flush=True)
        ours = Spent(seconds, int(sweep.trials["iteration"].sum()), best.score)
        print("", *compared(ours, run_alone(trials, seed)), sep="\n")
    print("", *next_commands(sweep.source or results.experiment_path), sep="\n")


def winner(best: tunekit.reading.findings.BestCheckpoint, tested: float | None) -> str:
    """Describe the best checkpoint; ``tested`` is its accuracy on the test images."""
    told = (
        f"The best checkpoint is that of trial {best.trial_id} at epoch {best.iteration}, with an "
        f"accuracy of {best.score:.2%} on the validation images"
    )
    return told + ("." if tested is None else f", and of {tested:.2%} on the test images.")


def next_commands(path: str) -> list[str]:
    """Return the commands to run next.

    Example:
        >>> next_commands("/my results/digits")[1:]
        ["  tunekit status '/my results/digits'",
         "  tunekit best '/my results/digits'",
         "  tunekit report '/my results/digits' --open"]
    """
    where = shlex.quote(path)
    commands = (f"status {where}", f"best {where}", f"report {where} --open")
    return ["Next:", *(f"  tunekit {command}" for command in commands)]
