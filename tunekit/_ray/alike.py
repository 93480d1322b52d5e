"""Whether the user's scheduler decides the same wherever in an interval a score is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)

from tunekit._ray.scheduler_base import SchedulerBase
from tunekit._ray.scheduler_kinds import innermost, its, kind_of
from tunekit.core.confidence import Interval
from tunekit.core.sequential import alike_by_rank, alike_by_value

__all__ = ["decides_alike"]


def decides_alike(scheduler: TrialScheduler, trial: Trial, at: float, interval: Interval) -> bool:
    """Return whether a scheduler decides the same wherever in an interval a trial's score is.

    This is read from the scheduler's internal state. The scores that it has of other trials are
    taken for what they are.

    Args:
        scheduler: The scheduler.
        trial: The trial, or what stands for it.
        at: What the score serves in the scheduler's internal state: see
            :class:`~tunekit.core.decision_points.DecisionRule`.
        interval: Where its score is.

    Returns:
        False, too, if the scheduler is not exactly one that is known.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray keeps another.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler
        >>> decides_alike(FIFOScheduler(), None, 1, Interval(0.1, 0.9))
        True
    """
    decides = innermost(scheduler)
    mode = getattr(decides, "_mode", None)
    better = interval if mode == "max" else Interval(-interval.high, -interval.low)
    if isinstance(decides, SchedulerBase):
        return decides.knows_its_rule and decides.decides_alike(trial, at, better)
    rule = _RULES.get(kind_of(decides))
    return rule is not None and rule(decides, trial, at, better)


def _asha(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    bracket = its(scheduler, "_trial_info").get(trial.trial_id)
    if bracket is None or (its(scheduler, "_stop_last_trials") and at >= its(scheduler, "_max_t")):
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


def _hyperband(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    bracket, _band = its(scheduler, "_trial_info").get(trial, (None, None))
    live = {} if bracket is None else its(bracket, "_live_trials")
    if trial not in live:
        return True
    name, sign = its(scheduler, "_metric"), its(scheduler, "_metric_op")
    time, until = its(scheduler, "_time_attr"), its(bracket, "_cumul_r")
    others = [result for other, result in live.items() if other is not trial]
    known = [one[name] * sign for one in others if one is not None and one[time] >= until]
    kept = math.ceil(its(bracket, "_n") / its(bracket, "_eta"))
    rank = len(live) - kept
    return alike_by_rank(interval, known, [rank], missing=len(others) - len(known))


def _pbt(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    states = its(scheduler, "_trial_state").items()
    others = [state for one, state in states if one is not trial and not one.is_finished()]
    missing = 0
    if its(scheduler, "_synch"):
        due, alive = its(scheduler, "_next_perturbation_sync"), len(others)
        others = [state for state in others if its(state, "last_train_time") >= due]
        missing = alive - len(others)
    scores = (its(state, "last_score") for state in others)
    known = [score for score in scores if score is not None and not math.isnan(score)]
    count = len(known) + missing + 1
    if count <= 1:
        return True
    most = min(math.ceil(count * its(scheduler, "_quantile_fraction")), count // 2)
    return alike_by_rank(interval, known, [most, count - most], missing)


def _median(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    if at < its(scheduler, "_grace_period") or trial in its(scheduler, "_stopped_trials"):
        return True
    others = (one for one in scheduler._trials_beyond_time(at) if one is not trial)
    means = [mean for one in others if math.isfinite(mean := scheduler._running_mean(one, at))]
    if len(means) < its(scheduler, "_min_samples_required"):
        return True
    median, mode = statistics.median(means), its(scheduler, "_mode")
    own = [
        result[its(scheduler, "_metric")] for result in its(scheduler, "_results").get(trial, [])
    ]
    if own and (max(own) >= median if mode == "max" else min(own) <= median):
        return True  # its best score is good enough, whatever this one is
    return alike_by_value(interval, [median])


_RULES: dict[type, Callable[[Any, Trial, float, Interval], bool]] = {
    FIFOScheduler: lambda *_: True,
    AsyncHyperBandScheduler: _asha,
    HyperBandScheduler: _hyperband,
    HyperBandForBOHB: _hyperband,
    MedianStoppingRule: _median,
    PopulationBasedTraining: _pbt,
    PopulationBasedTrainingReplay: lambda *_: True,
}
