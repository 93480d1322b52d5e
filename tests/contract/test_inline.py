"""With ``hold`` and ``pause``, every decision is the one that validating inline would give."""

from __future__ import annotations

import random

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule

from tests.doubles import FakeClock
from tests.local_sweep import LocalSweep
from tests.schedulers import pbt, seed_all, space
from tests.seeds import seeds
from tests.sweeps import Counting, Endless, index_of, listen, quality, sweep

SCHEDULERS = {
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "hyperband-halving": lambda: HyperBandScheduler(max_t=16, reduction_factor=2),
    "pbt": lambda: pbt(),
    "pbt-sync": lambda: pbt(synch=True),
    "fifo": lambda: FIFOScheduler(),
    "asha": lambda: ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    "asha-slow": lambda: ASHAScheduler(max_t=27, grace_period=2, reduction_factor=2),
    "median": lambda: MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=2
    ),
}


def spent(seed: int, index: int, iteration: int, on: str) -> float:
    """Seconds, different for each iteration of each trial: they fix the order of arrival."""
    return 1 + 10 * random.Random(f"{on}/{seed}/{index}/{iteration}").random()


def training_s(seed: int, *, inline: bool):
    def seconds(trial, method):
        if method != "train":
            return 0.0
        iteration = trial.last_result.get("training_iteration", 0) + 1
        trained = spent(seed, index_of(trial), iteration, "training")
        return trained + inline * spent(seed, index_of(trial), iteration, "validation")

    return seconds


def run_inline(folder, base, trainable, seed, trials, slots):
    """Stock Tune; the score is in the report, and a report takes the time of both."""

    class Inline(trainable):
        def step(self):
            result = super().step()
            index = int(self.trial_name.rsplit("_", 1)[1])
            return {**result, "accuracy": quality(index, self.steps, seed)}

    heard = listen(base)
    seed_all(seed)
    local = LocalSweep(
        Inline,
        folder,
        FakeClock(),
        num_samples=trials,
        scheduler=base,
        metric="accuracy",
        mode="max",
        seconds=training_s(seed, inline=True),
        slots=slots,
        stop={"training_iteration": 30},
        seed=seed,
        **space(),
    ).run(most=50_000)
    lengths = {index_of(t): t.last_result["training_iteration"] for t in local.trials}
    return heard, lengths, {index_of(t): t.config for t in local.trials}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("trainable", [Counting, Endless])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("on_pending", ["wait", "wait-paused"])
def test_decisions_equal_those_of_validating_inline(tmp_path, name, on_pending, trainable):
    decided = 0
    for seed in seeds(1):
        trials = 12
        # A trial that pauses, or ends by itself, makes room for the next one before its score is
        # there; the order of arrival is the same as inline only where that does not matter.
        ended_by_scheduler = trainable is Endless and name.startswith("asha")
        slots = 4 if on_pending == "wait" and ended_by_scheduler else trials
        inline, lengths, configs = run_inline(
            tmp_path / f"inline{seed}", SCHEDULERS[name](), trainable, seed, trials, slots
        )
        seed_all(seed)
        beside = sweep(
            tmp_path / f"beside{seed}",
            SCHEDULERS[name](),
            on_pending=on_pending,
            trainable=trainable,
            trials=trials,
            seed=seed,
            slots=slots,
            training_s=training_s(seed, inline=False),
            validation_s=lambda attempt, seed=seed: spent(
                seed, index_of_id(attempt), attempt.request.iteration, "validation"
            ),
            stop={"training_iteration": 30},
            **space(),
        )
        assert beside.heard.results == inline.results, seed
        assert {index_of(t): t.config for t in beside.trials} == configs
        assert beside.lengths() == lengths
        assert sorted(beside.heard.ends) == sorted(inline.ends)
        decided += sum(decision != "CONTINUE" for *_, decision in inline.results)
    assert decided or name == "fifo", "the scheduler decided nothing: the test shows nothing"


def index_of_id(attempt) -> int:
    return int(attempt.request.trial_id.rsplit("_", 1)[1])


def test_tune_itself_names_trials_by_their_number(tmp_path):
    ran = sweep(tmp_path, FIFOScheduler(), trials=3)
    assert [index_of(t) for t in ran.trials] == [0, 1, 2]
    assert [int(t.trial_id.rsplit("_", 1)[1]) for t in ran.trials] == [0, 1, 2]
    assert all(t.status == tune.experiment.Trial.TERMINATED for t in ran.trials)
