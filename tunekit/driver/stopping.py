"""Stop the trials that a user has stopped by hand, in another process."""

from __future__ import annotations

import logging

from ray.tune.experiment import Trial

from tunekit._ray.validating_controller import ValidatingController
from tunekit.core.events import StopRequested
from tunekit.core.timing import Clock, Pace
from tunekit.driver.ledger import Ledger
from tunekit.journal.stop_requests import asked_to_stop, request_file

logger = logging.getLogger(__name__)

# Requests are read once a second, less often if reading takes more than this share of the time.
_SHARE, _INTERVAL_S = 0.05, 1.0


class StopsByHand:
    """Record the requests to stop trials, and carry them out.

    Args:
        ledger: The sweep's records.
        controller: The sweep's controller.
        clock: The sweep's clock.
    """

    def __init__(self, ledger: Ledger, controller: ValidatingController, clock: Clock):
        self._ledger, self._controller, self._clock = ledger, controller, clock
        self._pace = Pace(_SHARE, _INTERVAL_S)
        # Why reading them failed last.
        self._complained = ""

    def record(self) -> None:
        """Record the requests since the last call, at most once a second."""
        began, folder = self._clock.monotonic(), self._ledger.folder
        if folder is None or not self._pace.is_ready(began):
            return
        trials = {trial.trial_id for trial in self._controller.get_trials()}
        try:
            for trial_id in asked_to_stop(folder):
                if trial_id in trials and self._ledger.state.can_stop(trial_id):
                    self._ledger.record(StopRequested(trial_id=trial_id))
                    logger.info("Trial %s is stopped, as requested by hand.", trial_id)
                folder.remove(request_file(trial_id))
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("Requests to stop trials cannot be read: %s", error)
        self._pace.ran(began, self._clock.monotonic())

    def carry_out(self) -> None:
        """Stop the trials whose requests are recorded, each when it is not being saved.

        One that runs ends its process, and stops once Tune has processed its reports.
        """
        if not (stopping := self._ledger.state.stopping):
            return
        tune = self._controller
        trials = {trial.trial_id: trial for trial in tune.get_trials()}
        for trial_id in sorted(stopping):
            trial = trials.get(trial_id)
            if trial is None or trial.is_saving or tune.sweep.queue_of(trial_id).saves:
                continue
            if trial.status == Trial.RUNNING:
                tune.do(tune.waiting.next(tune.facts.trial(trial), tune.facts.situation()))
            else:
                tune.stop_trial(trial)
