"""Sweeps that take scores from a cache: which ones, which not, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tunekit.validating.executor import Estimated, Returned
from tunekit.validating.fingerprint import fingerprint
from tunekit.validating.process import Call, looked_up, produced

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


def estimates(attempt: Attempt) -> Iterator[dict[str, Any]]:
    mean = score(attempt)["accuracy"]
    for n in (100, 1_000, 10_000):
        yield {"accuracy": tunekit.Estimate(mean, n, bounds=(0, 12)), "note": "so far"}


class Through:
    """Validates through a cache, as the process of a validation does.

    The content of a checkpoint is the number of its trial and its iteration: those of Tune's class
    trainables tell when they were saved.
    """

    def __init__(self, folder: Path, fn: Callable[[Attempt], Any]):
        self.cache, self.mark = ValidationCache(str(folder / "scores")), fingerprint(fn)
        self.weights, self.fn = folder / "weights", fn
        self.calls: list[str] = []

    def __call__(self, attempt: Attempt) -> Iterator[Any]:
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
        run = lambda: produced(attempt.id, call)  # noqa: E731
        for step in looked_up(Call(attempt.id, None, checkpoint, {}, told, lookup), run):
            if not isinstance(step, Estimated):
                return step
            yield step.value


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


def ended(over: Ran, stage: str = "") -> list[ValidationEnded]:
    found = [event for event in events_in(over.home) if isinstance(event, ValidationEnded)]
    return [event for event in found if event.key.stage == stage]


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


def test_stages_have_scores_of_their_own(tmp_path):
    def run(name: str) -> tuple[Any, list[Through]]:
        full = Through(tmp_path, half)
        stage = tunekit.Stage("full", full, every="last")
        over, first = ran(tmp_path, name, settings={"stages": [stage]}, trials=3)
        return over, [first, full]

    first, calls = run("first")
    again, none = run("again")
    assert all(one.calls for one in calls) and not any(one.calls for one in none)
    for over in (first, again):
        by_place = {event.key.first: event.metrics["accuracy"] for event in ended(over)}
        for event in ended(over, "full"):
            assert event.metrics["accuracy"] == by_place[event.key.first] / 2
    assert all(event.cached for event in ended(again, "full"))


@pytest.mark.parametrize("fn", [fails, odd])
def test_what_is_no_score_is_not_kept(tmp_path, fn):
    _, first = ran(tmp_path, "first", fn, trials=2)
    _, again = ran(tmp_path, "again", fn, trials=2)
    assert len(again.calls) == len(first.calls) > 0


def test_what_was_enough_for_one_decision_is_not_kept_for_another(tmp_path):
    """Only what was evaluated in full is; and how sure it is, is said with the own confidence."""
    surely = {"sequential": tunekit.Sequential(confidence=0.999)}
    first, _ = ran(tmp_path, "first", estimates)
    again, fewer = ran(tmp_path, "again", estimates, settings=surely)
    full = {
        event.metrics["accuracy"]: event.metrics["accuracy_high"]
        for event in ended(first)
        if event.metrics["accuracy_n"] == 10_000
    }
    assert 0 < len(full) < len(ended(first)), "some were enough for a decision"
    cached = [event for event in ended(again) if event.cached]
    assert cached and len(fewer.calls) == len(ended(again)) - len(cached)
    for event in cached:
        assert event.metrics["accuracy"] in full and event.metrics["accuracy_n"] == 10_000
        assert event.metrics["accuracy_high"] > full[event.metrics["accuracy"]], "it is wider"
        assert event.metrics["note"] == "so far"


def test_what_an_attempt_had_yielded_is_no_matter_if_the_score_is_there(tmp_path):
    """As for a function whose examples are in another order each time."""

    def validate(attempt: Attempt) -> Iterator[Any]:
        if attempt.number == 1:
            yield {"accuracy": tunekit.Estimate(1.0, 9_000, bounds=(0, 1))}
            raise ValueError("no memory left")
        whole = {"accuracy": tunekit.Estimate(0.5, 10_000, bounds=(0, 1))}
        return Returned(attempt.id, whole, "key", cached=True)

    settings = {"fn": lambda checkpoint, resume: {}, "cache": tmp_path / "scores"}
    over = sweep(tmp_path, FIFOScheduler(), validate=validate, settings=settings, trials=1)
    assert {event.status for event in ended(over)} == {"validated"}
    assert {event.metrics["accuracy"] for event in ended(over)} == {0.5}


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
