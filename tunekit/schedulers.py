"""Schedulers in addition to Tune's own; they also work with a plain ``ray.tune.Tuner``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tunekit._ray.scheduler_kinds import SchedulerBase, Traits, start_one_by_one
from tunekit.core.decision_points import DecisionRule
from tunekit.core.halving import Halving, RungAction, milestones
from tunekit.core.pareto import Point
from tunekit.errors import ConfigError
from tunekit.messages.problems import Problems

__all__ = ["MOASHA", "PromotionASHA"]

_DECISIONS = {
    RungAction.CONTINUE: TrialScheduler.CONTINUE,
    RungAction.HOLD: TrialScheduler.PAUSE,
    RungAction.END: TrialScheduler.STOP,
}


class _SuccessiveHalving(SchedulerBase):
    """Compare the trials that reach a rung, by one metric or by several.

    Args:
        problems: The problems of other arguments, raised together with those found here.
        metric: The metric, or the first of several; None takes that of ``TuneConfig``.
        mode: ``"min"`` or ``"max"``; None takes that of ``TuneConfig``.
        stops: Whether trials that are not among the best end at their rung instead of pausing
            there.
        time_attr: As for :class:`PromotionASHA`, like the other arguments.
    """

    def __init__(
        self,
        problems: Problems,
        metric: str | None,
        mode: str | None,
        time_attr: str,
        max_t: float,
        grace_period: float,
        reduction_factor: float,
        brackets: int,
        *,
        stops: bool,
    ):
        problems.instance("time_attr", time_attr, str, "Pass the name of a time in results.")
        numbers_right = [
            problems.number(name, value, "a number", "Pass more.", above=least)
            for name, value, least in (
                ("max_t", max_t, 0),
                ("grace_period", grace_period, 0),
                ("reduction_factor", reduction_factor, 1),
            )
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
        self._books = Halving(self._times, max_t, reduction_factor, stops=stops)
        self._stops = stops

    # Called by Tune ----------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a new trial, or one that restarts after a failure."""
        problems = Problems(type(self).__name__)
        for name, value in (("metric", self.metric), ("mode", self.mode)):
            if not value:
                problems.add(f"{name} is not set. Pass it to the scheduler, or to TuneConfig.")
        problems.raise_any()
        self._start_one_by_one(tune_controller)
        self._books.add(trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide on a trial that has reached a rung; stop one that has trained for ``max_t``."""
        return str(_DECISIONS[self._record(trial, result)])

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Record that a trial has ended."""
        self._record(trial, result)  # a score to compare others with
        self._books.ended(trial.trial_id, result.get(self.time_attr))

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record a failure. If the trial restarts, it must reach its rung again."""
        self._books.failed(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Record the end of a trial that was paused, had not begun, or has no score."""
        self._books.ended(trial.trial_id)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial to promote, or else a new one.

        When nothing is left to start or to run, stop the trials that can never be promoted.
        """
        if self._stops:
            return super().choose_trial_to_run(tune_controller)
        self._start_one_by_one(tune_controller)
        pending, paused, runs = None, {}, False
        for trial in tune_controller.get_trials():
            match trial.status:
                case Trial.PENDING:
                    if self._books.has_begun(trial.trial_id):
                        return trial  # promoted; the next one only once this one has started
                    pending = pending or trial
                case Trial.PAUSED:
                    if not self._books.holds(trial.trial_id):
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
        """Return a trial that continues without a promotion, or stop some."""
        held = [trial_id for trial_id in self._books.held() if trial_id in paused]
        search_alg = tune_controller.search_alg
        # A searcher that has reached its limit of trials does not know that it has suggested the
        # last one.
        made = len(tune_controller.get_trials())
        over = search_alg.is_finished() or 0 < search_alg.total_samples <= made
        if over and self._books.is_ahead(held[0]):
            self._books.promote(held[0])
            return paused[held[0]]
        for trial_id in held if over else held[-1:]:
            tune_controller.stop_trial(paused[trial_id])
        return None

    # Its properties ----------------------------------------------------------------------------

    def rule(self, trial: Trial) -> DecisionRule:
        """Return which of a trial's scores it will use, given its current state."""
        return self._books.rule(trial.trial_id)

    def debug_string(self) -> str:
        """Return how many trials have reached each rung, and how many are paused there."""
        rungs = [
            f"{time:g}: {scores} ({held} paused)" for time, scores, held in self._books.counts()
        ]
        kind = type(self).__name__
        return f"Using {kind}: trials at each rung: " + (", ".join(rungs) or "no rungs")

    def save(self, checkpoint_path: str) -> None:
        """Save its state to a file."""
        Path(checkpoint_path).write_bytes(pickle.dumps(self.__dict__))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the state that :meth:`save` saved."""
        self.__dict__.update(pickle.loads(Path(checkpoint_path).read_bytes()))

    def _start_one_by_one(self, tune_controller: Any) -> None:
        if not self._stops:
            start_one_by_one(tune_controller)

    def _record(self, trial: Trial, result: dict[str, Any]) -> RungAction:
        objectives = self.objectives
        if self.time_attr not in result or not objectives.keys() <= result.keys():
            return RungAction.CONTINUE
        point: Point = tuple(
            float(result[name]) if mode == "max" else -float(result[name])
            for name, mode in objectives.items()
        )
        return self._books.reported(trial.trial_id, result[self.time_attr], point)


class PromotionASHA(_SuccessiveHalving):
    """Pause every trial at its rung, and promote the best: asynchronous successive halving.

    This is ASHA as its paper describes it (Li et al., 2018, https://arxiv.org/abs/1810.05934,
    Algorithm 2). A trial that reaches a rung pauses. The best ``1 / reduction_factor`` of a rung
    are promoted: if they are still paused there, they are resumed and continue to the next rung.
    Promotions take precedence over new trials, and those from higher rungs come first. A trial that
    has trained for ``max_t`` is stopped.

    ``ray.tune.schedulers.ASHAScheduler`` decides immediately instead: when a trial reaches a rung,
    it stops the trial or continues it, based on the scores known at that moment. The first trials
    continue because there are no others to compare them with, and a stopped trial is never resumed.
    Here, a trial continues only once it is among the best of several, so there is less training in
    total. Each promotion costs a restart from a checkpoint, so trainables must save and load their
    state.

    **The end.** Paused trials are stopped when no trial is running, none can be promoted, and the
    search algorithm suggests no more. But a rung with fewer than ``reduction_factor`` trials
    promotes none, so a small sweep would end without a trial that has trained for ``max_t``.
    Therefore, if no trial has ended beyond the most advanced paused ones, the best of these
    continues from rung to rung until it reaches ``max_t`` or ends.

    **A limit on trials** (``max_concurrent_trials``, ``ConcurrencyLimiter``) counts paused ones.
    When it keeps the search algorithm from suggesting the next trial and nothing else can continue,
    the worst paused trial at the lowest rung is stopped; its score still counts. It is better to
    limit trials through their resources.

    Tune asks for the resources of up to 200 new trials at once, which would all start before the
    first promotion. With this scheduler it asks for one at a time, unless the environment variable
    ``TUNE_MAX_PENDING_TRIALS_PG`` is set.

    Args:
        time_attr: The name, in a result, of the scheduler's time; it must not decrease.
        metric: The metric to rank trials by; None takes that of ``TuneConfig``.
        mode: ``"min"`` or ``"max"``; None takes that of ``TuneConfig``.
        max_t: When to stop a trial, in units of ``time_attr``.
        grace_period: The first rung, in the same units; each next rung is ``reduction_factor``
            times as late, as long as that is before ``max_t``.
        reduction_factor: One in this many trials is promoted.
        brackets: How many brackets the trials are divided among. Each bracket skips one more of the
            first rungs. Their shares are those of ``ASHAScheduler``, but are not drawn at random.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake. Also
            when a trial is added, if neither the scheduler nor ``TuneConfig`` has a metric and a
            mode.

    Example:
        >>> scheduler = PromotionASHA(max_t=27, grace_period=1, reduction_factor=3)
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
        problems.goal(metric, mode)
        rungs = (time_attr, max_t, grace_period, reduction_factor, brackets)
        super().__init__(problems, metric, mode, *rungs, stops=False)


class MOASHA(_SuccessiveHalving):
    """Stop trials early by several metrics: asynchronous successive halving by non-dominated rank.

    At each rung, trials are ordered front by front: first the trials that no other one dominates,
    then those that only the first front dominates, and so on. Within a front, the order is that of
    an epsilon-net: the best trial in the first metric, then the trial farthest from it, then the
    trial farthest from both, so that the first few are different compromises. A trial continues if
    it is among the first ``1 / reduction_factor`` of the trials that have reached its rung so far.

    The rule is that of Schmucker et al., 2021 (https://arxiv.org/abs/2106.12639). Distances are
    relative to the front's extent in each metric, so units do not matter.

    The result of the sweep is its Pareto front: ``tunekit.load(path).pareto()``. For searchers and
    ``get_best_result()``, ``TuneConfig`` may name one of the metrics.

    Args:
        metrics: The mode of each metric, such as ``{"accuracy": "max", "latency_ms": "min"}``. The
            best trial in the first metric comes first within a front.
        time_attr: The name, in a result, of the scheduler's time; it must not decrease.
        max_t: When to stop a trial, in units of ``time_attr``.
        grace_period: The first rung, in the same units; each next rung is ``reduction_factor``
            times as late, as long as that is before ``max_t``.
        reduction_factor: One in this many trials continues.
        brackets: How many brackets the trials are divided among. Each bracket skips one more of the
            first rungs. Their shares are those of ``ASHAScheduler``, but are not drawn at random.
        promotes: Whether every trial pauses at its rung, and continues once it is among the best
            there, as with :class:`PromotionASHA`. Otherwise, a trial that is not among the best
            when it reaches its rung is stopped.

    Raises:
        tunekit.errors.ConfigError: If an argument is wrong; the message lists every mistake. Also
            if ``TuneConfig`` names one of ``metrics`` with a different mode.

    Example:
        >>> scheduler = MOASHA(metrics={"accuracy": "max", "latency_ms": "min"}, max_t=27)
        >>> MOASHA(metrics={"accuracy": "highest"})
        Traceback (most recent call last):
        tunekit.errors.ConfigError: MOASHA: 2 problems:
          - metrics={'accuracy': 'highest'} names fewer than two. Pass...
          - metrics['accuracy']='highest' is not one of 'min', 'max'. Use one of these.
    """

    def __init__(
        self,
        metrics: Mapping[str, str],
        time_attr: str = TRAINING_ITERATION,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        promotes: bool = False,
    ):
        problems = Problems("MOASHA")
        problems.goals(metrics)
        metrics = metrics if isinstance(metrics, Mapping) else {}
        metric, mode = next(iter(metrics.items()), (None, None))
        rungs = (time_attr, max_t, grace_period, reduction_factor, brackets)
        super().__init__(problems, metric, mode, *rungs, stops=not promotes)
        self._objectives = dict(metrics)
        self.traits = Traits(at_times=True, clones=False, pauses=promotes)

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the mode of each metric."""
        return dict(self._objectives)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Accept the metric and the mode of ``TuneConfig``, which searchers use."""
        own = self._objectives.get(str(metric))
        if own and mode and own != mode:
            contradicts = (
                f"mode={mode!r} contradicts MOASHA's metrics, which have {metric!r}: {own!r}."
            )
            raise ConfigError("TuneConfig", [f"{contradicts} Pass mode={own!r}."])
        return True
