"""What a validation function is told of the checkpoint that it gets."""

from __future__ import annotations

import threading
from unittest import mock

import pytest

import tunekit
from tunekit.validating.context import ValidationContext, validating_in


def validate(checkpoint):
    context = tunekit.get_validation_context()
    return {"accuracy": context.config["width"] / 100, "attempt": context.attempt}


def test_outside_of_a_validation_the_error_says_how_to_try_a_function():
    with pytest.raises(tunekit.errors.WiringError, match=r"In a test, replace it with mock\.patch"):
        validate(None)


def test_a_function_can_be_tried_by_itself():
    context = ValidationContext("trial", {"width": 64}, 1, attempt=2)
    with mock.patch("tunekit.get_validation_context", return_value=context):
        assert validate(None) == {"accuracy": 0.64, "attempt": 2}
    with pytest.raises(tunekit.errors.WiringError):
        validate(None)


def test_it_is_over_when_the_function_raises():
    with pytest.raises(ZeroDivisionError), validating_in(ValidationContext("a", {}, 1)):
        _ = 1 / 0
    with pytest.raises(tunekit.errors.WiringError, match="outside"):
        tunekit.get_validation_context()


def test_threads_of_a_validation_may_ask():
    heard = []
    with validating_in(ValidationContext("trial", {"width": 64}, 1)):
        thread = threading.Thread(target=lambda: heard.append(tunekit.get_validation_context()))
        thread.start()
        thread.join()
    assert heard[0].config == {"width": 64}


def test_an_evaluator_that_is_being_built_is_told_where_to_ask():
    with (
        validating_in(None, building=True),
        pytest.raises(tunekit.errors.WiringError, match="__call__"),
    ):
        tunekit.get_validation_context()
