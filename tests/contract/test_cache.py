"""Sweeps that take scores from a cache: which ones, which not, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest
from ray import train
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

import tunekit
from tests.contract.test_restore import fifo, kill, restored
from tests.invariants import check_journal
from tests.sweeps import Endless, Ran, quality, sweep
from tunekit.core.events import ValidationEnded
from tunekit.core.validation import Attempt
from tunekit.journal.journal import events_in
from tunekit.validating.cache import ValidationCache
from tunekit.validating.context import ValidationContext
from tunekit.validating.fingerprint import fingerprint
from tunekit.validating.process import Call, looked_up, result_of

LOCAL = pyarrow.fs.LocalFileSystem()
BATCH_OF_8 = train.ValidationTaskConfig(fn_kwargs={"batch": 8})


def index_of(attempt: Attempt) -> int:
    return int(attempt.request.trial_id.rsplit("_", 1)[-1], 16)


def score(attempt: Attempt) -> dict[str, Any]:
    return {"accuracy": quality(index_of(attempt), attempt.request.iteration)}


def half(attempt: Attempt) -> dict[str, Any]:
    return {"accuracy": score(attempt)["accuracy"] / 2}


def fails(attempt: Attempt) -> dict[str, Any]:
    raise ValueError("no data")


def odd(attempt: Attempt) -> dict[str, Any]:
    return {"accuracy": float("nan")}


class Through:
    """Validates through a cache, as the process of a validation does.

    The content of a checkpoint is the number of its trial and its iteration: those of Tune's class
    trainables tell when they were saved.
    """

    def __init__(self, folder: Path, fn: Callable[[Attempt], Any]):
        self.cache, self.mark = ValidationCache(str(folder / "scores")), fingerprint(fn)
        self.weights, self.fn = folder / "weights", fn
        self.calls: list[str] = []

    def __call__(self, attempt: Attempt) -> Any:
        def call() -> Any:
            self.calls.append(attempt.request.id)
            return self.fn(attempt)

        request = attempt.request
        path = self.weights / f"{index_of(attempt)}-{request.iteration}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "weights").write_text(path.name)
        checkpoint = SimpleNamespace(filesystem=LOCAL, path=str(path))
        told = ValidationContext(request.trial_id, request.config, request.iteration)
        lookup = self.cache.lookup(self.mark, request.kwargs)
        looking = Call(attempt.id, None, checkpoint, {}, told, lookup)
        return looked_up(looking, lambda: result_of(attempt.id, call))


def ran(folder: Path, name: str, fn: Any = score, base: Any = None, **options: Any) -> Any:
    """Run a sweep whose validations go through the cache of ``folder``."""
    through = Through(folder, fn)
    settings = {"cache": folder / "scores", **options.pop("settings", {})}
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    over = sweep(
        folder / name,
        base or asha,
        validate=through,
        settings=settings,
        on_pending="wait",
        **options,
    )
    check_journal(events_in(over.home))
    return over, through


def ended(over: Ran) -> list[ValidationEnded]:
    return [event for event in events_in(over.home) if isinstance(event, ValidationEnded)]


def test_another_sweep_takes_all_scores_from_the_cache_and_decides_alike(tmp_path):
    first, calls = ran(tmp_path, "first")
    again, none = ran(tmp_path, "again")
    assert len(calls.calls) == len(ended(first)) > 8 and not none.calls
    assert not any(event.cached for event in ended(first))
    assert all(event.cached for event in ended(again))
    assert again.heard.results == first.heard.results
    assert again.scores() == first.scores()
    table = tunekit.load(again.home).validations
    assert table["cached"].all() and (table["attempts"] == 1).all()


@pytest.mark.parametrize("fn", [fails, odd])
def test_what_is_no_score_is_not_kept(tmp_path, fn):
    _, first = ran(tmp_path, "first", fn, trials=2)
    _, again = ran(tmp_path, "again", fn, trials=2)
    assert len(again.calls) == len(first.calls) > 0


@pytest.mark.parametrize("at", [40, 75])
def test_a_restored_sweep_takes_what_is_there(tmp_path, at):
    options = {"settings": {"cache": tmp_path / "scores"}}
    before = Through(tmp_path, score)
    kill(tmp_path, at, validate=before, **options)
    after = Through(tmp_path, score)
    over = restored(tmp_path, validate=after, **options)
    scored = ended(over)
    assert len(scored) == 18 and {event.status for event in scored} == {"validated"}
    check_journal(events_in(over.home))
    none = Through(tmp_path, score)
    whole = fifo(tmp_path / "whole", validate=none, **options)
    whole.sweep.run(most=50_000)
    assert not none.calls and all(event.cached for event in ended(whole))


def test_another_function_or_argument_or_configuration_has_another_score(tmp_path):
    ran(tmp_path, "first", base=FIFOScheduler(), trials=1)
    _, same = ran(tmp_path, "same", base=FIFOScheduler(), trials=1)
    _, other = ran(tmp_path, "half", half, base=FIFOScheduler(), trials=1)
    given = {"fn": lambda checkpoint, batch: {}, "task_config": BATCH_OF_8}
    _, called = ran(tmp_path, "called", base=FIFOScheduler(), trials=1, settings=given)
    _, configured = ran(
        tmp_path, "config", base=FIFOScheduler(), trials=1, param_space={"width": 3}
    )
    assert not same.calls
    assert len(other.calls) == len(called.calls) == len(configured.calls) == 9


def test_a_cache_that_cannot_be_reached_is_no_harm(tmp_path, caplog):
    (tmp_path / "scores").write_text("a file")
    over, through = ran(tmp_path, "sweep", trials=1, trainable=Endless)
    assert len(through.calls) == len(ended(over)) > 0
    assert {event.status for event in ended(over)} == {"validated"}
