"""A trial continues from the newest checkpoint that is left.

The newest is the last one that was saved, whatever the names of checkpoints.
"""

from __future__ import annotations

import pickle

import pyarrow.fs
import pytest
from ray import tune
from ray.train._internal.checkpoint_manager import _CheckpointManager

import tunekit._ray.checkpoints
from tunekit._ray.checkpoints import LeasingCheckpointManager, saved_at

# As a training loop may call them: "9" sorts after "11"; the clock has gone back by an hour.
NAMES = {
    "numbers": [f"epoch-{n}" for n in range(7, 12)],
    "clock": [f"checkpoint_2026-10-25_{t}" for t in ("02-10", "02-40", "02-50", "02-20", "02-45")],
}


@pytest.fixture(params=NAMES)
def checkpoints(request, tmp_path):
    """Five checkpoints in the order in which they were saved."""
    names, local = NAMES[request.param], pyarrow.fs.LocalFileSystem()
    assert max(names) != names[-1]
    for name in names:
        (tmp_path / name).mkdir()
    return [saved_at(str(tmp_path / name), local, {}) for name in names]


@pytest.mark.parametrize("saved", [False, True], ids=["running", "restored"])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_trial_continues_from_the_newest_checkpoint_that_is_not_missing(
    checkpoints, missing, saved
):
    manager = LeasingCheckpointManager(_CheckpointManager(tune.CheckpointConfig()), frozenset())
    for one in checkpoints:
        manager.register_checkpoint(one)
    if saved:
        manager = LeasingCheckpointManager(pickle.loads(pickle.dumps(manager)), frozenset())
    gone = {one.checkpoint.path for one in checkpoints[-missing:]}
    assert manager.forget_missing(lambda path: path not in gone) == sorted(gone)
    newest = manager.latest_checkpoint_result
    assert newest.checkpoint.path == checkpoints[-missing - 1].checkpoint.path
    assert manager.forget_missing(lambda path: False) and manager.latest_checkpoint_result is None


def test_checkpoint_that_cannot_be_deleted_does_not_keep_the_others(
    checkpoints, tmp_path, monkeypatch
):
    one = tune.CheckpointConfig(num_to_keep=1)
    manager = LeasingCheckpointManager(_CheckpointManager(one), frozenset())
    paths = [saved.checkpoint.path for saved in checkpoints]
    delete, stuck = tunekit._ray.checkpoints.delete_checkpoint, [paths[0]]

    def deletes(filesystem, path):
        if path in stuck:
            raise PermissionError(path)
        delete(filesystem, path)

    monkeypatch.setattr("tunekit._ray.checkpoints.delete_checkpoint", deletes)
    for saved in checkpoints:
        manager.register_checkpoint(saved)
        manager.prune()
    assert {str(path) for path in tmp_path.iterdir()} <= {paths[0], *paths[-2:]}
    stuck.clear()
    manager.prune()
    assert [str(path) for path in tmp_path.iterdir()] == paths[-1:]
