"""How a sweep ends: it waits for its last validations, and delivers and writes what is left."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection
from typing import Any

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
# How long to sleep when waiting only for validations.
_PAUSE_S = 0.02
# How long validations may get no resources before that counts as a shortage.
_GRACE_S = 2.0


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
        deliveries: Delivers what is left.
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
        deliveries: Deliveries,
        files: TrialFiles,
        failures: FailureReports,
        forgotten: Forgotten,
        emit: Callable[[Event], None],
    ):
        self._clock, self._emit = clock, emit
        self._state, self._stages, self._deliveries = state, stages, deliveries
        self._files, self._failures, self._forgotten = files, failures, forgotten
        self._controller: Controller | None = None
        #: Where the wait is shown.
        self.display: Display | None = None
        #: Says what the sweep waits for.
        self.draining = Draining(clock, stages.statuses)
        # What Tune replaces while it runs, and puts back at Ctrl-C.
        self._sigint_handler: Any = None
        self._error: TunekitError | None = None
        # The trials that the time budget has stopped; None while there is time left.
        self._cut: set[str] | None = None
        # Whether the sweep was over at the end of the last step: Tune then takes no further one.
        self._ended_by_itself = False
        # Whether the last validations wait for resources that Tune gives back after its last step.
        self._left_to_the_end = False

    def begin(self) -> None:
        """Watch for Ctrl-C from now on."""
        self._sigint_handler = signal.getsignal(signal.SIGINT)

    def attach(self, controller: Controller) -> None:
        """Take the sweep's controller: from now on the end waits in its steps."""
        self._controller = controller

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
        free and Ctrl-C is seen. Where its controller is not known, this can only wait here, as long
        as validations get resources; it waits for the others when Tune has given back all it had.
        """
        if self._files.all_final:
            return
        self._files.finalize()
        if not self._over(trials):
            return
        if self.pending:
            self.draining.goes_on(self.display)
            if self._controller is not None or not self._wait_here():
                return
        while not self._conclude(trials):
            if self._controller is not None or not self._wait_here():
                return

    def note(self, trials: list[Trial]) -> None:
        """Note whether all is done, before Tune ends all trials and it would always seem so."""
        over = self._files.all_final and self._stages.idle and self._over(trials)
        self._ended_by_itself = over

    def conclude_restored(self, trials: list[Trial]) -> bool:
        """Conclude a restored sweep whose trials have ended: Tune will take no step.

        Returns:
            Whether it is such a sweep.
        """
        if self._controller is None or not self._controller.finished or not self._stages.idle:
            return False
        return self._conclude(trials)

    def conclude_left(self, trials: list[Trial]) -> bool:
        """Wait for the validations that were left to the end, now that Tune has ended its trials.

        Returns:
            Whether any were; the sweep's error is then still to be raised.
        """
        left = self._left_to_the_end
        while left and self._wait_here(to_the_end=True):
            if self._conclude(trials):
                self.note(trials)
                break
        self.draining.broken_off()
        return left

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
        self._emit(BudgetExpired(time=self._clock.time(), trial_ids=sorted(self._cut)))

    def _cut_short(self, trial: Trial) -> bool:
        """Return whether the time budget has stopped a trial, which goes on after a restore."""
        return self._cut is not None and trial.trial_id in self._cut

    def _over(self, trials: list[Trial]) -> bool:
        if self._controller is not None:
            return self._controller.finished
        return all(trial.is_finished() for trial in trials)

    def _wait_here(self, *, to_the_end: bool = False) -> bool:
        """Wait for validations without Tune; return whether all have ended.

        Args:
            to_the_end: Whether to wait also for those that get no resources.
        """
        while self.pending:
            self._left_to_the_end = self._stages.starved_s() > _GRACE_S and not to_the_end
            if self._left_to_the_end:
                return False
            if self._interrupted:
                logger.warning("Interrupted with validations pending.")
                self.draining.broken_off()
                return False
            self._clock.sleep(_PAUSE_S)
            self._stages.poll(at_once=True)
            self._files.finalize()
            self.draining.goes_on(self.display)
        return True

    @property
    def _interrupted(self) -> bool:
        """Return whether Tune has seen Ctrl-C since the sweep began."""
        if threading.current_thread() is not threading.main_thread():
            return False
        return signal.getsignal(signal.SIGINT) is not self._sigint_handler

    def _conclude(self, trials: list[Trial]) -> bool:
        """Deliver and write all that is left, after the last validation has ended.

        Returns:
            Whether that was all: a further stage may have to validate what has run its course.
        """
        self._left_to_the_end = False
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
