"""Delete surplus checkpoints, and the remains of interrupted uploads.

``core/retention.py`` decides when a checkpoint may be deleted.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.fs
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _delete_fs_path
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.storage import changed_at, exists, paths_in
from tunekit.core.events import CheckpointSaved, Event, Exploited, TrialAdded, ValidationRequested
from tunekit.core.metrics import flatten
from tunekit.core.retention import Kept, left_over, rank, surplus
from tunekit.core.values import number

logger = logging.getLogger(__name__)


def latest_checkpoint(trial: Trial) -> tuple[Any, dict[str, Any]] | None:
    """Return the ``(checkpoint, metrics)`` that a trial saved last; None if it saved none."""
    result = trial.run_metadata.checkpoint_manager.latest_checkpoint_result
    return None if result is None else (result.checkpoint, result.metrics)


def saved_at(path: str, filesystem: pyarrow.fs.FileSystem, metrics: dict[str, Any]) -> Any:
    """Return the saved checkpoint at a path, as Tune registers it."""
    return _TrainingResult(Checkpoint(path, filesystem), metrics)


def start_from(trial: Trial, saved: Any) -> None:
    """Let a trial start from a checkpoint, which may be another trial's."""
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = saved


def skip_existing(trial: Trial) -> None:
    """Give a trial's next checkpoint a name that storage does not have.

    A killed process may have left part of a checkpoint, of which Tune has no record.
    """
    storage = trial.storage
    there = paths_in(storage.storage_filesystem, storage.trial_fs_path)
    found = [int(m[1]) for path in there if (m := re.search(r"/checkpoint_(\d{6,})$", path))]
    storage.current_checkpoint_index = max([storage.current_checkpoint_index, *found])
    trial.invalidate_json_state()


def saved_results(trial: Trial) -> list[tuple[Any, dict[str, Any]]]:
    """Return ``(checkpoint, metrics)`` of each of a trial's checkpoints, by iteration."""
    results = trial.run_metadata.checkpoint_manager._checkpoint_results
    found = [(result.checkpoint, dict(result.metrics)) for result in results]
    return sorted(found, key=lambda one: one[1].get(TRAINING_ITERATION, 0))


def delete_checkpoint(filesystem: pyarrow.fs.FileSystem, path: str) -> None:
    """Delete a checkpoint's folder, unless it is already gone, as in a restored sweep.

    Raises:
        OSError: If the storage fails.
    """
    with contextlib.suppress(FileNotFoundError):
        _delete_fs_path(fs=filesystem, fs_path=path)


def remove_left_over(trials: Iterable[Trial], events: Iterable[Event]) -> None:
    """Remove checkpoints in trials' folders that nothing refers to.

    A checkpoint stays if the journal or Tune's saved state of any trial names it. It also stays if
    it was last written before its trial was added, or at an unknown time, because it may not belong
    to this sweep. This can be killed, and called again, at any time.

    Args:
        trials: All trials of a restored sweep; only folders of unfinished trials are searched.
        events: The sweep's journal.
    """
    trials, known = list(trials), set[str]()
    added: dict[str, float] = {}
    for trial in trials:
        known.update(checkpoint.path for checkpoint, _ in saved_results(trial))
        latest = latest_checkpoint(trial)  # which may be another trial's
        known.update([] if latest is None else [latest[0].path])
    for event in events:
        match event:
            case TrialAdded():
                added[event.trial_id] = event.time
            case CheckpointSaved() | ValidationRequested() | Exploited():
                known.add(event.checkpoint)
    for trial in trials:
        if trial.trial_id in added and not trial.is_finished():
            _remove_in(trial, known, since=added[trial.trial_id])


def _remove_in(trial: Trial, known: set[str], since: float) -> None:
    filesystem, folder = trial.storage.storage_filesystem, trial.storage.trial_fs_path
    try:
        for path in left_over(paths_in(filesystem, folder), known):
            written = changed_at(filesystem, path)
            if written is not None and written >= since:
                delete_checkpoint(filesystem, path)
                logger.info("Removed %s, an incomplete upload of a killed process.", path)
    except OSError as error:
        logger.warning(
            "Incomplete uploads of a killed process in %s could not be removed: %s", folder, error
        )


def forget_missing(trial: Trial) -> list[str]:
    """Forget the checkpoints of a trial that storage lacks; return their paths.

    The trial continues from the newest one that is left.
    """
    manager = trial.run_metadata.checkpoint_manager
    latest, known = manager._latest_checkpoint_result, manager._checkpoint_results
    checkpoints = [one.checkpoint for one in [*known, *([] if latest is None else [latest])]]
    filesystems = {one.path: one.filesystem for one in checkpoints}
    missing = sorted(path for path, where in filesystems.items() if not exists(where, path))
    manager._checkpoint_results = left = [r for r in known if r.checkpoint.path not in missing]
    if latest is not None and latest.checkpoint.path in missing:
        newest = max(left, key=lambda result: result.checkpoint.path, default=None)
        manager._latest_checkpoint_result = newest
    if missing:
        trial.run_metadata.invalidate_cache()
    return missing


