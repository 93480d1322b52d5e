"""Requests by hand, put into a sweep's folder at certain moments of a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from tests.sweeps import index_of
from tunekit.core.events import Asked
from tunekit.journal.journal import events_in


def name_of(number: int) -> str:
    return f"{number:020d}-{number:08x}"


def put(home: Path, number: int, action: str, trial_id: str = "", **config: Any) -> None:
    """Ask for something, as ``tunekit.journal.requests.ask`` does; each number once."""
    folder = home / "requests"
    folder.mkdir(exist_ok=True)
    asked = {"action": action, "trial_id": trial_id, "config": config}
    draft = folder / f".{number}.draft"
    draft.write_text(json.dumps(asked))
    draft.rename(folder / f"{name_of(number)}.json")


def answers(home: Path) -> list[Asked]:
    """What the driver has answered, as the journal has it."""
    return [event for event in events_in(home) if isinstance(event, Asked)]


#: For each request: when it is put, given the trials by number; the action; the trial; a config.
Script = list[tuple[Callable[[dict[int, Any]], Any], str, int, dict[str, Any]]]


class Asks(tune.Callback):
    """Asks for something as soon as a test says so; comes before the ValidationCallback.

    Args:
        home: The experiment's folder.
        script: For each request, in order: when it is put (given the trials by number), the action,
            the number of the trial, and the hyperparameters. One waits for the one before.
    """

    def __init__(self, home: Path, script: Script):
        self.home, self.script = home, list(script)
        self.count = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
        known = {index_of(trial): trial for trial in trials}
        while self.count < len(self.script):
            when, action, number, config = self.script[self.count]
            if action != "add" and number not in known:
                return
            if not when(known):
                return
            trial_id = "" if action == "add" else known[number].trial_id
            self.count += 1
            put(self.home, self.count, action, trial_id, **config)
