"""The base class of tunekit's own schedulers, such as :class:`tunekit.schedulers.PromotionASHA`.

They state what tunekit reads from the internal state of Tune's schedulers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import TrialScheduler

from tunekit.core.decision_points import DecisionRule


@dataclass(frozen=True)
class Traits:
    """The properties of a scheduler; the defaults are correct for any, if not the most efficient.

    Attributes:
        at_times: It uses some scores only, given by its ``rule``.
        clones: It may overwrite a trial with the checkpoint of another trial.
        pauses: It may pause trials, or start them in another order than that of their creation.
        waits_for_all: It resumes the trials of a round when it gets the last result, and has to be
            reminded if a trial has ended without one.
        synchronous: It compares all trials at the same time.
        replays: It refuses a restarted trial, because it accepts a single trial.

    Example:
        >>> Traits(clones=False).pauses
        True
    """

    at_times: bool = False
    clones: bool = True
    pauses: bool = True
    waits_for_all: bool = False
    synchronous: bool = False
    replays: bool = False


class SchedulerBase(TrialScheduler):
    """Rank trials by a metric, and state which scores will be used.

    Tune, ``ResourceChangingScheduler`` and loggers read its metric and mode as they read those of
    Tune's schedulers.

    Args:
        time_attr: The name of its time in results.
        metric: The metric to rank trials by; None takes that of ``TuneConfig``.
        mode: ``"min"`` or ``"max"``; None takes that of ``TuneConfig``.
        max_t: The time at which every trial is stopped.

    Example:
        >>> from tunekit.core.decision_points import Rungs
        >>> class StopAt(SchedulerBase):
        ...     traits = Traits(at_times=True, clones=False, pauses=False)
        ...
        ...     def rule(self, trial):
        ...         return Rungs((self.max_t,))
        ...
        ...     def on_trial_result(self, tune_controller, trial, result):
        ...         return self.STOP if result[self.time_attr] >= self.max_t else self.CONTINUE
        >>> scheduler = StopAt("epoch", "accuracy", "max", max_t=4)
        >>> [scheduler.rule(None).serves(now, coming=()) for now in (3, 5)]
        [None, 4]
    """

    #: Its properties; a subclass that decides otherwise is assumed to have the defaults.
    traits = Traits(at_times=True)

    # A trial must not run ahead of a pause.
    _supports_buffered_results = False

    def __init__(self, time_attr: str, metric: str | None, mode: str | None, max_t: float):
        super().__init__()
        self.time_attr, self.max_t = time_attr, max_t
        self._metric, self._mode = metric, mode

    @property
    def mode(self) -> str | None:
        """Return the mode of the metric, ``"min"`` or ``"max"``."""
        return self._mode

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the metrics to rank trials by, each with its mode, as far as known."""
        metric = self._metric
        return {} if metric is None or metric == DEFAULT_METRIC else {metric: self._mode}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Set the metric and the mode of ``TuneConfig``; return False if it has its own."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        if self._metric is None and self._mode:
            self._metric = DEFAULT_METRIC
        return True

    @property
    def knows_its_rule(self) -> bool:
        """Return whether the class that makes the decisions also defines their :meth:`rule`."""
        decides = next(kind for kind in type(self).__mro__ if "on_trial_result" in vars(kind))
        return "rule" in vars(decides)

    def rule(self, trial: Trial) -> DecisionRule:
        """Return the rule of which scores of a trial it will use, by its current state."""
        raise NotImplementedError


def start_one_by_one(tune_controller: Any) -> None:
    """Make Tune request the resources of one new trial at a time.

    By default, it requests those of up to 200 trials, which would all start before a trial that is
    resumed later. A number in ``TUNE_MAX_PENDING_TRIALS_PG`` is left as it is.

    Args:
        tune_controller: The controller that Tune passed to the scheduler.
    """
    if isinstance(tune_controller, TrialRunnerWrapper):
        tune_controller = tune_controller._tune_controller
    if os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "auto") == "auto":
        tune_controller.update_max_pending_trials(1)
