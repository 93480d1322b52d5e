"""How a test puts a sweep's files back, as a restore does."""

from __future__ import annotations

from collections.abc import Sequence

from tunekit.core.events import Event
from tunekit.errors import RestoreError
from tunekit.journal.snapshots import RestorePoint, saved_state
from tunekit.journal.storage import Folder


def prepare_restore(
    folder: Folder, events: Sequence[Event], now: str | None = None
) -> RestorePoint:
    """Put Tune's files of an experiment as its newest archive has them.

    Arguments: as of :meth:`tunekit.journal.snapshots.SavedState.put_back`.

    Raises:
        tunekit.errors.RestoreError: If there is nothing to restore from, or an archive was
            tampered with.
        OSError: If the storage fails.
    """
    state = saved_state(folder, events)
    if state is None:
        raise RestoreError(
            "The sweep was killed before its state was saved for the first time: no trial had "
            "begun, so that nothing is lost. Start it again with Tuner(...).fit()."
        )
    state.put_back(folder, events, now)
    return state.point
