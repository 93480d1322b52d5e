"""A validation gets its report's arguments and timeout, and its checkpoint's hyperparameters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from ray import train, tune

from tests.support.journals import read
from tests.support.kills import Killed, killed_after, run_killed
from tests.support.modes import Mode
from tests.support.schedulers import pbt, seed_all
from tests.support.sweeps import Plan
from tests.support.trainables import Counting, quality
from tests.support.versioned import Versioned, score_of, version_at
from tunekit.core.validation import Attempt
from tunekit.training import VALIDATION_KEY


class Telling(Counting):
    """Each report but the second says how to validate its checkpoint."""

    def step(self) -> dict[str, Any]:
        report = super().step()
        if self.steps != 2:
            task = train.ValidationTaskConfig(fn_kwargs={"epoch": self.steps})
            report[VALIDATION_KEY] = task
        return report


def documented(checkpoint, train_run_name: str, epoch: int):
    return {"accuracy": 0.5}


def test_validation_gets_the_arguments_of_its_report_and_fails_untried_without_one(tmp_path):
    task = train.ValidationTaskConfig(fn_kwargs={"train_run_name": "a"})
    plan = Plan(tmp_path, trials=1).training(Telling)
    ran = plan.validating(fn=documented, task_config=task, max_retries=3).run()
    assert [attempt.request.kwargs for attempt in ran.executor.started] == [
        {"train_run_name": "a", "epoch": epoch} for epoch in (1, 3, 4, 5, 6, 7, 8, 9)
    ]
    [failed] = [e for e in read(ran.home, "validation_ended") if e["status"] == "failed"]
    assert failed["attempts"] == 0, "it is not tried, and not tried again"
    assert all(
        name in failed["reason"] for name in ("documented", "'epoch'", "ValidationTaskConfig(")
    )
    assert ran.heard.of(0) == [1, 3, 4, 5, 6, 7, 8], "the trial is judged by its other scores"
    assert ran.heard.ends == [(0, quality(0, 9))]


def test_restored_sweep_passes_its_new_arguments_and_none_is_in_the_journal(tmp_path):
    def make(name: str) -> Plan:
        task = train.ValidationTaskConfig(fn_kwargs={"train_run_name": name}, timeout_s=len(name))
        plan = Plan(tmp_path, trials=1).training(Telling)
        return plan.validating(fn=documented, task_config=task)

    with pytest.raises(Killed), killed_after(20):
        make("wrong").validating(seconds=100.0).run()
    journal = tmp_path / "sweep/journal/000001.jsonl"
    assert "wrong" not in journal.read_text(), "they may be large"
    ran = make("right").restored().run()
    called = [attempt.request for attempt in ran.executor.started]
    assert [request.kwargs for request in called] == [
        {"train_run_name": "right", "epoch": epoch} for epoch in (1, 3, 4, 5, 6, 7, 8, 9)
    ]


class Limited(Counting):
    """Its reports name a limit, no limit, and none."""

    def step(self) -> dict[str, Any]:
        task = train.ValidationTaskConfig
        asked = [task(timeout_s=7), task(), True, None][self.steps % 4]
        return {**super().step(), VALIDATION_KEY: asked}


@pytest.mark.parametrize("kills", [[], [12], [24]])
def test_timeout_of_a_report_replaces_the_default_even_if_it_is_none(tmp_path, kills):
    limits: dict[int, float | None] = {}

    def seconds(attempt: Attempt) -> float:
        """It is asked for when an attempt starts."""
        limits[attempt.request.iteration] = attempt.request.timeout_s
        return 1.0

    def made(folder: Path) -> Plan:
        task = train.ValidationTaskConfig(timeout_s=600)
        plan = Plan(folder, trials=1).training(Limited)
        return plan.validating(seconds=seconds, task_config=task, when=1)

    run_killed(tmp_path, made, iter(kills))
    assert [limits[n] for n in range(1, 9)] == [7, None, 600, 600] * 2


class Relu:
    """A hyperparameter that JSON does not know."""


class Tanh:
    """Another one."""


class Swish:
    """One that no trial begins with."""


class Configured(Versioned):
    """Its checkpoints have the hyperparameters that they were trained with."""

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        super().save_checkpoint(checkpoint_dir)
        known = [self.config["lr"], self.config["layer"].__name__]
        Path(checkpoint_dir, "config.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("mode", "seed"), [(Mode.CONTINUE, 3), (Mode.WAIT, 2), (Mode.WAIT_PAUSED, 2)]
)
def test_validation_gets_the_hyperparameters_that_its_checkpoint_was_trained_with(
    tmp_path, mode, seed
):
    """Also after kills."""
    asked: list[tuple[Any, Any]] = []
    moments = random.Random(seed)

    def validate(attempt: Attempt) -> dict[str, float]:
        path, config = Path(attempt.request.path), attempt.request.config
        told = [config["lr"], getattr(config["layer"], "__name__", config["layer"])]
        asked.append((told, json.loads((path / "config.json").read_text())))
        return {"accuracy": score_of(version_at(path))}

    def make(folder: Path) -> Plan:
        seed_all(seed)
        rate, layers = tune.uniform(0.0, 1.0), [Relu, Tanh, Swish]
        base = pbt(hyperparam_mutations={"lr": rate, "layer": layers})
        plan = Plan(folder, base, mode, trials=6, seed=seed).training(Configured)
        plan = plan.validating(validate, seconds=lambda a: 6 * random.Random(a.id).random())
        space = {"lr": rate, "layer": tune.choice(layers[:2])}
        return plan.tuning(stop={"training_iteration": 12}, param_space=space)

    ran, kills = run_killed(tmp_path, make, (moments.randrange(70, 210) for _ in range(3)))
    assert kills and len(asked) >= 40
    assert len(ran.validation.ledger.state.ancestry) >= 2, "exploits have changed hyperparameters"
    assert all(told == trained for told, trained in asked)
