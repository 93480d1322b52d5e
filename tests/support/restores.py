"""Folders of sweeps before they are restored; writes their files back, as a restore does."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ray import tune

import tunekit
from tests.support.fakes import FakeClock
from tunekit.core.events import Reported, TrialAdded, ValidationEnded
from tunekit.driver.snapshots import SnapshotWriter, _archive, saved_state
from tunekit.errors import RestoreError
from tunekit.journal.journal import Journal, events_in
from tunekit.journal.storage import LocalFolder

STATE = {
    "experiment_state-2026-01-01_00-00-00.json": b'{"trial_data": []}',
    "callback-states-2026-01-01_00-00-00.pkl": pickle.dumps({"as_of": 0}),
}
SNAPSHOT, SEARCH = "state/000000002-snapshot.zip", "state/000000003-search.zip"


class Saved:
    """A sweep that Tune has saved."""

    def __init__(self, **files: bytes):
        self.files = {**STATE, **files}

    def saved_files(self) -> dict[str, bytes]:
        return self.files

    def search_files(self) -> dict[str, bytes]:
        return {"searcher-state-2026-01-01_00-00-00.pkl": pickle.dumps({})}


def train(config: dict[str, Any]) -> None:
    """Never run here."""


def validate(checkpoint: tune.Checkpoint) -> dict[str, float]:
    return {"accuracy": 0.5}


def tuner(
    folder: Path, trainable: Any = train, name: str = "sweep", **options: Any
) -> tunekit.Tuner:
    """The Tuner of a sweep that has not begun."""
    given = {
        "tune_config": tune.TuneConfig(metric="accuracy", mode="max"),
        "run_config": tune.RunConfig(name=name, storage_path=str(folder)),
        "validation_config": tunekit.ValidationConfig(fn=validate),
    }
    return tunekit.Tuner(trainable, **{**given, **options})


def begin(home: Path) -> Path:
    """Add a trial that has reported and was validated to the sweep of a Tuner."""
    folder = LocalFolder(home)
    writer = Journal(folder)
    SnapshotWriter(folder, writer, FakeClock(), begins=True).snapshot(Saved())
    folder.put(SEARCH, _archive(Saved().search_files(), SEARCH))
    writer.append(TrialAdded(trial_id="a", search=SEARCH))
    writer.append(Reported(trial_id="a", report={"training_iteration": 1}))
    writer.append(ValidationEnded(id="a:0:1:1", status="validated", metrics={"accuracy": 0.5}))
    return home


def prepare_restore(home: Path, now: str | None = None) -> int:
    """Put Tune's files of an experiment as its newest archive has them.

    Raises:
        tunekit.errors.RestoreError: If there is nothing to restore from, or an archive was
            tampered with.
        OSError: If the storage fails.
    """
    folder, events = LocalFolder(home), events_in(home)
    state = saved_state(folder, events)
    if state is None:
        raise RestoreError(
            "The sweep was killed before its state was saved for the first time: no trial had "
            "begun, so that nothing is lost. Start it again with Tuner(...).fit()."
        )
    state.put_back(folder, events, now)
    return state.searcher_line


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, to see that nothing was changed."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
