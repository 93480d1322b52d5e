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
from tests.support.restores import restoring
from tests.support.schedulers import pbt, seed_all
from tests.support.sweeps import Counting, Ran, quality, sweep
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
    ran = sweep(
        tmp_path,
        trainable=Telling,
        trials=1,
        settings={"fn": documented, "task_config": task, "max_retries": 3},
    )
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
    def make(name: str, **more: Any) -> Ran:
        task = train.ValidationTaskConfig(fn_kwargs={"train_run_name": name}, timeout_s=len(name))
        settings = {"fn": documented, "task_config": task}
        return sweep(tmp_path, trainable=Telling, trials=1, settings=settings, **more)

    with pytest.raises(Killed), killed_after(20):
        make("wrong", listening=False, validation_s=lambda attempt: 100.0)
    home = tmp_path / "sweep"
    assert "wrong" not in (home / "journal/000001.jsonl").read_text(), "they may be large"
    ran = make("right", listening=False, **restoring(home))
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
    started: list[Attempt] = []

    def made(folder: Path, **options: Any) -> Ran:
        task = train.ValidationTaskConfig(timeout_s=600)
        ran = sweep(
            folder,
            trainable=Limited,
            listening=False,
            run=False,
            settings={"task_config": task, "when": 1},
            **{"trials": 1, **options},
        )
        ran.executor.started = started
        return ran

    run_killed(tmp_path, made, iter(kills))
    limits = {one.request.iteration: one.request.timeout_s for one in started}
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


@pytest.mark.parametrize(("on_pending", "seed"), [("continue", 3), ("wait", 2), ("wait-paused", 2)])
def test_validation_gets_the_hyperparameters_that_its_checkpoint_was_trained_with(
    tmp_path, on_pending, seed
):
    """Also after kills."""
    asked: list[tuple[Any, Any]] = []
    moments = random.Random(seed)

    def validate(attempt: Attempt) -> dict[str, float]:
        path, config = Path(attempt.request.path), attempt.request.config
        told = [config["lr"], getattr(config["layer"], "__name__", config["layer"])]
        asked.append((told, json.loads((path / "config.json").read_text())))
        return {"accuracy": score_of(version_at(path))}

    def make(folder: Path, **options: Any) -> Ran:
        seed_all(seed)
        layers = [Relu, Tanh, Swish]
        return sweep(
            folder,
            pbt(hyperparam_mutations={"lr": tune.uniform(0.0, 1.0), "layer": layers}),
            on_pending=on_pending,
            trainable=Configured,
            validate=validate,
            validation_s=lambda attempt: 6 * random.Random(attempt.id).random(),
            seed=seed,
            stop={"training_iteration": 12},
            param_space={"lr": tune.uniform(0.0, 1.0), "layer": tune.choice(layers[:2])},
            listening=False,
            run=False,
            **{"trials": 6, **options},
        )

    ran, kills = run_killed(tmp_path, make, (moments.randrange(70, 210) for _ in range(3)))
    assert kills and len(asked) >= 40
    assert len(ran.validation.ledger.state.ancestry) >= 2, "exploits have changed hyperparameters"
    assert all(told == trained for told, trained in asked)
