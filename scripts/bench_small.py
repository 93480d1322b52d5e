"""What a small machine costs: the README's example on one CPU against two, on one GPU against two.

    python scripts/bench_small.py
    python scripts/bench_small.py --scheduler asha --on-pending wait --trials 4

Each has a Ray of its own, in a process of its own; they alternate. On one CPU, and on one GPU that
both need, a trial and a validation can only run one after the other. The goal is no more than twice
the time of two, with every checkpoint validated. Ray starts a process for each task that takes a
GPU; with ``--evaluators 1``, one lives on as long as nothing else needs its place.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining

import tunekit

# What there is; what a trial and a validation take.
VARIANTS = {
    "two CPUs": ({"num_cpus": 2}, {"cpu": 1}, {}),
    "one CPU": ({"num_cpus": 1}, {"cpu": 1}, {}),
    "two GPUs": ({"num_cpus": 2, "num_gpus": 2}, {"gpu": 1}, {"num_gpus": 1}),
    "one GPU": ({"num_cpus": 1, "num_gpus": 1}, {"gpu": 1}, {"num_gpus": 1}),
}
# With which one each is compared.
REFERENCE = {
    "two CPUs": "two CPUs",
    "one CPU": "two CPUs",
    "two GPUs": "two GPUs",
    "one GPU": "two GPUs",
}
RATES = [0.05, 0.25, 0.9]
ITERATIONS, EVERY = 6, 2


def train(config):
    weights = {"w": 0.0}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(f"{folder}/w.json") as file:
            weights = json.load(file)
    tunekit.checkpoint_with(
        lambda directory: (directory / "w.json").write_text(json.dumps(weights))
    )
    while weights.get("n", 0) < ITERATIONS:
        weights["n"] = weights.get("n", 0) + 1
        weights["w"] += config["lr"] * (1 - weights["w"])
        tune.report({"loss": (1 - weights["w"]) ** 2})


def validate(checkpoint):
    with checkpoint.as_directory() as folder, open(f"{folder}/w.json") as file:
        return {"accuracy": 1 - abs(0.8 - json.load(file)["w"])}


def scheduler(name: str):
    if name == "asha":
        return ASHAScheduler(max_t=ITERATIONS, grace_period=EVERY, reduction_factor=2)
    if name == "pbt":
        return PopulationBasedTraining(
            perturbation_interval=EVERY,
            hyperparam_mutations={"lr": tune.uniform(0.01, 1.0)},
        )
    return FIFOScheduler()


def run(options) -> None:
    """One variant, in a process of its own; the last line that it prints is what came of it."""
    machine, trial, validation = VARIANTS[options.variant]
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    ray.init(**machine, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    rates = [RATES[n % len(RATES)] for n in range(options.trials)]
    tuner = tunekit.Tuner(
        tune.with_resources(train, trial),
        param_space={"lr": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=scheduler(options.scheduler),
            reuse_actors=options.reuse_actors,
        ),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
        validation_config=tunekit.ValidationConfig(
            fn=validate,
            on_pending=options.on_pending,
            evaluators=options.evaluators,
            ray_remote_kwargs=validation,
        ),
        checkpoint_policy=tunekit.EveryIterations(EVERY),
    )
    began = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - began
    saved = sum(
        sum(n % EVERY == 0 for n in result.metrics_dataframe["training_iteration"])
        for result in results
    )
    best = results.get_best_result().metrics["accuracy"]
    counts = {name: n for name, n in tuner.validation.summary().items() if n}
    print(json.dumps({"s": seconds, "saved": saved, "counts": counts, "best": best}))
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", choices=["fifo", "asha", "pbt"], default="fifo")
    parser.add_argument("--on-pending", choices=["auto", "wait", "continue"], default="continue")
    parser.add_argument("--trials", type=int, default=len(RATES))
    parser.add_argument("--evaluators", type=int)
    parser.add_argument("--reuse-actors", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--most-s", type=float, default=180.0, help="for one variant")
    parser.add_argument("--variant", choices=VARIANTS, help="this one only, in this process")
    options = parser.parse_args()
    if options.variant:
        run(options)
        return
    told: dict[str, list[dict]] = {variant: [] for variant in VARIANTS}
    for _ in range(options.repeats):
        for variant, runs in told.items():
            runs.append(run_apart(variant, options.most_s))
    seconds = {v: statistics.median(one["s"] for one in runs) for v, runs in told.items()}
    print(f"{'':10}{'seconds':>8}{'ratio':>7}  validations (goal: a ratio of at most 2)")
    for variant, runs in told.items():
        ratio = seconds[variant] / seconds[REFERENCE[variant]]
        last = runs[-1]
        print(
            f"{variant:10}{seconds[variant]:8.1f}{ratio:7.2f}  "
            f"{last['counts']} of {last['saved']} checkpoints, best {last['best']:.3f}"
        )


def run_apart(variant: str, most_s: float) -> dict:
    """What came of one variant; it is ended after so many seconds."""
    command = [sys.executable, __file__, *sys.argv[1:], "--variant", variant]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most_s)
    except subprocess.TimeoutExpired:
        return {"s": float("inf"), "saved": "?", "counts": "has not ended", "best": 0.0}
    if done.returncode:
        sys.exit(f"{variant} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
