"""ASHA with each checkpoint validated, and with those that a decision needs only, in one run.

    python scripts/bench_decisions.py

Trials sleep to train, to save and to be validated, so that the ratio of the sweeps' times is what
saving and validating cost. ASHA decides by who comes first: trials begin together, one a little
after the other, so that they come to each rung in the same order, and both sweeps take the same
decisions with on_pending="wait".
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import ray
from ray import train, tune
from ray.tune.schedulers import ASHAScheduler

import tunekit

MAX_T = 81


class Sleeper(tune.Trainable):
    """Trains and saves by sleeping; how good it is, its turn says."""

    def setup(self, config):
        self.ready = Path(config["ready"])
        (self.ready / self.trial_id).touch()

    def step(self):
        if self.iteration == 0:
            while len(list(self.ready.iterdir())) < self.config["together"]:
                time.sleep(0.02)
            time.sleep(self.config["turn"])
        time.sleep(self.config["train_s"])
        return {"loss": 1.0 / (self.iteration + 1)}

    def save_checkpoint(self, checkpoint_dir):
        time.sleep(self.config["save_s"])
        Path(checkpoint_dir, "quality").write_text(
            str(self.iteration * (1 + quality(self.config["turn"])))
        )

    def load_checkpoint(self, checkpoint):
        pass


def quality(turn):
    """How good the trial is that comes at that turn: some are better than those before."""
    return (turn * 5 % 8) / 8


def validate(checkpoint, *, seconds):
    """Sleep, and read the quality."""
    time.sleep(seconds)
    with checkpoint.as_directory() as folder:
        return {"accuracy": float(Path(folder, "quality").read_text())}


class Saves(tune.Callback):
    """Counts checkpoints."""

    def __init__(self):
        self.count = 0

    def on_trial_save(self, iteration, trials, trial, **info):
        self.count += 1


def run(options, every, policy):
    """Run the sweep; its results, checkpoints, validations and seconds."""
    saves = Saves()
    tuner = tunekit.Tuner(
        Sleeper,
        param_space={
            "turn": tune.grid_search(list(range(options.trials))),
            "together": options.trials,
            "ready": tempfile.mkdtemp(),
            "train_s": options.train_s,
            "save_s": options.save_s,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=MAX_T, grace_period=1, reduction_factor=3),
            max_concurrent_trials=options.trials,
        ),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0, callbacks=[saves]),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            task_config=train.ValidationTaskConfig(fn_kwargs={"seconds": options.validation_s}),
            every=every,
            max_in_flight=4,
            on_pending="wait",
        ),
        checkpoint_policy=policy,
    )
    began = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - began
    return results, saves.count, tuner.validation.summary()["validated"], seconds


def main():
    """Run both and print the counts and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--train-s", type=float, default=0.1)
    parser.add_argument("--save-s", type=float, default=0.02)
    parser.add_argument("--validation-s", type=float, default=0.2)
    options = parser.parse_args()
    for name in ("ray.tune", "ray.train", "tunekit"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ray.init(
        num_cpus=options.trials + 4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ran = {
        "each checkpoint": run(options, 1, tunekit.EveryIterations(1)),
        "decisions only": run(options, "decision", tunekit.AtDecisions()),
    }
    print(f"\nASHA, max_t={MAX_T}, {options.trials} trials; the same work in both.")
    print("validated        checkpoints  validations  seconds  lengths of the trials")
    for name, (results, saved, validated, seconds) in ran.items():
        lengths = [r.metrics["training_iteration"] for r in results]
        print(f"{name:15}  {saved:11}  {validated:11}  {seconds:7.1f}  {lengths}")
    each, few = ran.values()
    full = [r for r in few[0] if r.metrics["training_iteration"] == MAX_T]
    per_trial = [int(r.metrics_dataframe["accuracy"].notna().sum()) for r in full]
    print(f"A trial that runs to the end is validated {per_trial[0]} times instead of {MAX_T}.")
    print(f"The sweep takes {few[3] / each[3]:.2f} of the time.")


if __name__ == "__main__":
    main()
