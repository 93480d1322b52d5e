"""What a validation function is told of the checkpoint that it gets."""

from __future__ import annotations

import threading

import pytest
import ray

import tunekit
from tunekit.core.validation import Attempt, Request
from tunekit.testing import validation_context
from tunekit.validating.context import Told, telling
from tunekit.validating.executor import Configs


def validate(checkpoint):
    context = tunekit.get_validation_context()
    return {"accuracy": context.config["width"] / 100, "attempt": context.attempt}


def test_outside_of_a_validation_the_error_says_how_to_try_a_function():
    with pytest.raises(
        tunekit.errors.WiringError, match=r"tunekit\.testing\.validation_context\(config"
    ):
        validate(None)


def test_a_function_can_be_tried_by_itself():
    with validation_context(config={"width": 64}, attempt=2) as context:
        assert validate(None) == {"accuracy": 0.64, "attempt": 2}
        assert (context.trial_id, context.iteration, context.generation) == ("trial", 1, 0)
    with pytest.raises(tunekit.errors.WiringError):
        validate(None)


def test_it_is_over_when_the_function_raises():
    with pytest.raises(ZeroDivisionError), telling(Told("a", 0, 1, 1, {})):
        _ = 1 / 0
    with pytest.raises(tunekit.errors.WiringError, match="outside"):
        tunekit.get_validation_context()


def test_threads_of_a_validation_may_ask():
    heard = []
    with validation_context(config={"width": 64}):
        thread = threading.Thread(target=lambda: heard.append(tunekit.get_validation_context()))
        thread.start()
        thread.join()
    assert heard[0].config == {"width": 64}


def test_an_evaluator_that_is_being_built_is_told_where_to_ask():
    with telling(None, building=True), pytest.raises(tunekit.errors.WiringError, match="__call__"):
        tunekit.get_validation_context()


def test_the_configuration_is_stored_once_for_each_generation_of_a_trial(monkeypatch):
    stored: list[dict] = []
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or len(stored))
    configs = Configs(most=2)

    def told(trial: str, generation: int, iteration: int, number: int = 1) -> Told:
        config = {"lr": (trial, generation)}
        request = Request(trial, iteration, generation=generation, config=config)
        return configs.told(Attempt(request, number))

    refs = [told("a", 0, 1).config, told("a", 0, 2).config, told("a", 0, 2, 2).config]
    assert refs == [1, 1, 1] and stored == [{"lr": ("a", 0)}]
    assert told("a", 1, 3).config == 2 and stored[-1] == {"lr": ("a", 1)}
    assert told("b", 0, 1).config == 3
    assert told("a", 1, 4).config == 2, "the newest are kept"
    assert told("a", 0, 5).config == 4, "and the oldest stored again"


def test_a_full_store_sends_the_configuration_along(monkeypatch):
    def full(value):
        raise MemoryError

    monkeypatch.setattr(ray, "put", full)
    request = Request("a", 1, config={"lr": 0.1})
    assert Configs().told(Attempt(request, 1)).context().config == {"lr": 0.1}
