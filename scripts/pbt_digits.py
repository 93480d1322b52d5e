"""Compare population based training with random search at equal budget, on handwritten digits.

    .venv/bin/python scripts/pbt_digits.py

Both methods train the same initial configurations from the same weights, half of the population at
a time, and are ranked by validation accuracy. The learning rate is sampled over four decades.

The budget is the number of epochs, including epochs that were later overwritten. A population that
is not synchronous trains slightly more or less than the length of its trials, so it runs first;
random search then trains as many epochs, rounded up to whole epochs of each trial. Trials wait for
their scores (on_pending="wait"): otherwise, the epochs trained in the meantime would count, but be
lost when the trial is overwritten. A seed fixes the initial configurations, the weights, the
batches and the draws of the mutations. The order in which trials are compared depends on timing, so
the results of population based training vary slightly.

Accuracy is measured on 600 validation images and their copies, shifted by a pixel in eight
directions: 5,400 views. (On the unshifted images alone, most networks soon have the same accuracy.)
The test accuracy is that of the same checkpoint, the last of the trial with the best last
validation accuracy; it does not influence any choice.
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
    """The results of a sweep."""

    validated: float  # accuracy of the best trial's last checkpoint
    test: float  # of the same checkpoint
    exploits: int
    epochs: int  # trained by all trials together
    seconds: float
    first_losses: list[float]  # of each trial's first epoch
    best: tune.Result


def sweep(
    *, exploits: bool, seed: int, population: int = 8, epochs: int = 48, interval: int = 4
) -> Outcome:
    """Train a population, half of it at a time; without exploits, it is random search.

    Needs a running Ray with more than ``population / 2 + 1`` logical CPUs.
    """
    # One CPU remains for validation, and is too little for a trial. (A limit on concurrent trials
    # would count paused trials, too, and so cut the population to half.)
    cpus = (ray.cluster_resources()["CPU"] - 1) / (population // 2)
    scheduler = FIFOScheduler()
    if exploits:
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=interval,
            hyperparam_mutations=perceptron.SPACE,
            perturbation_factors=(0.5, 2.0),  # 0.8 and 1.2 are too small for four decades
        )
    random.seed(seed)  # PopulationBasedTraining uses both generators
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
            reuse_actors=True,  # clones and resumed trials need no new process
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
    """Run population based training, then random search with at least as many epochs."""
    pbt = sweep(exploits=True, seed=seed, population=population, epochs=epochs, interval=interval)
    epochs = math.ceil(pbt.epochs / population)
    found = sweep(
        exploits=False, seed=seed, population=population, epochs=epochs, interval=interval
    )
    return {"PBT": pbt, "random": found}


def table(runs: dict[int, dict[str, Outcome]]) -> str:
    """Return a table of the outcomes for each seed, and their medians."""
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
        f"{100 * ahead:+.2f} points of validation accuracy."
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
