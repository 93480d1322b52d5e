"""Measure the cost of full validations: during the sweep, after it, or instead of quick ones.

    python scripts/bench_stages.py

The sweep runs under ASHA on four logical CPUs. Its trials, quick and full validations only sleep.
It is run in four alternating ways:

- ``quick``: ranked by the quick validation alone;
- ``stage``: the same, with ``Stage("full", every="promoted")``;
- ``after``: as ``quick``, and after the sweep ``Sweep.validate`` validates the same checkpoints in
  full;
- ``full``: ranked by the full validation.

It prints the time of each, and its ratio to ``quick``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
from harness import arguments, in_turn, median, start_ray, table
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import tunekit

LENGTH = 9
WAYS = ("quick", "stage", "after", "full")


def train(config):
    state = {"n": 0, "talent": config["talent"]}
    tunekit.checkpoint_with(
        lambda directory: (directory / "state.json").write_text(json.dumps(state))
    )
    while state["n"] < LENGTH:
        time.sleep(config["train_s"])
        state["n"] += 1
        tune.report({"n": state["n"]})


def accuracy_of(checkpoint):
    with checkpoint.as_directory() as folder, open(f"{folder}/state.json") as file:
        state = json.load(file)
    return state["talent"] * state["n"] / LENGTH


def quick(checkpoint, *, seconds):
    time.sleep(seconds)
    return {"accuracy": accuracy_of(checkpoint)}


def full(checkpoint, *, seconds):
    time.sleep(seconds)
    return {"accuracy": accuracy_of(checkpoint)}


def sweep(way: str, options: argparse.Namespace, folder: str) -> tuple[float, int]:
    """Run one sweep; return its seconds and the number of its full validations."""
    long = ray.train.ValidationTaskConfig(fn_kwargs={"seconds": options.full_s})
    short = ray.train.ValidationTaskConfig(fn_kwargs={"seconds": options.quick_s})
    stages = [tunekit.Stage("full", full, task_config=long)] if way == "stage" else []
    tuner = tunekit.Tuner(
        train,
        param_space={
            "talent": tune.grid_search([(7 * i % 25 + 1) / 25 for i in range(options.trials)]),
            "train_s": options.train_s,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=LENGTH, grace_period=1, reduction_factor=3),
        ),
        run_config=tune.RunConfig(name=way, storage_path=folder, verbose=0),
        validation_config=tunekit.ValidationConfig(
            fn=full if way == "full" else quick,
            task_config=long if way == "full" else short,
            when="decisions",
            stages=stages,
        ),
        checkpoint_policy=tunekit.AtDecisions(),
    )
    began = time.monotonic()
    results = tuner.fit()
    if way == "after":
        loaded = tunekit.load(results.experiment_path)
        loaded.validate(tunekit.ValidationConfig(fn=full, task_config=long), winners(loaded))
    took = time.monotonic() - began
    loaded = tunekit.load(results.experiment_path)
    of_stage = (loaded.validations.stage == "full").sum()
    number = {"stage": of_stage, "after": len(loaded.later_validations)}
    return took, number.get(way, len(loaded.validations) if way == "full" else 0)


def winners(sweep: tunekit.Sweep) -> list[str]:
    """Return the trials that were promoted at least once."""
    decided = sweep.decisions
    return sorted(set(decided.trial_id[decided.decision == "CONTINUE"]))


def main() -> None:
    options = arguments(__doc__, trials=24, train_s=0.5, quick_s=0.2, full_s=3.0, repeats=2)
    start_ray(4)

    def ran(way: str) -> tuple[float, int]:
        with tempfile.TemporaryDirectory() as folder:
            return sweep(way, options, folder)

    found = in_turn(WAYS, ran, options.repeats)
    took = {way: median(seconds for seconds, _ in one) for way, one in found.items()}
    rows = [(way, took[way], took[way] / took["quick"], found[way][-1][1]) for way in WAYS]
    table(("sweep", "seconds", "of quick", "full validations"), rows)


if __name__ == "__main__":
    main()
