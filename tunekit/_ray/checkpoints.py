"""Which checkpoints of a trial are kept: Tune's checkpoint manager, with leases."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _delete_fs_path
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial

from tunekit.core.metrics import flatten, merge
from tunekit.core.retention import Kept, rank, surplus

__all__ = ["LeasingCheckpointManager", "latest_checkpoint", "set_checkpoint_config"]


def latest_checkpoint(trial: Trial) -> tuple[Any, dict[str, Any]] | None:
    """``(checkpoint, metrics)`` that a trial saved last; None if it never did."""
    result = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    return None if result is None else (result.checkpoint, result.metrics)


def set_checkpoint_config(trial: Trial, *, frequency: int, at_end: bool) -> None:
    """Change when Tune saves one trial: at multiples of ``frequency`` iterations, at its end."""
    manager = trial.run_metadata.checkpoint_manager
    config = copy.copy(manager.checkpoint_config)
    config.checkpoint_frequency = frequency
    config.checkpoint_at_end = at_end
    manager._checkpoint_config = config


class LeasingCheckpointManager(_CheckpointManager):
    """Keeps a trial's best checkpoints by validated score, and whatever is still needed.

    Tune's own manager deletes when a checkpoint is registered, whether or not a validation is to
    read it, and ranks a checkpoint without a score above all that have one.

    Args:
        checkpoint_config: The trial's.
        leased: Paths that must not be deleted; looked up whenever something may be.
    """

    def __init__(self, checkpoint_config: CheckpointConfig, leased: Collection[str]):
        super().__init__(checkpoint_config)
        self._checkpoint_results: list[_TrainingResult] = []
        self._latest_checkpoint_result: _TrainingResult | None = None
        self._leased = leased
        self._order: dict[str, int] = {}

    @classmethod
    def install(cls, trial: Trial, leased: Collection[str]) -> None:
        """Put one in the place of the trial's manager, with everything that it knows."""
        old = trial.run_metadata.checkpoint_manager
        if isinstance(old, cls):
            return
        new = cls(old.checkpoint_config, leased)
        new._checkpoint_results = old._checkpoint_results
        new._latest_checkpoint_result = old._latest_checkpoint_result
        by_age = sorted(old._checkpoint_results, key=lambda result: result.checkpoint.path)
        new._order = {result.checkpoint.path: n for n, result in enumerate(by_age)}
        trial.run_metadata.checkpoint_manager = new

    @classmethod
    def of(cls, trial: Trial) -> LeasingCheckpointManager | None:
        """The trial's manager, if it is one of these."""
        manager = trial.run_metadata.checkpoint_manager
        return manager if isinstance(manager, cls) else None

    def register_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        """Take a new checkpoint."""
        self._latest_checkpoint_result = checkpoint_result
        self._order[checkpoint_result.checkpoint.path] = 1 + max(self._order.values(), default=-1)
        self._checkpoint_results.append(checkpoint_result)
        self.prune()

    def score(self, path: str, metrics: Mapping[str, Any]) -> None:
        """Lay validated metrics over those of the checkpoint at ``path``."""
        for result in self._checkpoint_results:
            if result.checkpoint.path == path:
                result.metrics = merge(result.metrics, metrics)
        self.prune()

    def prune(self) -> None:
        """Sort by score, and delete what is neither among the best nor needed."""
        config = self._checkpoint_config
        by_score = config.checkpoint_score_attribute is not None
        results = self._checkpoint_results
        kept = [
            Kept(
                order=self._order[result.checkpoint.path],
                score=self._score_of(result) if by_score else None,
                leased=result.checkpoint.path in self._leased,
            )
            for result in results
        ]
        doomed = set(surplus(kept, config.num_to_keep, by_score=by_score))
        self._checkpoint_results = [
            results[index] for index in rank(kept, by_score=by_score) if index not in doomed
        ]
        for index in doomed:
            checkpoint = results[index].checkpoint
            del self._order[checkpoint.path]
            _delete_fs_path(fs=checkpoint.filesystem, fs_path=checkpoint.path)

    def _score_of(self, result: _TrainingResult) -> float | None:
        if self._checkpoint_config.checkpoint_score_attribute not in flatten(result.metrics):
            return None
        is_number, score = self._get_checkpoint_score(result)
        return float(score) if is_number else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as Tune's own manager: saved experiments open without tunekit."""
        state = {k: v for k, v in self.__dict__.items() if k not in ("_leased", "_order")}
        return _CheckpointManager, (self._checkpoint_config,), state
