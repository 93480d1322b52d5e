"""Determine whether Tune's schedulers decide the same for all scores in an interval.

In the interval, larger is better. A scheduler's scores of other trials count as exact.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.compat import its
from tunekit.core.confidence import Interval
from tunekit.core.sequential import alike_by_rank, alike_by_value


def asha(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    """Return whether all scores are on one side of the rung's cutoff, and of the next ones."""
    bracket = its(scheduler, "_trial_info").get(trial.trial_id)
    if bracket is None or (its(scheduler, "_stop_last_trials") and at >= its(scheduler, "_max_t")):
        return True
    recorded = dict(its(bracket, "_rungs")).get(at, {})
    cutoff = bracket.cutoff(recorded)
    if cutoff is None:
        return True
    # The cutoff for the next trials depends on the scores adjacent to this one.
    below = [score for score in recorded.values() if score < cutoff]
    above = [score for score in recorded.values() if score >= cutoff]
    adjacent = [*(below and [max(below)]), *(above and [min(above)])]
    return alike_by_value(interval, [float(cutoff), *adjacent])


def hyperband(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    """Return whether the trial survives the halving of its bracket in any case, or in none."""
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


def pbt(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    """Return whether the trial is among the best, the worst or neither for all scores."""
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


def median(scheduler: Any, trial: Trial, at: float, interval: Interval) -> bool:
    """Return whether all scores are on one side of the median."""
    if at < its(scheduler, "_grace_period") or trial in its(scheduler, "_stopped_trials"):
        return True
    others = (one for one in scheduler._trials_beyond_time(at) if one is not trial)
    means = [mean for one in others if math.isfinite(mean := scheduler._running_mean(one, at))]
    if len(means) < its(scheduler, "_min_samples_required"):
        return True
    sign = 1 if its(scheduler, "_mode") == "max" else -1  # that of the interval
    median, metric = sign * statistics.median(means), its(scheduler, "_metric")
    own = [sign * result[metric] for result in its(scheduler, "_results").get(trial, [])]
    if own and max(own) >= median:
        return True  # its best score is good enough, whatever this one is
    return alike_by_value(interval, [median])
