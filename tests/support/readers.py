"""Sweeps that are only a journal, and ways to read them: commands, and local validations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

import tunekit
from tests.support.events import ended, processed, reported, requested, saved
from tests.support.fakes import FakeExecutor
from tunekit.cli import commands
from tunekit.core.events import TrialAdded
from tunekit.following import loop
from tunekit.journal.journal import Journal
from tunekit.journal.storage import LocalFolder

#: The options of a reader that ranks as the sweep does.
NOTHING = {"metric": None, "mode": None}


def session(home: Path, *, metric: str = "accuracy", **options: Any) -> Journal:
    """Begin a session of a sweep that is ranked by ``metric``."""
    about = {"time": 1e9, "required": [metric], "mode": "max"}
    return Journal(LocalFolder(home), about=about, **options)


def trial(journal: Journal, name: str, value: float | None = None, **config: Any) -> None:
    """Add a trial, with a score."""
    journal.append(TrialAdded(time=1e9, trial_id=name, config=config, folder=f"train_{name}"))
    if value is not None:
        score(journal, name, 1, value)


def score(
    journal: Journal,
    name: str,
    iteration: int,
    score: float | Mapping[str, Any] | None,
    *,
    checkpoint: str = "",
    run: int = 1,
    **failure: Any,
) -> None:
    """Let a trial report, and Tune process that with its score, or with a ``failure``."""
    time, at = 1e9 + iteration, {"trial": name, "run": run}
    known = {"checkpoint": checkpoint or f"./train_{name}/checkpoint_{iteration:06d}"}
    end = ended(iteration, time + 1, {} if score is None else score, **at)
    for event in (
        reported(iteration, time, trial=name),
        structs.replace(saved(iteration, time, **at), **known),
        structs.replace(requested(iteration, time, **at), **known),
        structs.replace(end, status="failed", **failure) if score is None else end,
        processed(iteration, time + 1, ranked=score is not None, **at, **known),
    ):
        journal.append(event)


def tunekit_(*arguments: Any) -> Result:
    """Run ``tunekit ARGUMENTS``; return the result."""
    result = CliRunner().invoke(commands.tunekit, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def validate_here(
    patch: pytest.MonkeyPatch, make: Callable[..., FakeExecutor] = FakeExecutor
) -> list[FakeExecutor]:
    """Let later validations run in this process; return the executors, once they are made."""
    made: list[FakeExecutor] = []

    def executor_of(config: tunekit.ValidationConfig) -> FakeExecutor:
        def validate(attempt: Any) -> Any:
            return config.fn(attempt.request.checkpoint, **attempt.request.kwargs)

        made.append(make(time, validate))
        return made[-1]

    patch.setattr(loop, "executor_of", executor_of)
    patch.setattr(loop, "_start_ray", lambda *asked: None)
    patch.setattr(loop, "_WAIT_S", 0.0)
    return made
