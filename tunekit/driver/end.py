"""The end of a sweep: wait for the last validations, then deliver and write what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.progress import Display
from tunekit.clock import Clock
from tunekit.core.engine import Engine, Input
from tunekit.core.events import BudgetExpired
from tunekit.core.progress import News, awaited
from tunekit.core.validation import Pending
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.failures import FailureReports
from tunekit.errors import TunekitError
from tunekit.results.trial_files import TrialFiles
from tunekit.validating.validator import Validator

__all__ = ["Draining", "SweepEnd"]

logger = logging.getLogger(__name__)

# At the end of a sweep: seconds until the first message, between messages, and between refreshes.
_FIRST_NEWS_S, _NEWS_INTERVAL_S, _REFRESH_INTERVAL_S = 2.0, 10.0, 1.0


class Draining:
    """Measure how long a sweep waits for its last validations, and log it at intervals.

    It does not block: Tune continues to take steps.

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
        """Record that the sweep waits; show it, and log at intervals what it waits for."""
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
        """Return whether the sweep waits for nothing but validations."""
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
        """Return what the sweep waits for at its end; None before its end."""
        if self._since is None or not pending:
            return None
        return awaited(pending, self._clock.monotonic() - self._since)


class SweepEnd:
    """Decide when a sweep is over, and whether it has ended or was interrupted.

    Args:
        controller: The sweep's controller.
        draining: Measures the wait for the last validations.
        display: Shows the wait.
        engine: The state of the sweep.
        validators: Run its validations.
        deliveries: Delivers what is left.
        files: Writes the files of its trials.
        failures: Reports failures.
        emit: Records and applies each event.
    """

    def __init__(
        self,
        controller: Controller,
        draining: Draining,
        display: Display,
        *,
        engine: Engine,
        validators: Collection[Validator],
        deliveries: Deliveries,
        files: TrialFiles,
        failures: FailureReports,
        emit: Callable[[Input], None],
    ):
        self._controller, self._draining, self._display = controller, draining, display
        self._engine, self._validators, self._deliveries = engine, validators, deliveries
        self._files, self._failures, self._emit = files, failures, emit
        #: The error that the sweep ends with, if any.
        self.error: TunekitError | None = None
        # The trials that the time budget has stopped; None while there is time left.
        self._cut: set[str] | None = None
        # Whether the sweep was over at the end of the last step: Tune then takes no more steps.
        self._ended_by_itself = False

    @property
    def pending(self) -> bool:
        """Return whether the sweep has validations to wait for."""
        return not self._idle and self.error is None

    @property
    def _idle(self) -> bool:
        return all(validator.idle for validator in self._validators)

    def step(self, trials: list[Trial]) -> None:
        """End one of Tune's steps: write the files of ended trials, and conclude if all is over.

        Tune keeps working while the last validations run, so the last trials' resources become free
        and Ctrl-C works.
        """
        if self._files.all_final:
            return
        self._files.finalize()
        if not self._controller.finished:
            self._draining.over()  # a trial may have been added by hand
            return
        if self.pending:
            statuses = [one for v in self._validators for one in v.statuses()]
            self._draining.goes_on(self._display, statuses)
        else:
            self._conclude(trials)

    def note(self) -> None:
        """Record whether all is done, before Tune ends all trials and makes it look so."""
        all_final = self._files.all_final and self._idle
        self._ended_by_itself = all_final and self._controller.finished

    def conclude_restored(self, trials: list[Trial]) -> bool:
        """Conclude a restored sweep whose trials have ended, since Tune will take no steps.

        Returns:
            Whether it was such a sweep.
        """
        return self._controller.finished and self._idle and self._conclude(trials)

    @property
    def has_ended(self) -> bool:
        """Return whether the sweep has ended; False if it was interrupted."""
        ended = self._ended_by_itself and self._files.all_final and self.error is None
        return ended and (self._cut is None or not (self._cut or self._controller.to_come))

    def note_end_of_time(self, trials: list[Trial]) -> None:
        """Record the trials that the time budget has stopped, before Tune's state has them."""
        if self._cut is None and self._controller.out_of_time:
            stopped = [trial.trial_id for trial in trials if trial.status == Trial.TERMINATED]
            self._cut = {t for t in stopped if not self._engine.delivery.completed(t)}
            self._emit(BudgetExpired(trial_ids=sorted(self._cut)))

    def _conclude(self, trials: list[Trial]) -> bool:
        """Deliver and write everything that is left, after the last validation has ended.

        Returns:
            Whether that was all: a further stage may still have to validate finished trials.
        """
        cut = self._cut or set()
        self._deliveries.conclude(trial for trial in trials if trial.trial_id not in cut)
        if self.pending:
            return False
        self._draining.over()
        self._files.finalize(at_end=True)
        self.error = self.error or self._failures.conclude(trials, cut)
        return True
