"""Functions of tunekit that user code calls also work, or raise, outside of trials."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ray import train, tune

import tunekit
from tests.support.sweeps import Plan
from tests.support.trainables import Counting
from tunekit._ray import asking
from tunekit.validating.context import ValidationContext, validating_in

VALIDATED = train.CheckpointConsistencyMode.VALIDATED


def test_state_of_a_checkpoint_is_the_dict_that_the_class_returned(tmp_path):
    def validate(attempt: Any) -> dict[str, Any]:
        state = tunekit.state_of(attempt.request.checkpoint)
        return {"accuracy": state["steps"] / 10}

    ran = Plan(tmp_path, trials=1).validating(validate).run()
    assert ran.scores() == {0: {(0, i): i / 10 for i in range(1, 10)}}


def test_state_of_anything_but_a_saved_dict_raises_config_error(tmp_path):
    Path(tmp_path, "model.pt").touch()
    with pytest.raises(tunekit.errors.ConfigError, match=r"model\.pt"):
        tunekit.state_of(tune.Checkpoint.from_directory(str(tmp_path)))
    with pytest.raises(tunekit.errors.ConfigError):
        tunekit.state_of(tune.Checkpoint.from_directory(str(tmp_path / "gone")))
    with pytest.raises(tunekit.errors.ConfigError, match=r"checkpoint='model\.pt'"):
        tunekit.state_of("model.pt")


def test_report_and_checkpoint_with_outside_of_a_trial_raise_no_error():
    tunekit.checkpoint_with(lambda directory: None)
    with pytest.warns(UserWarning, match="report"):
        tunekit.report({"loss": 1.0}, validation=True)


# In a validation --------------------------------------------------------------------------------


def width_of(checkpoint):
    context = tunekit.get_validation_context()
    return {"accuracy": context.config["width"] / 100, "attempt": context.attempt}


def test_validation_function_runs_outside_of_a_validation_only_with_a_patched_context():
    context = ValidationContext("trial", {"width": 64}, 1, attempt=2)
    with mock.patch("tunekit.get_validation_context", return_value=context):
        assert width_of(None) == {"accuracy": 0.64, "attempt": 2}
    with pytest.raises(tunekit.errors.WiringError, match=r"mock\.patch"):
        width_of(None)


def test_validation_context_ends_when_the_function_raises():
    with pytest.raises(ZeroDivisionError), validating_in(ValidationContext("a", {}, 1)):
        _ = 1 / 0
    with pytest.raises(tunekit.errors.WiringError):
        tunekit.get_validation_context()


def test_threads_of_a_validation_have_its_context():
    contexts = []
    with validating_in(ValidationContext("trial", {"width": 64}, 1)):
        thread = threading.Thread(target=lambda: contexts.append(tunekit.get_validation_context()))
        thread.start()
        thread.join()
    assert contexts[0].config == {"width": 64}


def test_evaluator_has_no_validation_context_while_it_is_built():
    with (
        validating_in(None, building=True),
        pytest.raises(tunekit.errors.WiringError, match="__call__"),
    ):
        tunekit.get_validation_context()


# What a training loop asks ------------------------------------------------------------------------


@pytest.fixture
def process():
    """What this process knows as that of a trial, which the test may change."""
    return asking._Process


def test_reported_checkpoints_are_empty_outside_of_a_trial(process):
    assert tunekit.get_all_reported_checkpoints(VALIDATED, timeout_s=1.0) == []


def test_error_about_reported_checkpoints_lists_all_wrong_arguments(process):
    with pytest.raises(tunekit.errors.ConfigError) as raised:
        tunekit.get_all_reported_checkpoints("VALIDATED", timeout_s=-1)
    assert len(raised.value.problems) == 2


def test_class_gets_the_checkpoints_known_at_the_start_of_its_step_and_cannot_wait(process):
    asking.tell(None, ["c1"])
    assert tunekit.get_all_reported_checkpoints() == ["c1"]
    with pytest.raises(tunekit.errors.WiringError, match="on_pending"):
        tunekit.get_all_reported_checkpoints(VALIDATED)


def test_trial_of_a_sweep_without_validation_raises_when_it_asks_for_checkpoints(
    process, monkeypatch
):
    monkeypatch.setattr(asking, "_is_actor", lambda: True)
    with pytest.raises(tunekit.errors.WiringError, match="validation_config"):
        tunekit.get_all_reported_checkpoints()


def test_validation_in_a_trials_process_does_not_wait_for_scores_of_that_trial(process):
    asking.ask_by(lambda inquiry: pytest.fail("it would wait for itself"))
    with validating_in(ValidationContext("trial", {}, 1)):
        assert tunekit.get_all_reported_checkpoints(VALIDATED) == []


def asks_elsewhere() -> int:
    return len(tunekit.get_all_reported_checkpoints())


class AsksInItsModule(tune.Trainable):
    def step(self):
        return {"seen": asks_elsewhere()}


def test_class_that_asks_is_detected_in_its_methods_and_in_its_module():
    inner = type("Inner", (tune.Trainable,), {"step": lambda self: [asks_elsewhere() for _ in "a"]})
    assert asking.asks(AsksInItsModule) and asking.asks(inner)
    assert not asking.asks(tune.Trainable) and not asking.asks(Counting)
