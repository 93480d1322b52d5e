"""At which reports a scheduler decides, and whether any score in an interval would do.

Both are read from the internal state of Tune's schedulers; tunekit's own say it themselves
(:class:`JudgingScheduler`).
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC, TRAINING_ITERATION
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tunekit._ray.compat import TESTED
from tunekit._ray.proxies import ProxyController
from tunekit.core import confidence
from tunekit.core.decision_points import Always, DecisionRule, Interval, Never, Rungs
from tunekit.core.sequential import alike_by_rank, alike_by_value
from tunekit.core.values import number
from tunekit.errors import UnsupportedRayError

__all__ = [
    "JudgingScheduler",
    "decides_alike",
    "decides_at_times",
    "exhausts",
    "innermost",
    "is_synchronous",
    "its",
    "mode_of",
    "nothing_under_way",
    "rule_for",
    "rungs_of",
    "start_one_by_one",
    "time_attr_of",
]

# Those that say by which time of a report they decide.
_TIMED = (AsyncHyperBandScheduler, HyperBandScheduler, PopulationBasedTraining, MedianStoppingRule)


def innermost(scheduler: TrialScheduler) -> TrialScheduler:
    """The scheduler that decides, inside of one that changes resources."""
    while isinstance(scheduler, ResourceChangingScheduler):
        scheduler = its(scheduler, "_base_scheduler")
    return scheduler


def is_synchronous(scheduler: TrialScheduler) -> bool:
    """Return whether it is PBT (or PB2) that perturbs all trials at the same time."""
    return isinstance(scheduler, PopulationBasedTraining) and bool(its(scheduler, "_synch"))


def mode_of(scheduler: TrialScheduler) -> str | None:
    """Return whether the scheduler's metric is to be large or small, if it has one.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> mode_of(ASHAScheduler(metric="loss", mode="min")), mode_of(FIFOScheduler())
        ('min', None)
    """
    mode = getattr(innermost(scheduler), "_mode", None)
    return mode if mode in ("min", "max") else None


def rule_for(base: TrialScheduler, trial: Trial) -> DecisionRule:
    """Return when the scheduler uses a score of the trial, as its books stand.

    To be read anew for each report: it shows what the scheduler has used so far, and a trial may
    come into another bracket. tunekit's own schedulers say it themselves. Any other that is not
    exactly one of Tune's, a subclass too, uses every score as far as anyone knows. For a trial that
    is not in the books of one that is, which has ended or was not added, nothing is decided:
    :class:`~tunekit.core.decision_points.Never`.

    Args:
        base: The scheduler.
        trial: The trial, or what stood for it when it was added to the scheduler.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray keeps other books.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule
        >>> rule_for(FIFOScheduler(), None), rule_for(MedianStoppingRule(), None)
        (Never(), Always())
    """
    decides = innermost(base)
    if isinstance(decides, JudgingScheduler):
        return decides.rule(trial) if decides.knows_its_rule else Always()
    rules: dict[type, Callable[[Any, Trial], DecisionRule]] = {
        FIFOScheduler: lambda base, trial: Never(),
        AsyncHyperBandScheduler: _asha,
        HyperBandScheduler: _hyperband,
        PopulationBasedTraining: _pbt,
        PopulationBasedTrainingReplay: _replay,
    }
    rule = rules.get(_kind_of(decides))
    return Always() if rule is None else rule(decides, trial)


def decides_at_times(base: TrialScheduler) -> bool:
    """Return whether it is known by which scores the scheduler decides, and it does by some.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule
        >>> kinds = ASHAScheduler, FIFOScheduler, MedianStoppingRule
        >>> [decides_at_times(kind()) for kind in kinds]
        [True, False, False]
    """
    decides = innermost(base)
    if isinstance(decides, JudgingScheduler):
        return decides.knows_its_rule
    return _kind_of(decides) in (
        AsyncHyperBandScheduler,
        HyperBandScheduler,
        PopulationBasedTraining,
        PopulationBasedTrainingReplay,
    )


def time_attr_of(base: TrialScheduler) -> str:
    """The name, in a report, of the time that the rule of the scheduler goes by.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> time_attr_of(ASHAScheduler(time_attr="epoch")), time_attr_of(FIFOScheduler())
        ('epoch', 'training_iteration')
    """
    decides = innermost(base)
    if isinstance(decides, JudgingScheduler):
        return decides.time_attr
    return str(its(decides, "_time_attr") if _kind_of(decides) in _TIMED else TRAINING_ITERATION)


def exhausts(base: TrialScheduler, result: Mapping[str, Any]) -> bool:
    """Return whether a result is at the end of what the scheduler lets any trial have.

    A trial that it stops there has run its course; one that it stops before it has rejected.

    Args:
        base: The scheduler.
        result: The result, flat.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> asha = ASHAScheduler(max_t=9, time_attr="training_iteration")
        >>> exhausts(asha, {"training_iteration": 3}), exhausts(asha, {"training_iteration": 9})
        (False, True)
    """
    decides = innermost(base)
    reached = number(result.get(time_attr_of(decides)))
    if isinstance(decides, JudgingScheduler):
        return reached is not None and reached >= decides.max_t
    names = {AsyncHyperBandScheduler: "_max_t", HyperBandScheduler: "_max_t_attr"}
    name = names.get(_kind_of(decides))
    return name is not None and reached is not None and reached >= its(decides, name)


def rungs_of(scheduler: TrialScheduler) -> list[int]:
    """The iterations at which ASHA compares trials, if they are the same for all trials.

    Empty for other schedulers, and if it counts something else than iterations.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3,
        ...                      time_attr="training_iteration")
        >>> rungs_of(asha), rungs_of(FIFOScheduler())
        ([1, 3, 9, 27], [])
    """
    decides = innermost(scheduler)
    if isinstance(decides, JudgingScheduler):
        return decides.rungs()
    if type(decides) is not AsyncHyperBandScheduler:
        return []
    brackets = its(decides, "_brackets")
    if len(brackets) != 1 or time_attr_of(decides) != TRAINING_ITERATION:
        return []
    return sorted(int(milestone) for milestone, _ in its(brackets[0], "_rungs"))


def _asha(base: TrialScheduler, trial: Trial) -> DecisionRule:
    bracket = its(base, "_trial_info").get(trial.trial_id)
    if bracket is None:
        return Never()
    rungs = its(bracket, "_rungs")
    times = {milestone for milestone, _ in rungs}
    served = frozenset(milestone for milestone, scores in rungs if trial.trial_id in scores)
    # With stop_last_trials it looks at lower rungs, too, when the highest has a score of the trial.
    each = bool(its(base, "_stop_last_trials"))
    if each:
        times.add(its(base, "_max_t"))
    return Rungs(tuple(sorted(times)), served, each)


def _hyperband(base: TrialScheduler, trial: Trial) -> DecisionRule:
    bracket, _band = its(base, "_trial_info").get(trial, (None, None))
    if bracket is None or trial not in its(bracket, "_live_trials"):
        return Never()
    # The numbers of all halvings, as the bracket computes them, past and future. It keeps how many
    # are left, not how many there were.
    now, left = its(bracket, "_r"), its(bracket, "_halves")
    eta, most = its(bracket, "_eta"), its(bracket, "_max_t_attr")
    times = [its(bracket, "_r0")]
    while times[-1] < now:
        grown = int(min(times[-1] * eta, most))
        if grown <= times[-1]:
            break
        times.append(grown)
    for _ in range(left):
        times.append(int(min(times[-1] * eta, most)))
    if not its(bracket, "stop_last_trials"):
        times.pop()  # after the last halving it lets trials run on
    # What is past for the bracket is past for a trial that came late, after a failure.
    passed, newest = its(bracket, "_cumul_r"), bracket._live_trials[trial]
    reached = 0 if newest is None else newest[its(base, "_time_attr")]
    served = frozenset(time for time in times if time < passed or time <= reached)
    return Rungs(tuple(sorted(set(times))), served)


def _pbt(base: TrialScheduler, trial: Trial) -> DecisionRule:
    state = its(base, "_trial_state").get(trial)
    if state is None:
        return Never()
    last = its(state, "last_perturbation_time")
    if its(base, "_synch"):
        # Its score is in use, and it waits for the others; the perturbation sets the time of all.
        trained = its(state, "last_train_time")
        if trained >= its(base, "_next_perturbation_sync"):
            last = max(last, trained)
    return Interval(its(base, "_perturbation_interval"), its(base, "_burn_in_period"), last)


def _replay(base: TrialScheduler, trial: Trial) -> DecisionRule:
    if trial != its(base, "_trial"):
        return Never()
    times: list[int] = []
    for change_at, _config in its(base, "_policy"):
        # One change per report, and in the order of the policy.
        times.append(max(change_at, times[-1] + 1) if times else change_at)
    changes = its(base, "_num_perturbations")
    return Rungs(tuple(times), frozenset(times[:changes]), each=True)


def _kind_of(scheduler: TrialScheduler) -> type:
    """Return its exact class; that of which it is a variant for BOHB's and PB2, which keep the same
    internal state."""
    kind = type(scheduler)
    if kind is HyperBandForBOHB:
        return HyperBandScheduler
    # PB2's module is slow to import: a scheduler of it has imported it.
    pb2 = getattr(sys.modules.get("ray.tune.schedulers.pb2"), "PB2", None)
    return PopulationBasedTraining if kind is pb2 else kind


def its(thing: Any, name: str) -> Any:
    """A private attribute that objects have and classes do not, so it is not checked at import."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnsupportedRayError(
            f"A {type(thing).__name__} of Ray {ray.__version__} has no {name}, which tells when "
            f"the scheduler decides; tunekit was tested with {TESTED}. Install it with: "
            f"pip install 'ray[tune,train,data]=={TESTED}'. Or validate by count: "
            "ValidationConfig(when=1)."
        ) from None


