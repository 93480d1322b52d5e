"""What Tune's own schedulers do by private names, for those that tunekit adds to them."""

from __future__ import annotations

import os
from typing import Any

from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.stand_ins import StandInController
from tunekit.core.confidence import Interval
from tunekit.core.decisions import DecisionRule

__all__ = ["JudgingScheduler", "nothing_under_way", "start_one_by_one"]


class JudgingScheduler(TrialScheduler):
    """A scheduler that ranks trials by a metric, and says itself which scores it will use.

    Tune, ``ResourceChangingScheduler`` and loggers read its metric and mode as those of Tune's.

    Args:
        time_attr: The name, in a result, of the time that it goes by.
        metric: What it ranks trials by; None leaves it to ``TuneConfig``.
        mode: Which values are better, ``"min"`` or ``"max"``; None leaves it to ``TuneConfig``.
        max_t: The time at which a trial that has reached it has run its course.
    """

    # A trial that is to pause must not have run ahead.
    _supports_buffered_results = False

    def __init__(self, time_attr: str, metric: str | None, mode: str | None, max_t: float):
        super().__init__()
        self.time_attr, self.max_t = time_attr, max_t
        self._metric, self._mode = metric, mode

    @property
    def mode(self) -> str | None:
        """Return which values of the metric are better, ``"min"`` or ``"max"``."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the metric and the mode of ``TuneConfig``; False if it has been given its own."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        if self._metric is None and self._mode:
            self._metric = DEFAULT_METRIC
        return True

    @property
    def knows_its_rule(self) -> bool:
        """Return whether :meth:`rule` is of the same class as its decisions: a subclass that
        decides otherwise may use other scores."""
        decides = next(kind for kind in type(self).__mro__ if "on_trial_result" in vars(kind))
        return "rule" in vars(decides)

    def rule(self, trial: Trial) -> DecisionRule:
        """Return which scores of a trial it will use, as its books stand."""
        raise NotImplementedError

    def decides_alike(self, trial: Trial, at: float, interval: Interval) -> bool | None:
        """Return whether it decides the same wherever in an interval a score is; None: unknown.

        Args:
            trial: The trial.
            at: What the score serves, as :meth:`rule` says.
            interval: Where the score is; larger is better.
        """
        return None

    def rungs(self) -> list[int]:
        """Return the iterations at which it compares trials, if these are the same for all."""
        return []


def nothing_under_way(tune_controller: Any) -> bool:
    """Return whether nothing is under way that a search algorithm may wait for.

    Args:
        tune_controller: What a scheduler was given. None of its trials runs or is about to.
    """
    return tune_controller.idle if isinstance(tune_controller, StandInController) else True


def start_one_by_one(tune_controller: Any) -> None:
    """Let Tune ask for the resources of one new trial at a time.

    It asks for those of up to 200 at once, and these would all start before a trial that is
    resumed later. ``TUNE_MAX_PENDING_TRIALS_PG`` says another number.

    Args:
        tune_controller: What a scheduler was given.
    """
    if isinstance(tune_controller, StandInController):
        tune_controller = tune_controller.wrapped
    if isinstance(tune_controller, TrialRunnerWrapper):
        tune_controller = tune_controller._tune_controller
    if os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "auto") == "auto":
        tune_controller.update_max_pending_trials(1)
