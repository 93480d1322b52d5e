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
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

from tests.contract.test_pbt import run as run_pbt
from tests.kills import run_killed
from tests.sweeps import Ran, index_of, sweep
from tunekit.core.commands import Notify
from tunekit.core.engine import Engine
from tunekit.core.events import event_of


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


def test_late_scores_of_a_trial_that_was_stopped_are_heard(tmp_path):
    hears = Hears()
    ran = sweep(
        tmp_path,
        AsyncHyperBandScheduler(max_t=9, grace_period=1, reduction_factor=2),
        validation_s=in_any_order,
        more_callbacks=(hears,),
    )
    check(ran, hears)
    delivered = sum(len(ran.heard.of(index_of(trial))) for trial in ran.trials)
    assert sum(map(len, hears.heard.values())) > delivered


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
    assert len(ran.validation.ancestry)
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


def told(*lines):
    """What loggers are given of a journal's lines: the iterations of the scores."""
    engine = Engine()
    commands = [command for line in lines for command in engine.handle(event_of(line))]
    return [one.outcome.request.iteration for one in commands if isinstance(one, Notify)]


def test_a_score_of_an_iteration_that_was_run_again_was_not_told():
    report = {"training_iteration": 5, "generation": 0}
    place = {"id": "a:0:5:1", "trial_id": "a", "iteration": 5, "generation": 0, "run": 1}
    reported = {"event": "reported", "trial_id": "a", "report": report}
    asked = [{"event": "saved", **place}, {"event": "requested", **place}]
    ended = {"event": "ended", "id": "a:0:5:1", "status": "validated", "metrics": {"accuracy": 1}}
    assert told(reported, *asked, ended) == [5]
    assert told(reported, *asked, reported, ended) == []


def test_what_had_overtaken_an_older_score_still_waits():
    events = []
    for i in (1, 2):
        place = {"id": f"a:0:{i}:1", "trial_id": "a", "iteration": i, "generation": 0, "run": 1}
        report = {"training_iteration": i, "generation": 0}
        events += [
            {"event": "reported", "trial_id": "a", "report": report},
            {"event": "saved", **place},
            {"event": "requested", **place},
        ]
    ended = {"event": "ended", "id": "a:0:2:1", "status": "validated", "metrics": {"accuracy": 1}}
    assert told(*events, ended) == []
    assert told(*events, ended, {"event": "ended", "id": "a:0:1:1", "status": "failed"}) == [2]
