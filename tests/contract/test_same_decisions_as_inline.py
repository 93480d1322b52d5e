"""With ``on_pending="wait"``, each decision is the same as with inline validation."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)

from tests.support.fakes import FakeClock
from tests.support.heard import Heard, listen
from tests.support.local_sweep import LocalSweep, NotOver, index_of
from tests.support.modes import Mode
from tests.support.schedulers import CASES, asha, median, pbt, seed_all, space
from tests.support.seeds import seeds
from tests.support.sweeps import Plan
from tests.support.trainables import Counting, Endless, quality
from tunekit.core.halving import milestones
from tunekit.core.validation import Attempt
from tunekit.policies import AtDecisions
from tunekit.schedulers import PromotionASHA

SCHEDULERS = {
    **{name: partial(CASES[name].make, None) for name in ("hyperband", "pbt", "pbt-sync", "asha")},
    "hyperband-halving": lambda: HyperBandScheduler(max_t=16, reduction_factor=2),
    "asha-slow": partial(asha, max_t=27, grace_period=2, reduction_factor=2),
    "median": partial(median, grace_period=2),
}


def spent(seed: int, index: int, iteration: int, on: str) -> float:
    """Seconds, different for each iteration of each trial: they fix the order of arrival."""
    return 1 + 10 * random.Random(f"{on}/{seed}/{index}/{iteration}").random()


def training_s(seed: int, *, validates: bool = False):
    """Return the seconds of each method: of an iteration, and of its validation if inline."""
    calls: Counter[int] = Counter()  # a clone's iterations repeat those of another trial

    def seconds(trial, method):
        if method != "train":
            return 0.0
        index = index_of(trial)
        calls[index] += 1
        trained = spent(seed, index, calls[index], "training")
        return trained + validates * spent(seed, index, calls[index], "validation")

    return seconds


def validation_s(seed: int):
    """Return the seconds of each validation of a trial, which has one in each iteration."""
    calls: Counter[int] = Counter()

    def seconds(attempt: Attempt) -> float:
        index = int(attempt.request.trial_id[-5:])
        calls[index] += 1
        return spent(seed, index, calls[index], "validation")

    return seconds


def run_inline(folder, base, trainable, seed, trials, slots, *, takes_time=True):
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
        seconds=training_s(seed, validates=takes_time),
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
@pytest.mark.parametrize("mode", [Mode.WAIT, Mode.WAIT_PAUSED])
def test_scheduler_with_wait_decides_exactly_as_with_inline_validation(
    tmp_path, name, mode, trainable
):
    decided = 0
    for seed in seeds(1):
        trials = 12
        # A trial that pauses, or ends by itself, makes room for the next one before its score is
        # there; the order of arrival is the same as inline only where that does not matter.
        ended_by_scheduler = trainable is Endless and name.startswith("asha")
        slots = 4 if mode is Mode.WAIT and ended_by_scheduler else trials
        inline, lengths, configs = run_inline(
            tmp_path / f"inline{seed}", SCHEDULERS[name](), trainable, seed, trials, slots
        )
        seed_all(seed)
        beside = (
            Plan(tmp_path / f"beside{seed}", SCHEDULERS[name](), mode, trials=trials, seed=seed)
            .training(trainable, seconds=training_s(seed), slots=slots)
            .validating(seconds=validation_s(seed))
            .tuning(stop={"training_iteration": 30}, **space())
            .run()
        )
        assert beside.heard.results == inline.results, seed
        assert {index_of(t): t.config for t in beside.trials} == configs
        assert beside.lengths() == lengths
        assert sorted(beside.heard.ends) == sorted(inline.ends)
        decided += sum(decision != "CONTINUE" for *_, decision in inline.results)
    assert decided, "the scheduler decided nothing: the test shows nothing"


# Only what decides -------------------------------------------------------------------------------


class Leaps(Endless):
    """Its own time grows by leaps, or stands still."""

    leaps: list[float] = [1.0]

    def step(self) -> dict[str, Any]:
        report = super().step()
        number = self.trial_name.rsplit("_", 1)[1]
        draws = (random.Random(f"{number}/{step + 1}") for step in range(self.steps))
        return {**report, "t": sum(draw.choice(self.leaps) for draw in draws)}


def halving(draw: random.Random) -> dict[str, Any]:
    known = {"time_attr": "t", "max_t": draw.randint(20, 40), "grace_period": draw.randint(1, 5)}
    return {**known, "reduction_factor": draw.choice([1.3, 1.5, 2, 3])}


def drawn_asha(draw: random.Random) -> TrialScheduler:
    more = {"brackets": draw.randint(1, 3), "stop_last_trials": draw.random() < 0.5}
    return ASHAScheduler(**halving(draw), **more)


def drawn_promotion(draw: random.Random) -> TrialScheduler:
    known = halving(draw)
    rungs = milestones(known["grace_period"], known["max_t"], known["reduction_factor"])
    return PromotionASHA(**known, brackets=min(draw.randint(1, 3), len(rungs) + 1))


def drawn_hyperband(draw: random.Random) -> TrialScheduler:
    max_t, eta = draw.choice([(9, 3), (16, 2), (27, 3), (16, 4)])
    known = {"max_t": max_t, "reduction_factor": eta, "stop_last_trials": draw.random() < 0.5}
    return HyperBandScheduler(time_attr="t", **known)


def drawn_pbt(draw: random.Random) -> TrialScheduler:
    times = {"perturbation_interval": draw.choice([1, 3, 4, 7.5])}
    times |= {"burn_in_period": draw.choice([0, 2, 6]), "synch": draw.random() < 0.5}
    return pbt(time_attr="t", quantile_fraction=draw.choice([0.0, 0.25, 0.5]), **times)


def books(base: TrialScheduler) -> Any:
    """Return what changes when a scheduler uses a score; HyperBand keeps each."""
    match base:
        case ASHAScheduler():
            return [[(at, dict(own)) for at, own in one._rungs] for one in base._brackets]
        case PromotionASHA():
            return base.debug_string()
        case PopulationBasedTraining():
            names = ("last_perturbation_time", "last_train_time", "last_score")
            states = [[getattr(one, name) for name in names] for one in base._trial_state.values()]
            return states, base._next_perturbation_sync, base._num_perturbations
    return None


def watch(base: TrialScheduler) -> list[bool]:
    """Return of each result, as it comes, whether the scheduler has used it."""
    used, on_result = [], base.on_trial_result

    def on_trial_result(controller: Any, trial: Any, result: dict[str, Any]) -> str:
        before = books(base)
        decision = on_result(controller, trial, result)
        used.append(decision != TrialScheduler.CONTINUE or books(base) != before)
        return decision

    base.on_trial_result = on_trial_result
    return used


def decisions(heard: Heard) -> list[tuple[int, int, float, str]]:
    return [one for one in heard.results if one[3] != TrialScheduler.CONTINUE]


@pytest.mark.parametrize("make", [drawn_asha, drawn_promotion, drawn_hyperband, drawn_pbt])
def test_scheduler_with_when_decisions_decides_as_inline_and_uses_every_score(tmp_path, make):
    compared = 0
    for seed in seeds(2, make.__name__):
        draw = random.Random(seed)
        leaps = draw.sample([0.0, 0.5, 1.0, 1.0, 2.5, 8.0], 3)
        trainable = type("Leaps", (Leaps,), {"leaps": leaps})
        stock, few = make(random.Random(seed)), make(random.Random(seed))
        folder = tmp_path / f"inline{seed}"
        try:
            inline, lengths, configs = run_inline(
                folder, stock, trainable, seed, 5, 5, takes_time=False
            )
        except NotOver:  # stock Tune waits for ever if trials pause for one that ends meanwhile
            assert make is drawn_hyperband or stock._synch
            continue
        compared += 1
        used = watch(few)
        seed_all(seed)
        ran = (
            Plan(tmp_path / f"few{seed}", few, Mode.WAIT, trials=5, seed=seed)
            .training(trainable, seconds=training_s(seed), saves=AtDecisions())
            .validating(seconds=0.0, when="decisions")
            .tuning(stop={"training_iteration": 30}, **space())
            .run()
        )
        assert decisions(ran.heard) == decisions(inline), seed
        assert ran.lengths() == lengths and books(few) == books(stock), seed
        assert {index_of(t): t.config for t in ran.trials} == configs, seed
        assert make is drawn_hyperband or all(used), f"{seed}: a score was computed for nothing"
    assert compared
