"""Delete surplus checkpoints, and the remains of interrupted uploads.

``core/retention.py`` decides when a checkpoint may be deleted.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import logging
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

import pyarrow.fs
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _delete_fs_path
from ray.tune import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.result import SHOULD_CHECKPOINT, TRAINING_ITERATION

from tunekit.core.events import CheckpointSaved, Event, Exploited, TrialAdded
from tunekit.core.metrics import flatten
from tunekit.core.retention import orphaned, rank, surplus
from tunekit.core.values import finite_number
from tunekit.journal.paths import changed_at, paths_in

logger = logging.getLogger(__name__)


def is_saved_at(trial: Trial, report: Mapping[str, Any], *, last: bool) -> bool:
    """Return whether Tune would save a trial after a report, which may be its last one."""
    every, iteration = trial.checkpoint_freq, report.get(TRAINING_ITERATION, 0)
    at_end = last and trial.checkpoint_at_end
    return bool(report.get(SHOULD_CHECKPOINT) or at_end or (every and iteration % every == 0))


def saved_at(path: str, filesystem: pyarrow.fs.FileSystem, metrics: dict[str, Any]) -> Any:
    """Return the checkpoint saved at a path, in the form in which Tune registers it."""
    return _TrainingResult(Checkpoint(path, filesystem), metrics)


def start_from(trial: Trial, saved: Any) -> None:
    """Make a trial start from a checkpoint, which may be another trial's."""
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
    to this sweep. This can be interrupted at any time, and called again.

    Args:
        trials: All trials of a restored sweep; only folders of unfinished trials are searched.
        events: The sweep's journal.
    """
    trials, known = list(trials), set[str]()
    added: dict[str, float] = {}
    for trial in trials:
        manager = trial.run_metadata.checkpoint_manager
        latest = manager._latest_checkpoint_result  # which may be another trial's
        saved = [*manager._checkpoint_results, *([] if latest is None else [latest])]
        known.update(result.checkpoint.path for result in saved)
    for event in events:
        match event:
            case TrialAdded():
                added[event.trial_id] = event.time
            case CheckpointSaved() | Exploited():
                known.add(event.checkpoint)
    for trial in trials:
        if trial.trial_id in added and not trial.is_finished():
            _remove_in(trial, known, since=added[trial.trial_id])


def _remove_in(trial: Trial, known: set[str], since: float) -> None:
    filesystem, folder = trial.storage.storage_filesystem, trial.storage.trial_fs_path
    try:
        for path in orphaned(paths_in(filesystem, folder), known):
            written = changed_at(filesystem, path)
            if written is not None and written >= since:
                delete_checkpoint(filesystem, path)
                logger.info("Removed %s, an incomplete upload of a killed process.", path)
    except OSError as error:
        logger.warning(
            "Incomplete uploads of a killed process in %s could not be removed: %s", folder, error
        )


def set_checkpoint_config(trial: Trial, *, frequency: int, at_end: bool) -> None:
    """Set when Tune saves a trial: every ``frequency`` iterations, and at its end."""
    manager = trial.run_metadata.checkpoint_manager
    config = copy.copy(manager.checkpoint_config)
    config.checkpoint_frequency = frequency
    config.checkpoint_at_end = at_end
    manager._checkpoint_config = config


class LeasingCheckpointManager(_CheckpointManager):
    """Keep a trial's best checkpoints by validation score, and those that are still needed.

    Tune's manager deletes checkpoints as soon as another one is registered, and ranks a checkpoint
    without a score above all scored ones.

    Args:
        former: The trial's manager, whose state is kept.
        leased: The paths that must not be deleted; checked before each deletion.
    """

    def __init__(self, former: _CheckpointManager, leased: Container[str]):
        super().__init__(former.checkpoint_config)
        self._checkpoint_results: list[_TrainingResult] = former._checkpoint_results
        self._latest_checkpoint_result: _TrainingResult | None = former._latest_checkpoint_result
        self._leased = leased
        self._doomed: list[Checkpoint] = []
        # The paths in the order of registration, which their names do not show.
        self._order: list[str] = list(vars(former).get("_order", ()))

    @classmethod
    def of(cls, trial: Trial, leased: Container[str]) -> LeasingCheckpointManager:
        """Return the trial's manager, which replaces Tune's own."""
        manager = trial.run_metadata.checkpoint_manager
        if not isinstance(manager, cls):
            manager = trial.run_metadata.checkpoint_manager = cls(manager, leased)
        return manager

    def register_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        """Register a new checkpoint; :meth:`prune` deletes those that it replaces.

        They stay until the new one is in the journal; otherwise, a restored sweep could have none
        (decision 3). Tune's own manager would also delete checkpoints that are about to be cloned,
        and treats one without a score as the best (decision 5).
        """
        self._latest_checkpoint_result = checkpoint_result
        path = checkpoint_result.checkpoint.path
        if path in self._order:
            self._forget([path])  # it is registered again in a replay
        self._order.append(path)
        bisect.insort(self._checkpoint_results, checkpoint_result, key=self._rank)

    def _forget(self, paths: Collection[str]) -> None:
        known = self._checkpoint_results
        self._checkpoint_results = [one for one in known if one.checkpoint.path not in paths]
        self._order = [path for path in self._order if path not in paths]

    def forget_missing(self, is_there: Callable[[str], bool]) -> list[str]:
        """Forget the checkpoints that storage lacks; return their paths.

        The trial continues from the newest one that is left.
        """
        latest = self._latest_checkpoint_result
        last = set() if latest is None else {latest.checkpoint.path}
        missing = sorted(path for path in last.union(self._order) if not is_there(path))
        self._forget(missing)
        if not last.isdisjoint(missing):
            left = {one.checkpoint.path: one for one in self._checkpoint_results}
            self._latest_checkpoint_result = left[self._order[-1]] if left else None
        return missing

    def _rank(self, result: _TrainingResult) -> tuple[bool, float]:
        config = self._checkpoint_config
        if config.checkpoint_score_attribute is None:
            return rank(None)
        known = flatten(result.metrics).get(config.checkpoint_score_attribute)
        value = None if isinstance(known, bool) else finite_number(known)
        return rank(value if value is None or config.checkpoint_score_order == "max" else -value)

    def prune(self) -> None:
        """Delete checkpoints that are neither among the best nor needed.

        Call it when a saved checkpoint is in the journal, and when one is no longer needed.
        """
        if self._checkpoint_config.num_to_keep is None:
            return
        checkpoints = {one.checkpoint.path: one.checkpoint for one in self._checkpoint_results}
        newest, keep = next(reversed(self._order), None), self._checkpoint_config.num_to_keep
        doomed = surplus(list(checkpoints), newest, keep, self._leased)
        self._forget(doomed)
        self._doomed += [checkpoints[path] for path in doomed]
        while self._doomed:
            path = self._doomed[0].path
            if path in self._leased:  # nothing else would detect the loss
                raise AssertionError(
                    f"{path} is needed but was about to be deleted. This is a bug in tunekit, not "
                    "in your code. Please report it with the journal."
                )
            checkpoint = self._doomed.pop(0)
            try:
                delete_checkpoint(checkpoint.filesystem, path)
            except OSError as error:
                logger.warning("%s could not be deleted; this will be retried: %s", path, error)
                self._doomed.append(checkpoint)  # one that never can does not keep the others
                return  # if it is the storage that fails, each would take its time

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as Tune's own manager, so that saved experiments open without tunekit."""
        ours = ("_leased", "_doomed")
        state = {key: value for key, value in self.__dict__.items() if key not in ours}
        return _CheckpointManager, (self._checkpoint_config,), state
