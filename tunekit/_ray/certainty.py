"""Whether one of Tune's schedulers decides the same wherever in its interval a score is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)

from tunekit._ray.decisions import innermost, its, perturbs
from tunekit._ray.own_schedulers import JudgingScheduler
from tunekit.core.confidence import Interval
from tunekit.core.sequential import alike_by_rank, alike_by_value

__all__ = ["decides_alike"]


def decides_alike(base: TrialScheduler, trial: Trial, at: float, interval: Interval) -> bool | None:
    """Return whether a scheduler decides the same wherever in an interval a trial's score is.

    It is asked of the scheduler's books as they stand. The scores that they have of other trials
    are taken for what they are.

    Args:
        base: The scheduler.
        trial: The trial, or what stands for it.
        at: What the score serves in the scheduler's books: see
            :class:`~tunekit.core.decisions.DecisionRule`.
        interval: Where its score is.

    Returns:
        None if the scheduler is not exactly one that is known.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray keeps other books.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler
        >>> decides_alike(FIFOScheduler(), None, 1, Interval(0.1, 0.9))
        True
    """
    decides = innermost(base)
    kind = type(decides)
    if kind in (FIFOScheduler, PopulationBasedTrainingReplay):
        return True
    mode = getattr(decides, "_mode", None)
    better = interval if mode == "max" else Interval(-interval.high, -interval.low)
    if isinstance(decides, JudgingScheduler):
        return decides.decides_alike(trial, at, better) if decides.knows_its_rule else None
    if kind is AsyncHyperBandScheduler:
        return _asha(decides, trial, at, better)
    if kind in (HyperBandScheduler, HyperBandForBOHB):
        return _hyperband(decides, trial, better)
    if perturbs(kind):
        return _pbt(decides, trial, better)
    if kind is MedianStoppingRule:
        return _median(decides, trial, at, interval)
    return None


def _asha(base: Any, trial: Trial, at: float, interval: Interval) -> bool:
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


def _hyperband(base: Any, trial: Trial, interval: Interval) -> bool:
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


def _pbt(base: Any, trial: Trial, interval: Interval) -> bool:
    states, missing = its(base, "_trial_state"), 0
    others = {one: state for one, state in states.items() if one is not trial}
    others = {one: state for one, state in others.items() if not one.is_finished()}
    if its(base, "_synch"):
        due = its(base, "_next_perturbation_sync")
        late = [one for one, state in others.items() if its(state, "last_train_time") < due]
        missing = len(late)
        others = {one: state for one, state in others.items() if one not in late}
    known = list(_numbers(its(state, "last_score") for state in others.values()))
    count = len(known) + missing + 1
    if count <= 1:
        return True
    most = min(math.ceil(count * its(base, "_quantile_fraction")), count // 2)
    return alike_by_rank(interval, known, [most, count - most], missing)


def _median(base: Any, trial: Trial, at: float, interval: Interval) -> bool:
    if at < its(base, "_grace_period") or trial in its(base, "_stopped_trials"):
        return True
    others = [one for one in base._trials_beyond_time(at) if one is not trial]
    means = [
        mean for mean in (base._running_mean(one, at) for one in others) if math.isfinite(mean)
    ]
    if len(means) < its(base, "_min_samples_required"):
        return True
    median, mode = statistics.median(means), its(base, "_mode")
    own = [result[its(base, "_metric")] for result in its(base, "_results").get(trial, [])]
    if own and (max(own) >= median if mode == "max" else min(own) <= median):
        return True  # its best score is good enough, whatever this one is
    return alike_by_value(interval, [median])


def _numbers(scores: Iterable[Any]) -> Iterable[float]:
    return (score for score in scores if score is not None and not math.isnan(score))
