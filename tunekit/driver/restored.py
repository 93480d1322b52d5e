"""What former sessions of a sweep have left, until it goes on from there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ray.tune.experiment import Trial

from tunekit._ray.checkpoints import delete_checkpoint, forget_missing, skip_existing, tracked
from tunekit._ray.controller import Controller
from tunekit._ray.storage import changed_at, paths_in
from tunekit.core.commands import Command
from tunekit.core.events import (
    CheckpointSaved,
    Event,
    Exploited,
    TrialAdded,
    ValidationRequested,
)
from tunekit.core.order import Told
from tunekit.core.retention import left_over
from tunekit.driver.requests import Requests
from tunekit.driver.restore import Offsets, Restoration, Restored
from tunekit.journal.ledger import Ledger
from tunekit.journal.places import Places
from tunekit.results.leases import CheckpointLeases
from tunekit.results.trial_files import TrialFiles
from tunekit.scheduling.scheduling import Scheduling
from tunekit.scheduling.state import SchedulerState

__all__ = ["RestoredSweep", "remove_left_over"]

logger = logging.getLogger(__name__)


class _Validations(Restored, Protocol):
    """What a restored sweep needs of its validations."""

    leases: CheckpointLeases
    files: TrialFiles
    requests: Requests

    def perform(self, command: Command) -> None:
        """Carry out what follows from an event."""
        ...

    @property
    def writes_tables(self) -> bool:
        """Return whether Tune's ``progress.csv`` is written."""
        ...

    def watch(self, trial: Trial) -> None:
        """Keep the checkpoints of a trial that are needed."""
        ...

    def retried(self, trial: Trial) -> None:
        """Record that a trial starts again: it will end again."""
        ...

    def caught_up(self, told: Mapping[str, list[Told]]) -> None:
        """Take that everything was told again, and what loggers were told of each trial."""
        ...


