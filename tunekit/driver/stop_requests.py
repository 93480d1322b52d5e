"""Carry out requests to stop trials of a running sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tunekit.clock import Clock
from tunekit.core.engine import Engine
from tunekit.core.events import Asked, Event
from tunekit.core.pace import Pace
from tunekit.journal.ledger import Ledger

logger = logging.getLogger(__name__)

# Requests are read once a second, less often if reading takes more than this share of the time.
_SHARE, _INTERVAL_S = 0.05, 1.0


@dataclass(eq=False)
class StopRequests:
    """Record each request in the journal; the trial is stopped at the end of the step.

    Args:
        ledger: The source of requests.
        engine: The state of the sweep.
        trials: Its trials; more may be added.
        clock: The sweep's clock.
        emit: Records each event, before it takes effect.
    """

    ledger: Ledger
    engine: Engine
    trials: Collection[str]
    clock: Clock
    emit: Callable[[Event], None]
    _pace: Pace = field(default_factory=lambda: Pace(_SHARE, _INTERVAL_S), init=False)
    _complained: str = field(default="", init=False)

    def look(self) -> None:
        """Record the requests since the last call, at most once a second."""
        began = self.clock.monotonic()
        if not self._pace.due(began):
            return
        try:
            for trial_id in self.ledger.to_stop():
                if trial_id in self.trials and self.engine.can_stop(trial_id):
                    self.emit(Asked(trial_id=trial_id))
                    logger.info("Trial %s is stopped, as requested by hand.", trial_id)
                self.ledger.recorded_stop(trial_id)
        except Exception as error:  # storages raise whatever their libraries raise
            if str(error) != self._complained:
                self._complained = str(error)
                logger.warning("Requests to stop trials cannot be read: %s", error)
        self._pace.took(began, self.clock.monotonic())
