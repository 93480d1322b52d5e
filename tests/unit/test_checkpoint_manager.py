"""A trial keeps its best and its newest checkpoint, and continues from the newest one that is left.

The newest is the last one that was saved, whatever the names of checkpoints.
"""

from __future__ import annotations

import pickle

import pyarrow.fs
import pytest
from ray import tune
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult

from tunekit._ray.checkpoints import LeasingCheckpointManager, saved_at

# As a training loop may call them: "9" sorts after "11"; the clock has gone back by an hour.
NAMES = {
    "numbers": [f"epoch-{n}" for n in range(7, 12)],
    "clock": [f"checkpoint_2026-10-25_{t}" for t in ("02-10", "02-40", "02-50", "02-20", "02-45")],
}
SCORES = [0.1, 0.9, 0.2, 0.3, 0.4]


@pytest.fixture(params=NAMES)
def checkpoints(request, tmp_path):
    """Five checkpoints in the order in which they were saved."""
    names, local = NAMES[request.param], pyarrow.fs.LocalFileSystem()
    assert max(names) != names[-1]
    for name in names:
        (tmp_path / name).mkdir()
    return [
        saved_at(str(tmp_path / name), local, {"accuracy": score})
        for name, score in zip(names, SCORES, strict=True)
    ]


def manager_of(
    checkpoints: list[_TrainingResult],
    num_to_keep: int | None,
    leased: frozenset[str] = frozenset(),
) -> LeasingCheckpointManager:
    config = tune.CheckpointConfig(num_to_keep=num_to_keep, checkpoint_score_attribute="accuracy")
    manager = LeasingCheckpointManager(_CheckpointManager(config), leased)
    for one in checkpoints:
        manager.register_checkpoint(one)
        manager.prune()
    return manager


def test_newest_checkpoint_is_kept_in_addition_to_the_best(checkpoints, tmp_path):
    manager_of(checkpoints, 1)
    assert {str(path) for path in tmp_path.iterdir()} == {
        checkpoints[n].checkpoint.path for n in (1, 4)
    }


@pytest.mark.parametrize("saved", [False, True], ids=["running", "restored"])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_trial_continues_from_the_newest_checkpoint_that_is_not_missing(
    checkpoints, missing, saved
):
    manager = manager_of(checkpoints, None)
    if saved:
        manager = LeasingCheckpointManager(pickle.loads(pickle.dumps(manager)), frozenset())
    gone = {one.checkpoint.path for one in checkpoints[-missing:]}
    assert manager.forget_missing(lambda path: path not in gone) == sorted(gone)
    newest = manager.latest_checkpoint_result
    assert newest.checkpoint.path == checkpoints[-missing - 1].checkpoint.path
    assert manager.forget_missing(lambda path: False) and manager.latest_checkpoint_result is None


def test_checkpoint_that_is_registered_twice_counts_once(checkpoints, tmp_path):
    manager = manager_of(checkpoints, 2)
    manager.register_checkpoint(checkpoints[-1])
    manager.prune()
    kept = [one.metrics["accuracy"] for one in manager.best_checkpoint_results]
    assert kept == [0.4, 0.9]
