"""Schedulers in addition to Tune's own; they also work with a plain ``ray.tune.Tuner``.

To add one, derive from :class:`SchedulerBase`, which says what tunekit needs to know of it.
"""

from __future__ import annotations

import numbers
import pickle
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.scheduler_base import (
    SchedulerBase,
    Traits,
    nothing_under_way,
    start_one_by_one,
)
from tunekit.core.confidence import Interval
from tunekit.core.decision_points import DecisionRule
from tunekit.core.problems import Problems, shown
from tunekit.core.promotion import Promotion, RungAction, milestones

__all__ = ["PromotionASHA", "SchedulerBase", "Traits"]

_DECISIONS = {
    RungAction.GO_ON: TrialScheduler.CONTINUE,
    RungAction.WAIT: TrialScheduler.PAUSE,
    RungAction.END: TrialScheduler.STOP,
}


class PromotionASHA(SchedulerBase):
    """Pause every trial at its rung, and promote the best: asynchronous successive halving.

    This is ASHA as its paper describes it (Li et al., 2018, https://arxiv.org/abs/1810.05934,
    Algorithm 2). A trial that reaches a rung pauses. The best ``1 / reduction_factor`` of a rung
    are promoted: those of them that are still paused there are resumed, and train on to the next
    rung. Promotions go before new trials, and those from higher rungs go first. A trial that has
    trained for ``max_t`` is stopped.

    ``ray.tune.schedulers.ASHAScheduler`` decides at once instead: when a trial reaches a rung, it
    stops the trial or continues it, by the scores known at that moment. The first trials continue
    because there are no others to compare them with, and a stopped trial is never resumed. Here, a
    trial continues only if it is among the best of several, however late that is known, and less is
    trained in total. Each promotion costs a restart from a checkpoint, so trainables have to save
    and load their state.

    **The end.** When no trial is running, none can be promoted and the search algorithm makes no
    more, the paused trials can never be promoted and are stopped. But a rung with fewer than
    ``reduction_factor`` trials promotes none, so a small sweep would end without a trial that has
    trained for ``max_t``. So if no trial has ended beyond the most advanced paused ones, the best
    of those continues from rung to rung, until it reaches ``max_t`` or ends by itself.

    **A limit on trials** (``max_concurrent_trials``, ``ConcurrencyLimiter``) counts paused ones.
    When it keeps the search algorithm from making the next trial and nothing else can continue, the
    worst trial that is paused at the lowest rung is stopped; its score still counts. It is better
    to limit trials by their resources.

    Tune asks for the resources of up to 200 new trials at once, which would all start before the
    first promotion. With this scheduler it asks for one at a time, unless the environment variable
    ``TUNE_MAX_PENDING_TRIALS_PG`` is set.

    Args:
        time_attr: The name, in a result, of the scheduler's time; it must not decrease.
        metric: The metric to rank trials by; None takes that of ``TuneConfig``.
        mode: Which values are better, ``"min"`` or ``"max"``; None takes that of ``TuneConfig``.
        max_t: When to stop a trial, in units of ``time_attr``.
        grace_period: The first rung, in the same units; each next rung is ``reduction_factor``
            times as late, as long as that is before ``max_t``.
        reduction_factor: One out of this many trials is promoted.
        brackets: How many brackets the trials are divided among. Each bracket skips one more of the
            first rungs. Their shares are those of ``ASHAScheduler``, but are not drawn at random.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake. Also
            when a trial is added, if neither the scheduler nor ``TuneConfig`` has a metric and a
            mode.

    Example:
        >>> scheduler = PromotionASHA(max_t=27, grace_period=1, reduction_factor=3)
        >>> scheduler.rungs()
        [1, 3, 9, 27]
        >>> PromotionASHA(max_t=1, grace_period=2, mode="least")
        Traceback (most recent call last):
        tunekit.errors.ConfigError: PromotionASHA: 2 problems:
          - mode='least' is not one of 'min', 'max'. Use one of these.
          - grace_period=2 is above max_t=1. Pass max_t or less.
    """

    traits = Traits(at_times=True, clones=False)

    def __init__(
        self,
        time_attr: str = TRAINING_ITERATION,
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
    ):
        problems = Problems("PromotionASHA")
        problems.instance("time_attr", time_attr, str, "Pass the name of a time in results.")
        problems.instance("metric", metric, (str, type(None)), "Pass the name of a metric.")
        if mode is not None:
            problems.choice("mode", mode, ["min", "max"])
        numbers_right = [
            _above(problems, "max_t", max_t, 0),
            _above(problems, "grace_period", grace_period, 0),
            _above(problems, "reduction_factor", reduction_factor, 1),
        ]
        problems.integer("brackets", brackets, least=1)
        if all(numbers_right):
            most = len(milestones(grace_period, max_t, reduction_factor)) + 1
            if grace_period > max_t:
                problems.add(
                    f"grace_period={grace_period} is above max_t={max_t}. Pass max_t or less."
                )
            elif isinstance(brackets, int) and brackets > most:
                problems.add(
                    f"brackets={brackets} is more than the rungs from grace_period={grace_period} "
                    f"to max_t={max_t} allow. Pass at most {most}."
                )
        problems.raise_any()
        super().__init__(time_attr, metric, mode, max_t)
        self._times = [
            milestones(grace_period, max_t, reduction_factor, bracket)
            for bracket in range(brackets)
        ]
        self._books = Promotion(self._times, max_t, reduction_factor)

    # What Tune tells ---------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a new trial, or one that restarts after a failure."""
        problems = Problems("PromotionASHA")
        for name, value in (("metric", self.metric), ("mode", self.mode)):
            if not value:
                problems.add(f"{name} is not set. Pass it to the scheduler, or to TuneConfig.")
        problems.raise_any()
        start_one_by_one(tune_controller)
        self._books.add(trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Pause a trial that has reached a rung, and stop one that has trained for ``max_t``."""
        if self.time_attr not in result or self.metric not in result:
            return str(TrialScheduler.CONTINUE)
        verdict = self._books.reported(trial.trial_id, result[self.time_attr], self._score(result))
        return str(_DECISIONS[verdict])

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Record that a trial has ended."""
        if self.time_attr in result and self.metric in result:
            # A score to compare others with.
            self._books.reported(trial.trial_id, result[self.time_attr], self._score(result))
        self._books.ended(trial.trial_id, result.get(self.time_attr))

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record a failure. If the trial restarts, it must reach its rung again."""
        self._books.failed(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a trial was stopped while it was paused, or before it began."""
        self._books.ended(trial.trial_id)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial to promote, or else a new one.

        When nothing is left to start or to run, stop the trials that can never be promoted.
        """
        start_one_by_one(tune_controller)
        pending, paused, runs = None, {}, False
        for trial in tune_controller.get_trials():
            match trial.status:
                case Trial.PENDING:
                    if self._books.has_begun(trial.trial_id):
                        return trial  # promoted; no other is until this one has started
                    pending = pending or trial
                case Trial.PAUSED:
                    if not self._books.waits(trial.trial_id):
                        return trial  # promoted, or paused by something else
                    paused[trial.trial_id] = trial
                case Trial.RUNNING:
                    runs = True
        for trial_id in self._books.promotable():
            if trial_id in paused:
                self._books.promote(trial_id)
                return paused[trial_id]
        if pending is None and not runs and paused:
            return self._without_promotions(tune_controller, paused)
        return pending

    def _without_promotions(self, tune_controller: Any, paused: dict[str, Trial]) -> Trial | None:
        """Return a trial that goes on without a promotion, or stop some."""
        waiting = [trial_id for trial_id in self._books.waiting() if trial_id in paused]
        search_alg = tune_controller.search_alg
        # A searcher at its limit of trials does not check whether it has made the last one.
        made = len(tune_controller.get_trials())
        over = search_alg.is_finished() or 0 < search_alg.total_samples <= made
        if over and self._books.is_ahead(waiting[0]):
            self._books.promote(waiting[0])
            return paused[waiting[0]]
        if nothing_under_way(tune_controller):
            for trial_id in waiting if over else waiting[-1:]:
                tune_controller.stop_trial(paused[trial_id])
        return None

    # What it says about itself -----------------------------------------------------------------

    def rule(self, trial: Trial) -> DecisionRule:
        """Return which scores of a trial it will use, by its current state."""
        return self._books.rule(trial.trial_id)

    def decides_alike(self, trial: Trial, at: float, interval: Interval) -> bool:
        """Return whether no score in an interval would change whether a trial is promoted."""
        return self._books.decides_alike(trial.trial_id, at, interval)

    def rungs(self) -> list[int]:
        """Return the iterations of its rungs.

        Empty if there are several brackets, or if its time is not in iterations.
        """
        if len(self._times) > 1 or self.time_attr != TRAINING_ITERATION:
            return []
        return [int(time) for time in (*self._times[0], self.max_t)]

    def debug_string(self) -> str:
        """Return how many trials have reached each rung, and how many are paused there."""
        rungs = [
            f"{time:g}: {scores} ({waiting} paused)"
            for time, scores, waiting in self._books.counts()
        ]
        return "Using PromotionASHA: trials at each rung: " + (", ".join(rungs) or "no rungs")

    def save(self, checkpoint_path: str) -> None:
        """Save its state to a file."""
        Path(checkpoint_path).write_bytes(pickle.dumps(self.__dict__))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the state that :meth:`save` saved."""
        self.__dict__.update(pickle.loads(Path(checkpoint_path).read_bytes()))

    def _score(self, result: dict[str, Any]) -> float:
        value = float(result[self.metric])
        return value if self.mode == "max" else -value


def _above(problems: Problems, name: str, value: Any, least: float) -> bool:
    """Require a number above ``least``; return whether it is one."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if number and least < float(value) < float("inf"):
        return True
    problems.add(f"{name}={shown(value)} must be a number above {least}. Pass {least + 1} or more.")
    return False
