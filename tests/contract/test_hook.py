"""Callbacks hear of each validated result once, in iteration order, whatever happens."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tests.contract.test_pbt import run as run_pbt
from tests.kills import run_killed
from tests.sweeps import Ran, index_of, sweep


class Hears(tune.Callback):
    """Writes down what it hears, and the trials' places at that time."""

    def __init__(self) -> None:
        self.heard: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.scores: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
        self.settled: list[str] = []
        self.restored: dict[str, list[tuple[int, int]]] = {}

    def on_trial_validated(self, trial: Trial, report: Any, metrics: Any) -> None:
        assert trial.trial_id not in self.settled
        place = (report["generation"], report["training_iteration"])
        assert "accuracy" not in report and "config" in report
        self.heard[trial.trial_id].append(place)
        self.scores[trial.trial_id][place] = metrics["accuracy"]

    def on_trial_settled(self, trial: Trial) -> None:
        self.settled.append(trial.trial_id)

    def on_trial_restored(self, trial: Trial, told: Any) -> None:
        self.restored[trial.trial_id] = [
            (one.report["generation"], one.report["training_iteration"])
            for one in told
            if one.metrics is not None
        ]


def in_any_order(attempt: Any) -> float:
    return random.Random(attempt.id).uniform(0.1, 9.0)


def check(ran: Ran, hears: Hears) -> None:
    for trial in ran.trials:
        heard = hears.heard[trial.trial_id]
        assert heard == sorted(heard)
        assert hears.scores[trial.trial_id] == ran.scores()[index_of(trial)]
        assert hears.settled.count(trial.trial_id) == 1


@pytest.mark.parametrize("on_pending", ["continue", "wait", "wait-paused"])
def test_scores_in_any_order_are_heard_in_order(tmp_path, on_pending):
    hears = Hears()
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        on_pending=on_pending,
        validation_s=in_any_order,
        more_callbacks=(hears,),
    )
    check(ran, hears)
    assert all(len(heard) == 9 for heard in hears.heard.values())


def test_failed_validations_and_trials_hold_nothing_back(tmp_path):
    def validate(attempt: Any) -> Any:
        if random.Random(attempt.request.id).random() < 0.3:
            return RuntimeError("fails")
        return {"accuracy": 0.5}

    hears = Hears()
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        validation_s=in_any_order,
        more_callbacks=(hears,),
        param_space={"fail_at": tune.grid_search([None, 4, 7])},
        trials=3,
        settings={"max_retries": 0},
    )
    errored = [trial for trial in ran.trials if trial.status == Trial.ERROR]
    assert len(errored) == 6
    check(ran, hears)


def test_a_name_that_comes_late_settles_no_trial_twice(tmp_path):
    def validate(attempt: Any) -> Any:
        late = attempt.request.iteration == 9 and attempt.request.trial_id.endswith("3")
        return {"accuracy": 0.5, **({"late": 1.0} if late else {})}

    hears = Hears()
    ran = sweep(
        tmp_path,
        FIFOScheduler(),
        validate=validate,
        validation_s=lambda attempt: 1.0 + 50 * attempt.request.trial_id.endswith("3"),
        more_callbacks=(hears,),
        trials=4,
    )
    assert "late" in ran.validation.history.names
    check(ran, hears)


def test_generations_are_heard_one_after_the_other(tmp_path):
    hears = Hears()
    ran, _ = run_pbt(tmp_path, more_callbacks=(hears,))
    assert len(ran.validation.engine.ancestry)
    for trial in ran.trials:
        heard = hears.heard[trial.trial_id]
        assert heard == sorted(heard) and len(set(heard)) == len(heard)
        assert hears.scores[trial.trial_id] == ran.scores()[index_of(trial)]
    assert any(generation for heard in hears.heard.values() for generation, _ in heard)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_heard_twice_after_a_restore(tmp_path, seed):
    lives: list[Hears] = []
    draw = random.Random(seed)

    def made(folder: Path, **options: Any) -> Ran:
        lives.append(Hears())
        return sweep(
            folder,
            FIFOScheduler(),
            validation_s=in_any_order,
            more_callbacks=(lives[-1],),
            trials=4,
            run=False,
            listening=False,
            saved_every_s=draw.choice([0.0, float("inf")]),
            **options,
        )

    moments = (draw.randrange(20, 120) for _ in itertools.count())
    ran, kills = run_killed(tmp_path, made, itertools.islice(moments, 3))
    assert kills
    for trial in ran.trials:
        heard = [place for hears in lives for place in hears.heard[trial.trial_id]]
        assert heard == sorted(set(heard))
        # A driver that died between recording a result and telling of it has told nobody.
        assert len(heard) >= 9 - kills
        told = lives[-1].restored.get(trial.trial_id, [])
        assert told + lives[-1].heard[trial.trial_id] == [(0, i) for i in range(1, 10)]
