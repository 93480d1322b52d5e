"""Count the iterations until a sweep reaches an earlier best score, with and without a warm start.

    PYTHONPATH=. python scripts/bench_warm.py                 # 20 seeds: about five minutes

The sweeps run in virtual time on the ten hyperparameters and the curves of ``tests/realistic.py``,
with different validation noise in each sweep (standard deviation 0.006). A sweep has 24 trials on
eight slots under ASHA, with random configurations or OptunaSearch; a population has eight trials,
and changes two of the hyperparameters. Both sweeps of a seed draw other configurations than the
earlier one. A sweep that never reaches the score counts with all of its iterations. *ratio* is the
geometric mean over seeds of warm to scratch, with a 95 % interval.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import arguments, quiet
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

import tunekit
from tests.realistic import SPACE, Net, _curve
from tests.sweeps import sweep
from tunekit._ray.tuner import settings_of
from tunekit.core.t_distribution import quantile


class Learning(Net):
    """Counts all training of its weights, including training in an earlier sweep."""

    def step(self) -> dict[str, Any]:
        report = super().step()
        return {**report, "trained": self.steps, "done": False}


def asha() -> ASHAScheduler:
    return ASHAScheduler(
        time_attr="training_iteration", max_t=27, grace_period=1, reduction_factor=3
    )


def pbt() -> PopulationBasedTraining:
    changes = {"optimizer": {"learning_rate": SPACE["optimizer"]["learning_rate"]}}
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={**changes, "model": {"dropout": SPACE["model"]["dropout"]}},
    )


WAYS = {
    "random": (asha, 24, lambda seed: BasicVariantGenerator(random_state=seed)),
    "optuna": (asha, 24, lambda seed: OptunaSearch(seed=seed)),
    "population": (pbt, 8, lambda seed: BasicVariantGenerator(random_state=seed)),
}


def run(folder: Path, way: str, seed: int, home: Path | None = None) -> Path:
    """Run a sweep; return its folder."""
    scheduler, trials, search_alg = WAYS[way]
    tuner = tunekit.Tuner(
        Learning,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=trials,
            scheduler=scheduler(),
            search_alg=search_alg(seed),
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "tuner")),
        validation_config=tunekit.ValidationConfig(fn=lambda checkpoint: {}),
        warm_start=home,
    )
    settings = settings_of(tuner)

    def validate(attempt: Any) -> dict[str, float]:
        report = attempt.request.report
        accuracy, _ = _curve(report["config"], report["trained"])
        noise = random.Random(f"{seed}/{attempt.request.id}").gauss(0, 0.006)
        return {"accuracy": accuracy + noise}

    random.seed(seed)  # of PBT
    ran = sweep(
        folder,
        settings.tune_config.scheduler.scheduler,
        trainable=Learning,
        trials=trials,
        param_space=SPACE,
        search_alg=settings.tune_config.search_alg,
        validate=validate,
        slots=8,
        stop={"training_iteration": 27},
        listening=False,
        warm_start=tuner.validation.warm_start,
    )
    return ran.home


def until(home: Path, least: float) -> int:
    """Return the iterations trained when a sweep reached a score, or all if it did not."""
    timeline = tunekit.load(home).timeline
    ended = [
        row["ended"] for row in timeline.validations if row["metrics"].get("accuracy", 0) >= least
    ]
    return timeline.iterations_by(min(ended, default=math.inf))


def main() -> None:
    options = arguments(__doc__, seeds=20, ways=list(WAYS))
    quiet()
    for way in options.ways:
        pairs = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                home = run(Path(folder) / "former", way, 3 * seed)
                best = tunekit.load(home).best().score
                scratch = until(run(Path(folder) / "scratch", way, 3 * seed + 1), best)
                warm = until(run(Path(folder) / "warm", way, 3 * seed + 2, home), best)
            pairs.append((warm, scratch))
            print(way, seed, f"{best:.3f}", warm, scratch, flush=True)
        logs = [math.log(warm / scratch) for warm, scratch in pairs]
        mean, n = statistics.mean(logs), len(logs)
        half = quantile(n - 1) * statistics.stdev(logs) / math.sqrt(n) if n > 1 else math.inf
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        low, middle, high = (math.exp(one) for one in (mean - half, mean, mean + half))
        print(f"{way}: {medians[0]:.0f} iterations warm, {medians[1]:.0f} from scratch (medians);")
        print(f"    ratio {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
