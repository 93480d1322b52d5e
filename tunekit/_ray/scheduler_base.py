"""The base class of schedulers that say themselves what tunekit reads from Tune's.

Derive from it to add a scheduler: :class:`tunekit.schedulers.PromotionASHA` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.proxies import ProxyController
from tunekit.core.confidence import Interval
from tunekit.core.decision_points import DecisionRule

__all__ = ["SchedulerBase", "Traits", "nothing_under_way", "start_one_by_one"]


@dataclass(frozen=True)
class Traits:
    """What kind of scheduler it is. What is said by default is right for any, if not the best.

    Attributes:
        at_times: It decides by some scores, and its ``rule`` says by which.
        clones: It may overwrite a trial with the checkpoint of another one.
        pauses: It may pause trials, or start them in another order than they were made in.
        waits_for_all: It resumes the trials of a round when it gets the last one's result; one that
            has ended without has to be made up for.
        synchronous: It compares all trials at the same time.
        replays: It takes a trial that is restarted for a second one, and refuses it.

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
    """Rank trials by a metric, and say which scores will be used.

    Tune, ``ResourceChangingScheduler`` and loggers read its metric and mode as those of Tune's.

    Args:
        time_attr: The name, in a result, of the time that it goes by.
        metric: What it ranks trials by; None leaves it to ``TuneConfig``.
        mode: Which values are better, ``"min"`` or ``"max"``; None leaves it to ``TuneConfig``.
        max_t: The time at which a trial that has reached it is stopped.

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

    #: What kind it is; a subclass that decides otherwise is taken for one that may do anything.
    traits = Traits(at_times=True)

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

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the metrics to rank trials by, and which values of each are better, if known."""
        metric = self._metric
        return {} if metric is None or metric == DEFAULT_METRIC else {metric: self._mode}

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
        """Return which scores of a trial it will use, by its current state."""
        raise NotImplementedError

    def decides_alike(self, trial: Trial, at: float, interval: Interval) -> bool:
        """Return whether it decides the same wherever in an interval a score is; False: unknown.

        Args:
            trial: The trial.
            at: What the score serves, as :meth:`rule` says.
            interval: Where the score is; larger is better.
        """
        return False

    def rungs(self) -> list[int]:
        """Return the iterations at which it compares trials, if these are the same for all."""
        return []


def nothing_under_way(tune_controller: Any) -> bool:
    """Return whether nothing is under way that a search algorithm may wait for.

    Args:
        tune_controller: What a scheduler was given. None of its trials runs or is about to.
    """
    return tune_controller.idle() if isinstance(tune_controller, ProxyController) else True


def start_one_by_one(tune_controller: Any) -> None:
    """Make Tune request the resources of one new trial at a time.

    It asks for those of up to 200 at once, and these would all start before a trial that is
    resumed later. ``TUNE_MAX_PENDING_TRIALS_PG`` says another number.

    Args:
        tune_controller: What a scheduler was given.
    """
    if isinstance(tune_controller, ProxyController):
        tune_controller = tune_controller.wrapped
    if isinstance(tune_controller, TrialRunnerWrapper):
        tune_controller = tune_controller._tune_controller
    if os.environ.get("TUNE_MAX_PENDING_TRIALS_PG", "auto") == "auto":
        tune_controller.update_max_pending_trials(1)
