"""How sweeps end that do not end well: all trials fail, time is up, somebody presses Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import ResumeConfig
from ray.tune.schedulers import FIFOScheduler

import tunekit
from tests.sweeps import Ran, sweep
from tunekit.journal import read
from tunekit.snapshots import mend
from tunekit.storage import LocalFolder


def run(folder: Path, **options: Any) -> Ran:
    return sweep(folder, FIFOScheduler(), listening=False, **options)


def mended(folder: Path) -> dict[str, Any]:
    """What a sweep is restored with."""
    home = folder / "sweep"
    return {"mended": mend(LocalFolder(home), read(home)), "resume": ResumeConfig()}


# All trials fail --------------------------------------------------------------------------------


def failing(folder: Path, *fail_at: int | None, **options: Any) -> Ran:
    return run(
        folder,
        param_space={"fail_at": tune.grid_search(list(fail_at))},
        trials=1,
        policy=tunekit.EveryIterations(100),
        **options,
    )


def test_a_sweep_whose_trials_fail_before_they_have_saved_ends_with_their_errors(tmp_path):
    ran = failing(tmp_path, 2, 3)
    assert [trial.status for trial in ran.trials] == ["ERROR", "ERROR"]
    assert all("fails at" in str(trial.get_error()) for trial in ran.trials)
    assert read(tmp_path / "sweep")[-1]["finished"] is True
    again = failing(tmp_path, 2, 3, **mended(tmp_path))
    assert [trial.status for trial in again.trials] == ["ERROR", "ERROR"]


def test_trials_that_have_ended_without_a_checkpoint_are_told_of_apart_from_those_that_failed(
    tmp_path,
):
    with pytest.raises(tunekit.MetricNotFoundError, match="No trial has saved") as caught:
        failing(tmp_path, 2, None)
    assert "1 trial failed" in str(caught.value)