class RestoredSweep:
    """Holds what happened before a sweep was interrupted, and goes on from there.

    Args:
        sweep: The sweep's validations.
        trials: Its trials; others may be added.
    """

    def __init__(self, sweep: _Validations, trials: dict[str, Trial]):
        self._sweep, self._trials = sweep, trials
        #: What happened in former sessions, until the sweep has gone on from there.
        self.past: list[Event] = []
        self._saved: dict[str, Any] | None = None
        self._searched: int | None = None
        # The lines of the journal as of which Tune's state and the scheduler's were saved.
        self._as_of = self._scheduler_as_of = 0
        self._restoration: Restoration | None = None

    def restore(self, searched: int) -> None:
        """Restore the sweep from its files, which were put back.

        Args:
            searched: The line as of which the searcher was saved; 0: as the rest.
        """
        self._searched = searched

    def save(self, state: dict[str, Any]) -> None:
        """Keep what Tune had saved of the validations, until the folder is known."""
        self._saved = state

    @property
    def is_restored(self) -> bool:
        """Return whether it is to be restored: not to begin anew, whatever Tune finds."""
        return self._searched is not None

    def load(self, ledger: Ledger, state: SchedulerState | None, filesystem: Any) -> bool:
        """Read what was written down, and give the scheduler what it had saved.

        Returns:
            Whether there is a sweep to restore; otherwise it is a new one.
        """
        if self._saved is None and self._searched is None:
            return False
        saved, self._saved = self._saved or {}, None
        self.past = ledger.past()
        self._as_of = saved.get("as_of", 0)
        if state is not None and saved.get("scheduler") is not None:
            self._scheduler_as_of = self._as_of
            state.load(saved["scheduler"], self._sweep.places, filesystem=filesystem)
        return True

    @property
    def as_of(self) -> int:
        """Return the line of the journal as of which Tune's state was saved; 0 for a new sweep."""
        return self._as_of

    # While what happened is told again ----------------------------------------------------------

    @property
    def replays(self) -> bool:
        """Return whether it is being told what happened."""
        return self._restoration is not None

    def heard_later(self, trial_id: str) -> bool:
        """Return whether the scheduler heard of a trial again after what it is being told now."""
        return self._restoration is not None and self._restoration.heard_later(trial_id)

    def config_of(self, trial_id: str, generation: int) -> Mapping[str, Any]:
        """Return the hyperparameters of one of a trial's generations."""
        if self._restoration is not None:
            return self._restoration.config_of(trial_id, generation)
        trial = self._trials.get(trial_id)
        return {} if trial is None else trial.config

    # Going on -----------------------------------------------------------------------------------

    def resume(self, controller: Controller, scheduling: Scheduling) -> None:
        """Tell what happened since each part was saved, and go on from there."""
        sweep = self._sweep
        offsets = Offsets(
            trials=self._as_of,
            searcher=self._searched or self._as_of,
            scheduler=self._scheduler_as_of,
        )
        self._tell(self._trials, offsets, controller, scheduling)
        for trial_id, trial in self._trials.items():
            sweep.files.add(trial)
            if trial.is_finished():
                continue
            if sweep.state.record(trial_id).failed or sweep.state.delivery.completed(trial_id):
                sweep.retried(trial)
                scheduling.base.restart(scheduling.state.stand_ins.of(trial))
            for path in forget_missing(trial):
                logger.warning("Trial %s goes on without %s, which is gone.", trial_id, path)
            skip_existing(trial)
            sweep.leases.prune(trial)
        # Only now that the trials skip the names of what is removed.
        remove_left_over(self._trials.values(), self.past, sweep.places)
        sweep.files.restore(self._trials, self.past, table=sweep.writes_tables)
        past, self.past = self.past, []
        for command in sweep.state.reconcile():
            sweep.perform(command)
        if past[-1].n < self._as_of:
            self._record_lost(past)
        scheduling.restore.resume()
        for trial_id in list(self._trials):
            sweep.deliveries.deliver(trial_id)

    def resume_alone(self, trials: list[Trial]) -> None:
        """Resume without a scheduler of tunekit's: only pending validations are left to run."""
        sweep, known = self._sweep, {trial.trial_id: trial for trial in trials}
        for trial_id, trial in known.items():
            self._trials.setdefault(trial_id, trial)
        newest = self.past[-1].n
        self._tell(known, Offsets(newest, newest, newest))
        self.past = []
        for request in sweep.state.unfinished.values():
            trial = known[request.trial_id]
            sweep.files.add(trial)
            sweep.watch(trial)
        for command in sweep.state.reconcile():
            sweep.perform(command)

    def _tell(
        self,
        trials: Mapping[str, Trial],
        offsets: Offsets,
        controller: Controller | None = None,
        scheduling: Scheduling | None = None,
    ) -> None:
        """Tell each part what it has not heard of."""
        sweep = self._sweep
        restoration = Restoration(sweep, trials, self.past, offsets, controller, scheduling)
        self._restoration, sweep.leases.deletes_nothing = restoration, True
        restoration.run()
        self._restoration, sweep.leases.deletes_nothing = None, False
        sweep.caught_up(restoration.told)

    def _record_lost(self, past: Sequence[Event]) -> None:
        """Record what Tune's trials have saved and the journal lacks because its end was lost."""
        sweep = self._sweep
        known = {sweep.places.path(e.checkpoint) for e in past if isinstance(e, CheckpointSaved)}
        for trial in self._trials.values():
            sweep.requests.saved_unrecorded(trial, known)


def remove_left_over(trials: Iterable[Trial], events: Iterable[Event], places: Places) -> None:
    """Remove what is in trials' folders of checkpoints that nothing refers to.

    A checkpoint stays if the journal names it, whatever for, or Tune's saved state does, of
    whatever trial; and so does what was last written before its trial was added, or nobody knows
    when: that is not of this sweep. It can be killed, and called again, at any time.

    Args:
        trials: All trials of a restored sweep. Looked into are the folders of those that go on.
        events: The sweep's journal.
        places: Where the experiment is.
    """
    trials = list(trials)
    added: dict[str, float] = {}
    known = {path for trial in trials for path in tracked(trial)}
    for event in events:
        match event:
            case TrialAdded():
                added[event.trial_id] = event.time
            case CheckpointSaved() | ValidationRequested() | Exploited():
                known.add(places.path(event.checkpoint))
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
                logger.info("%s was removed: an upload that a killed process began.", path)
    except OSError as error:
        logger.warning("What a killed process left in %s stays there: %s", folder, error)
