"""Requests by hand, put into a sweep's folder at certain moments of a test."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from tests.sweeps import index_of
from tunekit.core.events import Asked
from tunekit.journal.journal import events_in
from tunekit.journal.storage import replace_file

#: For each request: when it is put, given the trials by number; the action; the trial; a config.
Script = list[tuple[Callable[[dict[int, Trial]], Any], str, int, dict[str, Any]]]


def put(home: Path, number: int, action: str, trial_id: str = "", **config: Any) -> str:
    """Ask for something, as ``tunekit.journal.requests.ask`` does; return the request's name."""
    (home / "requests").mkdir(exist_ok=True)
    name = f"{number:020d}-{number:08x}"
    asked = {"action": action, "trial_id": trial_id, "config": config}
    replace_file(home / f"requests/{name}.json", json.dumps(asked).encode())
    return name


def answers(home: Path) -> list[Asked]:
    """What the driver has answered, as the journal has it."""
    return [event for event in events_in(home) if isinstance(event, Asked)]


def reached(number: int, iteration: int) -> Callable[[dict[int, Trial]], bool]:
    """Whether a trial has reported an iteration."""

    def has(trials: dict[int, Trial]) -> bool:
        last = trials[number].last_result or {}
        return bool(last.get("training_iteration", 0) >= iteration)

    return has


def scored(number: int, iteration: int) -> Callable[[dict[int, Trial]], bool]:
    """Whether a trial has a score of an iteration, also before anything has come of it."""

    def has(trials: dict[int, Trial]) -> bool:
        last = (trials[number].last_result or {}) if number in trials else {}
        shown = last.get("validated_iteration", 0)
        return bool(max(shown, getattr(trials.get(number), "scored", 0)) >= iteration)

    return has


class Asks(tune.Callback):
    """Asks, in order, as soon as a test says so; it comes before the ValidationCallback.

    Args:
        home: The experiment's folder.
        script: What is asked, and when.
    """

    def __init__(self, home: Path, script: Script):
        self.home, self.script, self.count = home, list(script), 0
        self.known: dict[int, Trial] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.known = {index_of(trial): trial for trial in trials}
        self.ask()

    def on_trial_validated(self, trial: Trial, report: dict[str, Any], metrics: Any) -> None:
        trial.scored = report["training_iteration"]
        self.ask()

    def ask(self) -> None:
        while self.count < len(self.script):
            when, action, number, config = self.script[self.count]
            if not when(self.known):
                return
            self.count += 1
            trial_id = self.known[number].trial_id if action != "add" else ""
            put(self.home, self.count, action, trial_id, **config)


class AsksAtRandom(tune.Callback):
    """Asks for anything of any trial, again and again, and continues what nothing else would.

    Args:
        home: The experiment's folder.
        seed: Of what it asks.
        most: How often.
    """

    def __init__(self, home: Path, seed: int, most: int = 25):
        self.home, self.most, self.count, self.still = home, most, 0, 0
        self.draw = random.Random(seed)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        left = [trial for trial in trials if not trial.is_finished()]
        runs = any(trial.status in (Trial.PENDING, Trial.RUNNING) for trial in left)
        self.still = 0 if runs or not left else self.still + 1
        if self.still > 100:
            self.still = 0
            for trial in left:
                self.ask("continue", trial)
        elif self.count < self.most and self.draw.random() < 0.2:
            action = self.draw.choice(["stop", "pause", "pause", "continue", "continue", "add"])
            self.ask(action, self.draw.choice(trials))

    def ask(self, action: str, trial: Trial) -> None:
        self.count += 1
        config = dict(trial.evaluated_params or {}) if action == "add" else {}
        put(self.home, self.count, action, trial.trial_id * (action != "add"), **config)