def decides_alike(
    base: TrialScheduler, trial: Trial, at: float, interval: confidence.Interval
) -> bool:
    """Return whether a scheduler decides the same wherever in an interval a trial's score is.

    This is read from the scheduler's internal state. The scores that it has of other trials are
    taken for what they are.

    Args:
        base: The scheduler.
        trial: The trial, or what stands for it.
        at: What the score serves in the scheduler's books: see
            :class:`~tunekit.core.decision_points.DecisionRule`.
        interval: Where its score is.

    Returns:
        False, too, if the scheduler is not exactly one that is known.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray keeps other books.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler
        >>> decides_alike(FIFOScheduler(), None, 1, confidence.Interval(0.1, 0.9))
        True
    """
    decides = innermost(base)
    kind = _kind_of(decides)
    if kind in (FIFOScheduler, PopulationBasedTrainingReplay):
        return True
    mode = getattr(decides, "_mode", None)
    better = interval if mode == "max" else confidence.Interval(-interval.high, -interval.low)
    if isinstance(decides, JudgingScheduler):
        return decides.knows_its_rule and decides.decides_alike(trial, at, better)
    if kind is AsyncHyperBandScheduler:
        return _asha_alike(decides, trial, at, better)
    if kind is HyperBandScheduler:
        return _hyperband_alike(decides, trial, better)
    if kind is PopulationBasedTraining:
        return _pbt_alike(decides, trial, better)
    if kind is MedianStoppingRule:
        return _median_alike(decides, trial, at, interval)
    return False


