"""Functions that trainables call, outside of trials and in validations."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ray import train, tune

import tunekit
from tests.support.sweeps import Counting, sweep
from tunekit._ray import asking
from tunekit.validating.context import ValidationContext, validating_in

VALIDATED = train.CheckpointConsistencyMode.VALIDATED


def test_a_validation_reads_the_dict_that_a_class_returned(tmp_path):
    def validate(attempt: Any) -> dict[str, Any]:
        state = tunekit.state_of(attempt.request.checkpoint)
        return {"accuracy": state["steps"] / 10}

    ran = sweep(tmp_path, trials=1, validate=validate)
    assert ran.scores() == {0: {(0, i): i / 10 for i in range(1, 10)}}


def test_files_are_not_taken_for_a_dict(tmp_path):
    Path(tmp_path, "model.pt").touch()
    with pytest.raises(tunekit.errors.ConfigError, match=r"It holds model\.pt\. Read files with"):
        tunekit.state_of(tune.Checkpoint.from_directory(str(tmp_path)))
    with pytest.raises(tunekit.errors.ConfigError, match="It holds nothing"):
        tunekit.state_of(tune.Checkpoint.from_directory(str(tmp_path / "gone")))
    with pytest.raises(tunekit.errors.ConfigError, match=r"checkpoint='model\.pt' is of type str"):
        tunekit.state_of("model.pt")


def test_outside_of_a_trial_functions_can_be_tried_by_themselves():
    tunekit.checkpoint_with(lambda directory: None)
    with pytest.warns(UserWarning, match="only be called inside"):
        tunekit.report({"loss": 1.0}, validation=True)


# In a validation --------------------------------------------------------------------------------


def width_of(checkpoint):
    context = tunekit.get_validation_context()
    return {"accuracy": context.config["width"] / 100, "attempt": context.attempt}


def test_outside_of_a_validation_the_error_says_how_to_try_a_function():
    with pytest.raises(tunekit.errors.WiringError, match=r"In a test, replace it with mock\.patch"):
        width_of(None)


def test_a_function_can_be_tried_by_itself():
    context = ValidationContext("trial", {"width": 64}, 1, attempt=2)
    with mock.patch("tunekit.get_validation_context", return_value=context):
        assert width_of(None) == {"accuracy": 0.64, "attempt": 2}
    with pytest.raises(tunekit.errors.WiringError):
        width_of(None)


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


def test_an_evaluator_that_asks_while_it_is_built_gets_an_error_with_advice():
    with (
        validating_in(None, building=True),
        pytest.raises(tunekit.errors.WiringError, match="__call__"),
    ):
        tunekit.get_validation_context()


# What a loop asks -------------------------------------------------------------------------------


@pytest.fixture
def process(monkeypatch):
    """What this process knows as that of a trial, which the test may change."""
    for name in ("way", "told", "passes_on"):
        monkeypatch.setattr(asking._Process, name, None)
    return asking._Process


def test_outside_of_a_trial_nothing_was_reported(process):
    assert tunekit.get_all_reported_checkpoints(VALIDATED, timeout_s=1.0) == []


def test_all_wrong_arguments_are_named_together(process):
    with pytest.raises(tunekit.errors.ConfigError) as raised:
        tunekit.get_all_reported_checkpoints("VALIDATED", timeout_s=-1)
    assert len(raised.value.problems) == 2


def test_class_is_told_what_was_known_when_its_step_began_and_cannot_wait(process):
    asking.tell(None, ["c1"])
    assert tunekit.get_all_reported_checkpoints() == ["c1"]
    with pytest.raises(tunekit.errors.WiringError, match="on_pending"):
        tunekit.get_all_reported_checkpoints(VALIDATED)


def test_trial_that_no_driver_answers_is_told_so(process, monkeypatch):
    monkeypatch.setattr(asking, "_is_actor", lambda: True)
    with pytest.raises(tunekit.errors.WiringError, match="validation_config"):
        tunekit.get_all_reported_checkpoints()


def test_validation_in_the_process_of_a_trial_does_not_ask_for_it(process):
    asking.ask_by(lambda inquiry: pytest.fail("it would wait for itself"))
    with validating_in(ValidationContext("trial", {}, 1)):
        assert tunekit.get_all_reported_checkpoints(VALIDATED) == []


def asks_elsewhere() -> int:
    return len(tunekit.get_all_reported_checkpoints())


class AsksInItsModule(tune.Trainable):
    def step(self):
        return {"seen": asks_elsewhere()}


def test_class_that_asks_is_recognised_by_its_methods_and_its_module():
    inner = type("Inner", (tune.Trainable,), {"step": lambda self: [asks_elsewhere() for _ in "a"]})
    assert asking.asks(AsksInItsModule) and asking.asks(inner)
    assert not asking.asks(tune.Trainable) and not asking.asks(Counting)