def set_checkpoint_config(trial: Trial, *, frequency: int, at_end: bool) -> None:
    """Set when Tune saves a trial: every ``frequency`` iterations, and at its end."""
    manager = trial.run_metadata.checkpoint_manager
    config = copy.copy(manager.checkpoint_config)
    config.checkpoint_frequency = frequency
    config.checkpoint_at_end = at_end
    manager._checkpoint_config = config


@dataclass
class _Entry:
    """A checkpoint, with data that Tune does not store."""

    result: _TrainingResult
    order: int
    score: float | None


class LeasingCheckpointManager(_CheckpointManager):
    """Keep a trial's best checkpoints by validation score, and those that are still needed.

    Tune's manager deletes checkpoints as soon as another one is registered, even if they wait for
    validation, and ranks a checkpoint without a score above all scored ones.

    Args:
        checkpoint_config: The trial's configuration.
        leased: The paths that must not be deleted; checked before each deletion.
    """

    def __init__(
        self,
        checkpoint_config: CheckpointConfig,
        leased: Container[str],
    ):
        super().__init__(checkpoint_config)
        self._checkpoint_results: list[_TrainingResult] = []
        self._latest_checkpoint_result: _TrainingResult | None = None
        self._leased = leased
        self._entries: dict[str, _Entry] = {}
        self._to_delete: dict[str, Any] = {}
        self._next_order = 0

    @classmethod
    def install(cls, trial: Trial, leased: Container[str]) -> None:
        """Replace the trial's manager, keeping its state."""
        old = trial.run_metadata.checkpoint_manager
        if isinstance(old, cls):
            return
        new = cls(old.checkpoint_config, leased)
        for result in sorted(old._checkpoint_results, key=lambda result: result.checkpoint.path):
            new._take(result)
        new._checkpoint_results = old._checkpoint_results
        new._latest_checkpoint_result = old._latest_checkpoint_result
        trial.run_metadata.checkpoint_manager = new

    @classmethod
    def of(cls, trial: Trial) -> LeasingCheckpointManager | None:
        """Return the trial's manager if it is of this class; otherwise None."""
        manager = trial.run_metadata.checkpoint_manager
        return manager if isinstance(manager, cls) else None

    def register_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        """Register a new checkpoint; :meth:`prune` deletes those that it replaces.

        They stay until the new one is in the journal; otherwise, a restored sweep could have none.
        """
        self._latest_checkpoint_result = checkpoint_result
        if checkpoint_result.checkpoint.path not in self._entries:
            self._checkpoint_results.append(checkpoint_result)
            self._take(checkpoint_result)

    def prune(self) -> None:
        """Sort by score, and delete checkpoints that are neither among the best nor needed.

        Call it when a saved checkpoint is in the journal, after one was scored, and when one is
        no longer needed.
        """
        config, results = self._checkpoint_config, self._checkpoint_results
        attribute = config.checkpoint_score_attribute
        if attribute is None and config.num_to_keep is None:
            return
        kept = []
        for path in (result.checkpoint.path for result in results):
            entry = self._entries[path]
            kept.append(Kept(entry.order, entry.score, leased=path in self._leased))
        by_score = attribute is not None
        doomed = set(surplus(kept, config.num_to_keep, by_score=by_score))
        self._checkpoint_results = [
            results[index] for index in rank(kept, by_score=by_score) if index not in doomed
        ]
        for index in doomed:
            checkpoint = results[index].checkpoint
            del self._entries[checkpoint.path]
            self._to_delete[checkpoint.path] = checkpoint
        self._delete()

    def _delete(self) -> None:
        """Delete checkpoints that are not kept; those that fail are retried next time."""
        for path, checkpoint in list(self._to_delete.items()):
            if path in self._leased:  # nothing else would detect the loss
                raise AssertionError(
                    f"{path} is needed but was about to be deleted. This is a bug in tunekit, not "
                    "in your code. Please report it with the journal."
                )
            try:
                delete_checkpoint(checkpoint.filesystem, path)
            except OSError as error:
                logger.warning("%s could not be deleted; this will be retried: %s", path, error)
                return
            del self._to_delete[path]

    def _take(self, result: _TrainingResult) -> None:
        score = self._number(result.metrics)
        self._entries[result.checkpoint.path] = _Entry(result, self._next_order, score)
        self._next_order += 1

    def _number(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the score attribute as a number, larger is better; None if it is not a number."""
        config = self._checkpoint_config
        known = flatten(metrics).get(config.checkpoint_score_attribute)
        value = None if isinstance(known, bool) else number(known)
        return value if value is None or config.checkpoint_score_order == "max" else -value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as Tune's own manager, so that saved experiments open without tunekit."""
        ours = ("_leased", "_entries", "_to_delete", "_next_order")
        state = {key: value for key, value in self.__dict__.items() if key not in ours}
        return _CheckpointManager, (self._checkpoint_config,), state
