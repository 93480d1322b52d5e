"""Compare population based training with random search at equal budget, on handwritten digits.

    .venv/bin/python scripts/pbt_digits.py

Both train the same first configurations from the same weights, half of the population at a time,
and are ranked by validation accuracy. The learning rate is sampled over four decades.

The budget is counted in epochs, those included that were trained and then overwritten. A population
that is not synchronous trains somewhat more or less than its trials' length says, so it runs first,
and random search then trains as many epochs, rounded up to whole epochs of each trial. Trials are
held until their scores are there (on_pending="wait"): were they to train on meanwhile, what they
trained would count, and would be lost when they are overwritten. A seed fixes the first
configurations, the weights, the batches and the draws of the mutations; which trial is compared
when is a matter of timing, so population based training comes out slightly different each time.

Accuracy is that of images as they are and moved by a pixel in each of eight directions: 5400 views
of 600 images that no network has learned from. (Accuracy on images as they are soon says the same
of most networks.) The accuracy on the test images is that of the same checkpoint, the last of the
trial whose last validated accuracy is the best; nothing is chosen by it.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from typing import NamedTuple

import numpy as np
import ray
from harness import arguments, start_ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

import tunekit
from tunekit.demo import perceptron


class Outcome(NamedTuple):
    """What came of a sweep."""

    validated: float  # accuracy of the best trial's last checkpoint
    test: float  # of the same checkpoint
    exploits: int
    epochs: int  # trained, by all trials together
    seconds: float
    first_losses: list[float]  # of each trial's first epoch
    best: tune.Result


def sweep(
    *, exploits: bool, seed: int, population: int = 8, epochs: int = 48, interval: int = 4
) -> Outcome:
    """Train a population, half of it at a time; without exploits it is random search.

    Needs a running Ray with more than ``population / 2 + 1`` CPUs, logical ones.
    """
    # One CPU remains for validation, and is too little for a trial. (A limit on concurrent trials
    # would limit those that exist, paused ones included: the population, to half of it.)
    cpus = (ray.cluster_resources()["CPU"] - 1) / (population // 2)
    scheduler = FIFOScheduler()
    if exploits:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=interval,
            hyperparam_mutations=perceptron.SPACE,
            perturbation_factors=(0.5, 2.0),  # 0.8 and 1.2 get nowhere in four decades
        )
    random.seed(seed)  # PopulationBasedTraining mutates by these
    np.random.seed(seed)
    tuner = tunekit.Tuner(
        tune.with_resources(perceptron.Perceptron, {"cpu": cpus}),
        param_space={**perceptron.SPACE, "seed": seed},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=population,
            scheduler=scheduler,
            search_alg=BasicVariantGenerator(random_state=seed),
            reuse_actors=True,  # a clone, and a trial that resumes, need no new process
        ),
        run_config=tune.RunConfig(
            storage_path=tempfile.mkdtemp(prefix="tunekit-pbt-"),
            stop={"training_iteration": epochs},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
        validation_config=tunekit.ValidationConfig(fn=perceptron.validate, on_pending="wait"),
        checkpoint_policy=tunekit.EveryIterations(interval),
    )
    began = time.perf_counter()
    results = tuner.fit()
    seconds = time.perf_counter() - began
    best = results.get_best_result()
    frames = [result.metrics_dataframe for result in results]
    return Outcome(
        validated=best.metrics["accuracy"],
        test=perceptron.accuracy_of(best.checkpoint),
        exploits=len(tuner.validation.lineage),
        epochs=sum(int(frame["iteration_runs"].sum()) for frame in frames),
        seconds=seconds,
        first_losses=[frame["loss"].iloc[0] for frame in frames],
        best=best,
    )


def compare(seed: int, *, population: int, epochs: int, interval: int = 4) -> dict[str, Outcome]:
    """Population based training, and random search with no fewer epochs."""
    pbt = sweep(exploits=True, seed=seed, population=population, epochs=epochs, interval=interval)
    epochs = math.ceil(pbt.epochs / population)
    found = sweep(
        exploits=False, seed=seed, population=population, epochs=epochs, interval=interval
    )
    return {"PBT": pbt, "random": found}


def table(runs: dict[int, dict[str, Outcome]]) -> str:
    """The outcomes, seed by seed, and their medians."""
    lines = [
        "seed  search  validated    test  exploits  epochs  seconds",
        *(
            f"{seed:4}  {name:6}  {o.validated:9.2%}  {o.test:6.2%}  {o.exploits:8}  "
            f"{o.epochs:6}  {o.seconds:7.1f}"
            for seed, outcomes in runs.items()
            for name, o in outcomes.items()
        ),
    ]
    medians = {}
    for name in ("PBT", "random"):
        outcomes = [run[name] for run in runs.values()]
        medians[name] = statistics.median(o.validated for o in outcomes)
        test = statistics.median(o.test for o in outcomes)
        lines.append(f"median  {name:6}  {medians[name]:7.2%}  {test:6.2%}")
    ahead = medians["PBT"] - medians["random"]
    verdict = "better than" if ahead > 0 else "not better than"
    lines.append(
        f"In the median of {len(runs)} seeds, PBT is {verdict} random search: "
        f"{100 * ahead:+.2f} points of validated accuracy."
    )
    return "\n".join(lines)


def main() -> None:
    options = arguments(__doc__, seeds=3, population=8, epochs=48)
    start_ray(2 * (options.population // 2) + 1)
    runs = {
        seed: compare(seed, population=options.population, epochs=options.epochs)
        for seed in range(options.seeds)
    }
    print(table(runs))


if __name__ == "__main__":
    main()
