"""Compare the effect of late scores on PBT and ASHA in stock Tune and in tunekit.

    python scripts/exactness.py

The weights of a trial are a version number, and the score of each version is known. Scores arrive 0
to 10 iterations late. With each report, stock Tune's scheduler receives the newest available score;
tunekit's scheduler receives each score with the report that it belongs to. The script counts clones
whose weights are not those that were ranked, and scores in ASHA's rungs that come from another
iteration than the rung's. Tune's own controller runs both in this process, without Ray.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tunekit
from tests.support.fakes import FakeClock, FakeExecutor
from tests.support.local_sweep import LocalSweep
from tests.support.versioned import Versioned, Versions, score_of, version_at

MOST_LAG = 10
LENGTH = 30


def lag(*what):
    """Return a random delay for the score of a report, in iterations."""
    return random.Random(str(what)).randint(0, MOST_LAG)


class Late:
    """Adds the newest available score to each report, as a callback would do."""

    def on_trial_result(self, controller, trial, result):
        """Pass the result to the scheduler, unless there is no score yet."""
        now, past = result["training_iteration"], self.__dict__.setdefault("past", {})
        reports = past.setdefault(trial.trial_id, {})
        reports[now] = result["version"]
        there = [i for i in reports if i <= now and i + lag(trial.trial_id, reports[i]) <= now]
        if not there:
            return "CONTINUE"
        version = reports[max(there)]
        self.__dict__.setdefault("ranked", {})[trial.trial_id] = version
        return super().on_trial_result(controller, trial, {**result, "accuracy": score_of(version)})


class StockPBT(Late, PopulationBasedTraining):
    """Records the ranked and the cloned version for each exploit."""

    def _exploit(self, controller, trial, donor):
        cloned = version_at(self._trial_state[donor].last_checkpoint.path)
        self.__dict__.setdefault("clones", []).append((self.ranked[donor.trial_id], cloned))
        self.past[trial.trial_id] = {}
        super()._exploit(controller, trial, donor)


class StockASHA(Late, ASHAScheduler):
    """ASHA with late scores."""


def pbt(kind=PopulationBasedTraining):
    """Return a PBT scheduler that exploits every other iteration."""
    return kind(
        time_attr="training_iteration",
        metric="accuracy",
        mode="max",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(0.0, 1.0)},
        quantile_fraction=0.4,
        log_config=False,
    )


def asha(kind=ASHAScheduler):
    """Return an ASHA scheduler with rungs at 1, 3, 9 and 27."""
    return kind(metric="accuracy", mode="max", max_t=27, grace_period=1, reduction_factor=3)


def sweep(scheduler, folder, seed, *, validated, trials):
    """Run one sweep; return it with the reports of its trials, and its validations."""
    random.seed(seed)
    np.random.seed(seed)
    clock, versions, callbacks, validation = FakeClock(), Versions(), [], None
    executor = FakeExecutor(
        clock,
        lambda attempt: {"accuracy": score_of(version_at(attempt.request.path))},
        lambda attempt: lag(attempt.request.trial_id, attempt.request.report["version"]),
    )
    if validated:
        validation = tunekit.ValidationCallback(
            tunekit.ValidationConfig(fn=lambda checkpoint: {}), executor=executor, clock=clock
        )
        scheduler = tunekit.ValidatedScheduler(scheduler)
        callbacks = [tunekit.EveryIterations(1), validation, versions]
    local = LocalSweep(
        Versioned,
        folder,
        clock,
        param_space={"lr": tune.uniform(0.0, 1.0)},
        num_samples=trials,
        scheduler=scheduler,
        callbacks=callbacks or [versions],
        seconds=lambda trial, method: 1.0 if method == "train" else 0.0,
        next_due=executor.next_due,
        stop={"training_iteration": LENGTH},
        seed=seed,
    )
    return local.run(most=100_000), versions, validation


def clones(folder, seeds):
    """Return (exploits, exact exploits) of stock PBT and of tunekit's."""
    stock, ours = [0, 0], [0, 0]
    for seed in range(seeds):
        scheduler = pbt(StockPBT)
        sweep(scheduler, folder / f"stock{seed}", seed, validated=False, trials=8)
        made = scheduler.__dict__.get("clones", [])
        stock[0] += len(made)
        stock[1] += sum(ranked == cloned for ranked, cloned in made)
        _, versions, validation = sweep(
            pbt(), folder / f"ours{seed}", seed, validated=True, trials=8
        )
        exact = [versions.is_exact(exploit) for exploit in validation.ledger.state.ancestry]
        ours[0] += sum(found is not None for found in exact)
        ours[1] += sum(found is True for found in exact)
    return stock, ours


def rungs(folder, seeds):
    """Return (scores, scores of the rung's own iteration) by rung, of stock and tunekit's ASHA."""
    counts = []
    for validated in (False, True):
        count: dict[int, list[int]] = {}
        for seed in range(seeds):
            scheduler = asha(ASHAScheduler if validated else StockASHA)
            _, versions, _ = sweep(
                scheduler, folder / f"asha{validated}{seed}", seed, validated=validated, trials=27
            )
            for milestone, scores in scheduler._brackets[0]._rungs:
                for trial_id, score in scores.items():
                    made = [
                        score_of(report["version"])
                        for report in versions.reports[trial_id]
                        if report["training_iteration"] == milestone
                    ]
                    both = count.setdefault(int(milestone), [0, 0])
                    both[0] += 1
                    both[1] += score in made
        counts.append(dict(sorted(count.items())))
    return counts


def main(argv=None):
    """Run all sweeps and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of sweeps of each kind (5)")
    seeds = parser.parse_args(argv).seeds
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stock, ours = clones(folder, seeds)
        filled = rungs(folder, seeds)
    print(f"Population based training, scores 0 to {MOST_LAG} iterations late:")
    for who, (all_of_them, exact) in (("stock Tune", stock), ("tunekit", ours)):
        other = all_of_them - exact
        share = other / all_of_them if all_of_them else 0.0
        print(f"  {who:10}  {all_of_them:4} exploits, {other:4} with other weights ({share:.0%})")
    print("ASHA, scores from another iteration than the rung's:")
    for who, count in zip(("stock Tune", "tunekit"), filled, strict=True):
        shown = ", ".join(f"{m}: {n - own} of {n}" for m, (n, own) in count.items())
        print(f"  {who:10}  {shown}")
    return stock, ours, filled


if __name__ == "__main__":
    main()
