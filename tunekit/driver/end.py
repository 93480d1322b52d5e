"""The end of a sweep: whether it has ended or was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit.core.engine import Engine
from tunekit.core.events import CutShort, Event
from tunekit.driver.failures import FailureReports
from tunekit.errors import TunekitError
from tunekit.validating.validator import Validator


@dataclass(eq=False)
class SweepEnd:
    """Decide whether a sweep has ended or was interrupted.

    Args:
        controller: The sweep's controller.
        engine: The state of the sweep.
        validator: Runs its validations.
        failures: Reports failures.
        emit: Records and applies each event.
    """

    controller: Controller
    engine: Engine
    validator: Validator
    failures: FailureReports
    emit: Callable[[Event], None]
    #: The error that the sweep ends with, if any.
    error: TunekitError | None = field(default=None, init=False)
    # The trials that the time budget or ``fail_fast`` has stopped; None if neither has.
    _cut: set[str] | None = field(default=None, init=False)
    # Whether the sweep was over at the end of the last step: Tune then takes no more steps.
    _ended_by_itself: bool = field(default=False, init=False)

    def conclude(self, trials: list[Trial]) -> None:
        """Report what is left to report when the last trial has ended."""
        self.error = self.error or self.failures.conclude(trials, self._cut or set())

    def note(self) -> None:
        """Record whether everything is done, before Tune ends all trials and makes it look so."""
        self._ended_by_itself = self.controller.finished

    @property
    def has_ended(self) -> bool:
        """Return whether the sweep has ended; False if it was interrupted."""
        ended = self._ended_by_itself and self.error is None
        return ended and (self._cut is None or not (self._cut or self.controller.to_come))

    def note_cut(self, trials: list[Trial]) -> None:
        """Record the trials that Tune has stopped early, before it saves them as ended."""
        if self._cut is None and self.controller.cuts_short:
            stopped = [trial.trial_id for trial in trials if trial.status == Trial.TERMINATED]
            self._cut = {t for t in stopped if t not in self.engine.ended}
            self.emit(CutShort(trial_ids=sorted(self._cut)))
