"""Shows validated metrics in trials while they run, and writes their files when they have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ray.tune.experiment import Trial

from tunekit.core.engine import Engine
from tunekit.core.events import Event
from tunekit.core.validation import Outcome
from tunekit.results.fold import Fold

__all__ = ["TrialFiles"]


class TrialFiles:
    """Knows which trials have something new to show, and whose files are to be written.

    Args:
        state: The state of the sweep.
        changed: Called with a trial of which Tune is to save something new.
        finalized: Called once with each trial whose files are written.

    Example:
        >>> files = TrialFiles(Engine(), changed=print, finalized=print)
        >>> files.all_final
        True
    """

    def __init__(
        self,
        state: Engine,
        *,
        changed: Callable[[Trial], None],
        finalized: Callable[[Trial], None],
    ):
        self._state, self._changed, self._finalized = state, changed, finalized
        self._fold = Fold(state.history)
        self._reported: dict[str, Trial] = {}
        self._open: dict[str, Trial] = {}
        self._final: dict[str, Trial] = {}
        # How many names of validated metrics were known when files were last written.
        self._names = 0

    @property
    def all_final(self) -> bool:
        """Return whether the files of all trials are written."""
        return not self._open

    def add(self, trial: Trial) -> None:
        """Take a trial that runs, or may: its files are to be written when it has ended."""
        self._open[trial.trial_id] = self._reported[trial.trial_id] = trial

    def reported(self, trial: Trial) -> None:
        """Take that a trial has reported, and shows that report now."""
        self._reported[trial.trial_id] = trial

    def scored(self, trial: Trial, outcome: Outcome) -> None:
        """Show a new score of a trial."""
        self._fold.score(trial, outcome)

    def staged(self, trial: Trial, outcome: Outcome) -> None:
        """Show a new score that a further stage has found."""
        self._fold.staged(trial, outcome)

    def show(self) -> None:
        """Show validated metrics in what trials have reported since the last time."""
        for trial in self._reported.values():
            self._fold.last_result(trial)
        self._reported.clear()

    def finalize(self, *, at_end: bool = False) -> None:
        """Write the files of the trials that have ended, once their last validation has.

        Not before the first score has told which names are validation's; and once more when a
        later score brings a new one.

        Args:
            at_end: Whether no more scores come.
        """
        history = self._state.history
        names = len(history.names) + len(history.staged_names)
        if self._state.hesitates() or (not history.names and not at_end):
            return
        if names != self._names:
            self._names = names
            self._open.update(self._final)
        for trial_id, trial in list(self._open.items()):
            if not trial.is_finished() or self._state.record(trial_id).pending:
                continue
            del self._open[trial_id]
            again = trial_id in self._final
            self._final[trial_id] = trial
            self._fold.finalize(trial)
            self._changed(trial)
            if not again:
                self._finalized(trial)

    def restore(self, trials: Mapping[str, Trial], events: Iterable[Event], *, table: bool) -> None:
        """Write the files of a restored sweep again; see :meth:`Fold.restore`."""
        self._fold.restore(trials, events, self._state.ancestry, table=table)
