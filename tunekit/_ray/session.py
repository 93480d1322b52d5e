"""What Tune keeps of a sweep in a session: its folder, stoppers, saved state and statuses."""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.stopper import TimeoutStopper

from tunekit._ray.scheduler_kinds import controller_in
from tunekit._ray.stoppers import parts


def parts_of(tune_controller: Any) -> tuple[list[Any], Any, bool]:
    """Return a new sweep's callbacks and search algorithm, and whether it reuses actors."""
    tune = controller_in(tune_controller)
    return tune._callbacks._callbacks, tune._search_alg, bool(tune._reuse_actors)


class Session:
    """Read and change what Tune keeps of a sweep.

    Args:
        tune: The sweep's controller.
    """

    def __init__(self, tune: TuneController):
        self._tune = tune
        #: The experiment's storage context.
        self.storage: Any = tune._storage
        # ``time_budget_s`` and other stoppers that end all trials after a certain time.
        stoppers = parts(tune._stopper)
        self._time_budgets = [one for one in stoppers if isinstance(one, TimeoutStopper)]

    def begin(self) -> None:
        """Reset saved state of Tune that applies only to the former session.

        These are the rest of the time budget; whether a trial has failed (``fail_fast``), which
        ends the search; the decisions to be carried out after saves; and the files that Tune has
        fetched, which it would repeatedly copy back, in place, into the experiment's folder.
        """
        tune = self._tune
        for path in Path(self.storage.experiment_driver_staging_path).iterdir():
            own = tune._session_str in path.name
            if path.suffix in (".json", ".pkl") and path.is_file() and not own:
                path.unlink()
        tune._cached_trial_decisions.clear()
        tune._queued_trial_decisions.clear()
        if self.cuts_short:
            tune.search_alg._finished = False
        tune._has_errored = False
        for stopper in self._time_budgets:
            stopper._budget = stopper._timeout_seconds

    @property
    def cuts_short(self) -> bool:
        """Return whether Tune has stopped all trials: no time is left, or one has failed."""
        return self.out_of_time or bool(self._tune._fail_fast and self._tune._has_errored)

    @property
    def out_of_time(self) -> bool:
        """Return whether no time is left."""
        return any(stopper._budget <= 0 for stopper in self._time_budgets)

    @property
    def trials_to_come(self) -> int:
        """Return how many trials the search algorithm has yet to create; 0 if unknown."""
        return max(0, self._tune.search_alg.total_samples - len(self._tune.get_trials()))

    def wrapped(self) -> TrialRunnerWrapper:
        """Return the controller as Tune passes it to schedulers."""
        return self._tune._wrapped()

    def set_status(self, trial: Trial, status: str) -> None:
        """Change the status of a trial that has no actor."""
        self._tune._set_trial_status(trial, status)

    @contextmanager
    def hiding(self, new: Collection[Trial]) -> Iterator[None]:
        """Hide trials from schedulers that do not know them yet."""
        tune, trials = self._tune, self._tune._trials
        live = tune._live_trials.intersection(new)
        tune._trials = [trial for trial in trials if trial not in new]
        tune._live_trials -= live
        yield
        tune._trials = trials
        tune._live_trials |= live

    def required_metrics(self) -> set[str]:
        """Return the metrics that ``TuneConfig`` and the search algorithm name."""
        search_alg = self._tune.search_alg
        outermost = getattr(search_alg, "searcher", None)
        # If it wraps searchers, they need theirs.
        owners = [self._tune, search_alg, outermost if hasattr(outermost, "searcher") else None]
        metrics = [getattr(owner, "_metric", None) for owner in owners]
        names = itertools.chain(*(one if isinstance(one, list) else [one] for one in metrics))
        return {name for name in names if isinstance(name, str) and name != DEFAULT_METRIC}

    # Saved state -------------------------------------------------------------------------------

    def mark_changed(self, trial: Trial) -> None:
        """Include a trial's changed metadata in the next saved state."""
        trial.run_metadata.invalidate_cache()
        self._tune._mark_trial_to_checkpoint(trial)

    def use_current_folder(self, trial: Trial) -> None:
        """Store a trial in the experiment's current folder.

        A restored search algorithm creates trials in the folder in which it was saved, but the
        experiment may have moved since, or be reached by another path.
        """
        names = ("storage_filesystem", "storage_fs_path", "experiment_dir_name")
        current = {name: getattr(self.storage, name) for name in names}
        if any(getattr(trial.storage, name) != value for name, value in current.items()):
            moved = copy.copy(trial.storage)
            vars(moved).update(current)
            trial.set_storage(moved)
            trial.invalidate_json_state()

    def saved_files(self) -> dict[str, bytes]:
        """Return the files of Tune's last save in this session."""
        return _files_in(Path(self.storage.experiment_driver_staging_path), self._tune._session_str)

    def search_files(self) -> dict[str, bytes]:
        """Return the files of the search algorithm's current state."""
        session = self._tune._session_str
        with tempfile.TemporaryDirectory() as folder:
            self._tune.search_alg.save_to_dir(folder, session_str=session)
            return _files_in(Path(folder), session)


def _files_in(folder: Path, session: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob(f"*{session}*"))
        if path.suffix in (".json", ".pkl") and path.is_file() and not path.name.startswith(".")
    }