def _asha_alike(base: Any, trial: Trial, at: float, interval: confidence.Interval) -> bool:
    bracket = its(base, "_trial_info").get(trial.trial_id)
    if bracket is None or (its(base, "_stop_last_trials") and at >= its(base, "_max_t")):
        return True
    recorded = dict(its(bracket, "_rungs")).get(at, {})
    cutoff = bracket.cutoff(recorded)
    if cutoff is None:
        return True
    # Where the next trials' cutoff will be depends on the scores beside this one.
    below = [score for score in recorded.values() if score < cutoff]
    above = [score for score in recorded.values() if score >= cutoff]
    beside = [*(below and [max(below)]), *(above and [min(above)])]
    return alike_by_value(interval, [float(cutoff), *beside])


def _hyperband_alike(base: Any, trial: Trial, interval: confidence.Interval) -> bool:
    bracket, _band = its(base, "_trial_info").get(trial, (None, None))
    live = {} if bracket is None else its(bracket, "_live_trials")
    if trial not in live:
        return True
    name, sign = its(base, "_metric"), its(base, "_metric_op")
    time, until = its(base, "_time_attr"), its(bracket, "_cumul_r")
    others = [result for other, result in live.items() if other is not trial]
    known = [one[name] * sign for one in others if one is not None and one[time] >= until]
    kept = math.ceil(its(bracket, "_n") / its(bracket, "_eta"))
    rank = len(live) - kept
    return alike_by_rank(interval, known, [rank], missing=len(others) - len(known))


def _pbt_alike(base: Any, trial: Trial, interval: confidence.Interval) -> bool:
    states = its(base, "_trial_state").items()
    others = [state for one, state in states if one is not trial and not one.is_finished()]
    missing = 0
    if its(base, "_synch"):
        due, alive = its(base, "_next_perturbation_sync"), len(others)
        others = [state for state in others if its(state, "last_train_time") >= due]
        missing = alive - len(others)
    scores = (its(state, "last_score") for state in others)
    known = [score for score in scores if score is not None and not math.isnan(score)]
    count = len(known) + missing + 1
    if count <= 1:
        return True
    most = min(math.ceil(count * its(base, "_quantile_fraction")), count // 2)
    return alike_by_rank(interval, known, [most, count - most], missing)


def _median_alike(base: Any, trial: Trial, at: float, interval: confidence.Interval) -> bool:
    if at < its(base, "_grace_period") or trial in its(base, "_stopped_trials"):
        return True
    others = (one for one in base._trials_beyond_time(at) if one is not trial)
    means = [mean for one in others if math.isfinite(mean := base._running_mean(one, at))]
    if len(means) < its(base, "_min_samples_required"):
        return True
    median, mode = statistics.median(means), its(base, "_mode")
    own = [result[its(base, "_metric")] for result in its(base, "_results").get(trial, [])]
    if own and (max(own) >= median if mode == "max" else min(own) <= median):
        return True  # its best score is good enough, whatever this one is
    return alike_by_value(interval, [median])


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

    def decides_alike(self, trial: Trial, at: float, interval: confidence.Interval) -> bool:
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
    return tune_controller.idle if isinstance(tune_controller, ProxyController) else True


def start_one_by_one(tune_controller: Any) -> None:
    """Let Tune ask for the resources of one new trial at a time.

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
