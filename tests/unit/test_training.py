"""Dicts that class trainables save, read back from their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

import tunekit
from tests.support.sweeps import sweep


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
