"""How a sweep ends: it waits for its last validations, and delivers and writes what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.progress import Display
from tunekit.clock import Clock
from tunekit.core.engine import Engine
from tunekit.core.events import BudgetExpired, Event
from tunekit.core.metrics import flatten
from tunekit.core.progress import News, awaited
from tunekit.core.validation import Pending
from tunekit.driver.deliveries import Deliveries
from tunekit.driver.failures import FailureReports
from tunekit.driver.forgotten import Forgotten
from tunekit.driver.stages import Stages
from tunekit.errors import TunekitError
from tunekit.results.trial_files import TrialFiles

__all__ = ["Draining", "SweepEnd"]

logger = logging.getLogger(__name__)

# How long a sweep waits at its end before it says so, and says so again, and is shown anew.
_FIRST_NEWS_S, _NEWS_INTERVAL_S, _REFRESH_INTERVAL_S = 2.0, 10.0, 1.0


class Draining:
    """Knows for how long a sweep has waited for its last validations, and says so now and then.

    It does not wait: whoever holds it does.

    Args:
        clock: What the time is read from.
        statuses: How far every validation is that has not ended.
    """

    def __init__(self, clock: Clock, statuses: Callable[[], Collection[Pending]]):
        self._clock, self._statuses = clock, statuses
        self._since: float | None = None
        self._news = self._fresh = News(0.0, 0.0)
        #: Seconds that the sweep went on after its last trial had ended.
        self.took_s = 0.0

    def goes_on(self, display: Display | None) -> None:
        """The sweep waits: the first time that begins; show it, and say now and then for what."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
            first_s = _FIRST_NEWS_S if display is not None and display.shows else _NEWS_INTERVAL_S
            self._news = News(first_s, _NEWS_INTERVAL_S)
            self._fresh = News(_REFRESH_INTERVAL_S, _REFRESH_INTERVAL_S)
        text = self.awaited() if self._news.due(now) else None
        if not self._fresh.due(now) and text is None:
            return
        if (display is None or not display.refresh(text)) and text is not None:
            logger.info("%s.", text)

    @property
    def waits(self) -> bool:
        """Return whether the sweep waits for nothing but validations."""
        return self._since is not None

    def over(self) -> None:
        """The sweep does not wait any more."""
        if self._since is not None:
            self.took_s += self._clock.monotonic() - self._since
            self._since = None

    def broken_off(self) -> None:
        """The sweep was interrupted while it waited."""
        self._since = None

    def awaited(self) -> str | None:
        """Return what the sweep waits for at its end; None before that."""
        if self._since is None:
            return None
        pending = self._statuses()
        return awaited(pending, self._clock.monotonic() - self._since) if pending else None


