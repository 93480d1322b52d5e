"""Sweep a small network over the digits with ASHA, and say what came of it."""

from __future__ import annotations

import shlex
import tempfile
import time
from typing import Any

import ray
from ray import tune

import tunekit
from tunekit.core.parameters import parameters_of
from tunekit.core.progress import News, counted
from tunekit.core.words import duration, setting
from tunekit.demo import digits
from tunekit.demo.inline import Spent, compared, run_alone


def run(
    trials: int = 16,
    on_pending: str = "auto",
    seed: int = 0,
    verbose: int = 0,
    storage: str | None = None,
    report: bool = False,
    inline: bool = False,
) -> None:
    """Run the sweep, and say how far it is, and which checkpoint is best.

    Args:
        trials: How many to sample.
        on_pending: What a trial does while a score of it is pending.
        seed: Of the search.
        verbose: Tune's verbosity, 0 to 2.
        storage: Where the results go; by default a new temporary folder.
        report: Whether the sweep's report is written at the end.
        inline: Whether the same sweep is run once more, validating inline, and compared.
    """
    if report:
        from tunekit.board.page import write_page
    digits.start_ray()
    progress, began = Progress(), time.monotonic()
    tuner = tunekit.Tuner(
        digits.train_digits,
        param_space={**digits.SPACE, "epochs": digits.EPOCHS},
        tune_config=digits.tune_config(trials, seed),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=storage or tempfile.mkdtemp(prefix="tunekit-demo-"),
            verbose=verbose,
            callbacks=[progress] if verbose == 0 else [],
        ),
        validation_config=tunekit.ValidationConfig(fn=digits.validate, on_pending=on_pending),
    )
    progress.validation = tuner.validation
    print(
        f"Sweeping {trials} networks over scikit-learn's digits, {digits.EPOCHS} epochs at most.",
        flush=True,
    )
    results = tuner.fit()
    seconds = time.monotonic() - began
    sweep = tunekit.load(results.experiment_path, results.filesystem)
    print("", *ranking(sweep), sep="\n")
    best = sweep.best()
    tested = None if best.checkpoint is None else digits.accuracy_of(best.checkpoint)
    print("", winner(best, tested), sep="\n")
    if report:
        print("", f"Report: {write_page(sweep)}", sep="\n")
    ray.shutdown()
    if inline:
        print("\nThe same sweep, validating inline at each epoch ...", flush=True)
        epochs = sum(one.story.iteration for one in sweep.ranking())
        ours = Spent(seconds, epochs, best.score)
        print("", *compared(ours, run_alone(trials, seed)), sep="\n")
    print("", *next_commands(sweep.source or results.experiment_path), sep="\n")


class Progress(tune.Callback):
    """Prints how far the sweep is: after a second, and every 10 s from then on."""

    def __init__(self) -> None:
        #: Whose validations are counted.
        self.validation: tunekit.ValidationCallback | None = None
        self._news, self._began = News(1.0, 10.0), time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        """Print nothing in another process: Tune pickles callbacks."""
        return (Progress, ())

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Print a line, if it is time."""
        now = time.monotonic()
        if self.validation is not None and self._news.due(now):
            ended = sum(trial.status in ("TERMINATED", "ERROR") for trial in trials)
            runs = sum(trial.status == "RUNNING" for trial in trials)
            told = f"{duration(now - self._began)}: {ended} trials ended, {runs} running."
            print(f"{told} {counted(self.validation.summary())}", flush=True)


def ranking(sweep: tunekit.Sweep) -> list[str]:
    """Return the trials as the lines of a table, ranked by the best checkpoint of each."""
    ranked = sweep.ranking()
    parameters = parameters_of([one.hyperparameters for one in ranked], {})
    names = [name for name, one in parameters.items() if len(ranked) == 1 or not one.single]
    rows = [["rank", "trial", "accuracy", "at epoch", "of", *names]]
    for one in ranked:
        known = one.hyperparameters
        rows.append(
            [
                "" if one.rank is None else str(one.rank),
                one.name,
                "" if one.best_value is None else f"{one.best_value:.2%}",
                "" if one.best is None else str(one.best.iteration),
                str(one.story.iteration),
                *(setting(known[name]) if name in known else "" for name in names),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def winner(best: tunekit.reading.best.BestCheckpoint, tested: float | None) -> str:
    """Say which checkpoint is the best; ``tested``: its accuracy on the test images."""
    told = (
        f"The best checkpoint is that of trial {best.trial_id} at epoch {best.iteration}: right on "
        f"{best.score:.2%} of the validation images"
    )
    return told + ("." if tested is None else f", and on {tested:.2%} of the test images.")


def next_commands(path: str) -> list[str]:
    """Return what to type next.

    Example:
        >>> next_commands("/my results/digits")[1:]
        ["  tunekit status '/my results/digits'",
         "  tunekit best '/my results/digits'",
         "  tunekit report '/my results/digits' --open"]
    """
    where = shlex.quote(path)
    commands = (f"status {where}", f"best {where}", f"report {where} --open")
    return ["Next:", *(f"  tunekit {command}" for command in commands)]
