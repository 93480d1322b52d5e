"""Keeps the checkpoints that somebody needs, and lets Tune delete the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator

from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import LeasingCheckpointManager
from tunekit.core.retention import Leases

__all__ = ["CheckpointLeases"]


class CheckpointLeases:
    """The leases on a sweep's checkpoints, with the trials that have saved them.

    Args:
        changed: Called with a trial some of whose checkpoints may have been deleted.

    Example:
        >>> leases = CheckpointLeases(changed=print)
        >>> leases.take(("validation", "a:0:1:1"), "/sweep/a/checkpoint_000001")
        >>> list(leases)
        ['/sweep/a/checkpoint_000001']
    """

    def __init__(self, changed: Callable[[Trial], None]):
        self._changed = changed
        self._leases = Leases()
        self._owners: dict[str, Trial] = {}
        #: Whether nothing is deleted: in a restore, whoever needs one may not be back yet.
        self.deletes_nothing = False

    def watch(self, trial: Trial, validated_names: Callable[[], Collection[str]]) -> None:
        """Let a trial's checkpoints be kept as long as they are leased.

        Args:
            trial: The trial.
            validated_names: Returns the metrics of which only validated values count.
        """
        LeasingCheckpointManager.install(trial, self._leases, validated_names)

    def own(self, path: str, trial: Trial) -> None:
        """Note which trial has saved a checkpoint."""
        self._owners[path] = trial

    def take(self, holder: Hashable, path: str) -> None:
        """Keep a checkpoint for ``holder``, instead of what was kept for it."""
        self._free(self._leases.take(holder, path))

    def release(self, holder: Hashable) -> None:
        """Give back what is kept for ``holder``, if anything."""
        self._free(self._leases.release(holder))

    def held(self, holder: Hashable) -> str | None:
        """Return the path that is kept for ``holder``, if any."""
        return self._leases.held(holder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def _free(self, path: str | None) -> None:
        """Nobody needs a checkpoint any more: it may go, if it is not a good one."""
        if path is None or self.deletes_nothing:
            return
        owner = self._owners.pop(path, None)
        if owner is not None and self.prune(owner):
            self._changed(owner)

    @staticmethod
    def prune(trial: Trial) -> bool:
        """Delete what a trial has too many of; False if its checkpoints are not watched."""
        manager = LeasingCheckpointManager.of(trial)
        if manager is None:
            return False
        manager.prune()
        return True
