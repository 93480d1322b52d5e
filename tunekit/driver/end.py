"""The end of a sweep: wait for the last validations, then deliver and write what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.progress import Display
from tunekit.clock import Clock
from tunekit.core.engine import Engine, Input
from tunekit.core.events import CutShort
from tunekit.core.progress import News, awaited
from tunekit.core.validation import Pending
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.failures import FailureReports
from tunekit.errors import TunekitError
from tunekit.results.trial_files import TrialFiles
from tunekit.validating.validator import Validator

logger = logging.getLogger(__name__)

# At the end of a sweep: seconds until the first message, between messages, and between refreshes.
_FIRST_NEWS_S, _NEWS_INTERVAL_S, _REFRESH_INTERVAL_S = 2.0, 10.0, 1.0


class Draining:
    """Measure how long a sweep waits for its last validations, and log the wait at intervals.

    It does not block, so that Tune continues to take steps.

    Args:
        clock: The source of the time.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self._since: float | None = None
        self._news = self._fresh = News(0.0, 0.0)
        #: Seconds that the sweep continued after its last trial had ended.
        self.took_s = 0.0

    def goes_on(self, display: Display, pending: Collection[Pending]) -> None:
        """Record that the sweep waits, and show or log at intervals what it waits for."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
            first_s = _FIRST_NEWS_S if display.shows else _NEWS_INTERVAL_S
            self._news = News(first_s, _NEWS_INTERVAL_S)
            self._fresh = News(_REFRESH_INTERVAL_S, _REFRESH_INTERVAL_S)
        text = self.awaited(pending) if self._news.due(now) else None
        if not self._fresh.due(now) and text is None:
            return
        if not display.refresh(text) and text is not None:
            logger.info("%s.", text)

    @property
    def waits(self) -> bool:
        """Return whether the sweep waits only for validations."""
        return self._since is not None

    def over(self) -> None:
        """Record that the sweep no longer waits."""
        if self._since is not None:
            self.took_s += self._clock.monotonic() - self._since
            self._since = None

    def broken_off(self) -> None:
        """Record that the sweep was interrupted while it waited."""
        self._since = None

    def awaited(self, pending: Collection[Pending]) -> str | None:
        """Describe the validations that the sweep waits for at its end; None before its end."""
        if self._since is None or not pending:
            return None
        return awaited(pending, self._clock.monotonic() - self._since)


@dataclass(eq=False)
class SweepEnd:
    """Decide when a sweep is over, and whether it has ended or was interrupted.

    Args:
        controller: The sweep's controller.
        draining: Measures the wait for the last validations.
        display: Shows the wait.
        engine: The state of the sweep.
        validator: Runs its validations.
        deliveries: Delivers the remaining scores and ends.
        files: Writes the files of its trials.
        failures: Reports failures.
        emit: Records and applies each event.
    """

    controller: Controller
    draining: Draining
    display: Display
    engine: Engine
    validator: Validator
    deliveries: Deliveries
    files: TrialFiles
    failures: FailureReports
    emit: Callable[[Input], None]
    #: The error that the sweep ends with, if any.
    error: TunekitError | None = field(default=None, init=False)
    # The trials that the time budget or ``fail_fast`` has stopped; None if neither has.
    _cut: set[str] | None = field(default=None, init=False)
    # Whether the sweep was over at the end of the last step: Tune then takes no more steps.
    _ended_by_itself: bool = field(default=False, init=False)

    @property
    def pending(self) -> bool:
        """Return whether the sweep has validations to wait for."""
        return not self.validator.idle and self.error is None

    def step(self, trials: list[Trial]) -> None:
        """Write the files of ended trials at the end of a step, and conclude a sweep that is over.

        Tune takes steps while the last validations run, so the resources of the last trials become
        free and Ctrl-C works.
        """
        if self.files.all_final:
            return
        self.files.finalize()
        if not self.controller.finished:
            return
        if self.pending:
            self.draining.goes_on(self.display, self.validator.statuses())
        else:
            self._conclude(trials)

    def note(self) -> None:
        """Record whether everything is done, before Tune ends all trials and makes it look so."""
        all_final = self.files.all_final and self.validator.idle
        self._ended_by_itself = all_final and self.controller.finished

    def conclude_restored(self, trials: list[Trial]) -> bool:
        """Conclude a restored sweep if its trials have ended, because Tune will take no steps.

        Returns:
            Whether it was concluded.
        """
        over = self.controller.finished and self.validator.idle
        if over:
            self._conclude(trials)
        return over

    @property
    def has_ended(self) -> bool:
        """Return whether the sweep has ended; False if it was interrupted."""
        ended = self._ended_by_itself and self.files.all_final and self.error is None
        return ended and (self._cut is None or not (self._cut or self.controller.to_come))

    def note_cut(self, trials: list[Trial]) -> None:
        """Record the trials that Tune has stopped early, before it saves them as ended."""
        if self._cut is None and self.controller.cuts_short:
            stopped = [trial.trial_id for trial in trials if trial.status == Trial.TERMINATED]
            self._cut = {t for t in stopped if not self.engine.delivery.completed(t)}
            self.emit(CutShort(trial_ids=sorted(self._cut)))

    def _conclude(self, trials: list[Trial]) -> None:
        """Deliver and write everything that is left, after the last validation has ended."""
        cut = self._cut or set()
        self.deliveries.conclude(trial for trial in trials if trial.trial_id not in cut)
        self.draining.over()
        self.files.finalize(at_end=True)
        self.error = self.error or self.failures.conclude(trials, cut)