class SweepEnd:
    """Decides when a sweep is over, and whether it has ended or was interrupted.

    Args:
        clock: What to read the time from.
        state: The state of the sweep.
        stages: Run its validations.
        files: Writes the files of its trials.
        failures: Tells of validations that failed.
        forgotten: Tells what a sweep lacks to be judged.
        emit: Takes what happens, before anything comes of it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        state: Engine,
        stages: Stages,
        files: TrialFiles,
        failures: FailureReports,
        forgotten: Forgotten,
        emit: Callable[[Event], None],
    ):
        self._clock, self._emit = clock, emit
        self._state, self._stages = state, stages
        self._files, self._failures, self._forgotten = files, failures, forgotten
        self._controller: Controller | None = None
        self._deliveries: Deliveries | None = None
        #: Where the wait is shown.
        self.display: Display | None = None
        #: Says what the sweep waits for.
        self.draining = Draining(clock, stages.statuses)
        self._error: TunekitError | None = None
        # The trials that the time budget has stopped; None while there is time left.
        self._cut: set[str] | None = None
        # Whether the sweep was over at the end of the last step: Tune then takes no further one.
        self._ended_by_itself = False

    def attach(self, controller: Controller, deliveries: Deliveries) -> None:
        """Take the sweep's controller, in whose steps the end waits, and what delivers the rest."""
        self._controller, self._deliveries = controller, deliveries

    def fail(self, error: TunekitError) -> None:
        """End the sweep with an error, at the end of the current step."""
        self._error = self._error or error

    def raise_error(self, *, save: bool) -> None:
        """Raise the error that the sweep ends with, if any.

        Args:
            save: Whether Tune is to save the sweep before.
        """
        if self._error is not None:
            if save and self._controller is not None:
                self._controller.save()
            raise self._error

    @property
    def pending(self) -> bool:
        """Return whether the sweep has validations to wait for."""
        return not self._stages.idle and self._error is None

    def step(self, trials: list[Trial]) -> None:
        """Take the end of one of Tune's steps: write the files of ended trials, conclude if over.

        Tune keeps working while the last validations run, so the last trials' resources become
        free and Ctrl-C is seen.
        """
        if self._files.all_final:
            return
        self._files.finalize()
        if not self._over:
            return
        if self.pending:
            self.draining.goes_on(self.display)
        else:
            self._conclude(trials)

    def note(self) -> None:
        """Note whether all is done, before Tune ends all trials and it would always seem so."""
        self._ended_by_itself = self._files.all_final and self._stages.idle and self._over

    def conclude_restored(self, trials: list[Trial]) -> bool:
        """Conclude a restored sweep whose trials have ended: Tune will take no step.

        Returns:
            Whether it is such a sweep.
        """
        return self._over and self._stages.idle and self._conclude(trials)

    @property
    def has_ended(self) -> bool:
        """Return whether the sweep has ended, rather than been interrupted."""
        ended = self._ended_by_itself and self._files.all_final and self._error is None
        if self._cut is not None and self._controller is not None:
            ended = ended and not self._cut and not self._controller.to_come
        return ended

    def note_end_of_time(self, trials: list[Trial]) -> None:
        """Record which trials a used-up time budget has stopped, before Tune's state has them."""
        controller = self._controller
        if self._cut is not None or controller is None or not controller.out_of_time:
            return
        stopped = [trial.trial_id for trial in trials if trial.status == Trial.TERMINATED]
        self._cut = {t for t in stopped if not self._state.delivery.completed(t)}
        self._emit(BudgetExpired(trial_ids=sorted(self._cut)))

    def _cut_short(self, trial: Trial) -> bool:
        """Return whether the time budget has stopped a trial, which goes on after a restore."""
        return self._cut is not None and trial.trial_id in self._cut

    @property
    def _over(self) -> bool:
        """Return whether Tune has no trial left."""
        return self._controller is not None and self._controller.finished

    def _conclude(self, trials: list[Trial]) -> bool:
        """Deliver and write all that is left, after the last validation has ended.

        Returns:
            Whether that was all: a further stage may have to validate what has run its course.
        """
        if self._deliveries is not None:
            self._deliveries.conclude(trial for trial in trials if not self._cut_short(trial))
        if self.pending:
            return False
        self.draining.over()
        self._stages.conclude()
        self._files.finalize(at_end=True)
        self._require_a_checkpoint(trials)
        return True

    def _require_a_checkpoint(self, trials: list[Trial]) -> None:
        """Fail a sweep that has saved nothing but has to be judged by what validation produces."""
        state = self._state
        reported = {name for trial in trials for name in flatten(trial.last_result)}
        missing = sorted(state.required - reported)
        self._failures.conclude(missing, succeeded=bool(state.history.names))
        if not state.has_saved:
            ended = [t for t in trials if t.status == Trial.TERMINATED and not self._cut_short(t)]
            failed = sum(trial.status == Trial.ERROR for trial in trials)
            error = self._forgotten.error([t.last_result for t in ended], missing, failed=failed)
            if error is not None:
                self.fail(error)
