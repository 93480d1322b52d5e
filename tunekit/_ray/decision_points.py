"""Read from the state of Tune's schedulers at which reports they decide."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.compat import its
from tunekit.core.decision_points import DecisionRule, Interval, Never, Rungs


def asha(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the rungs of the trial's bracket."""
    bracket = its(scheduler, "_trial_info").get(trial.trial_id)
    if bracket is None:
        return Never()
    rungs = its(bracket, "_rungs")
    times = {milestone for milestone, _ in rungs}
    served = frozenset(milestone for milestone, scores in rungs if trial.trial_id in scores)
    # With stop_last_trials, it also uses lower rungs once the highest has a score of the trial.
    each = bool(its(scheduler, "_stop_last_trials"))
    if each:
        times.add(its(scheduler, "_max_t"))
    return Rungs(tuple(sorted(times)), served, each)


def hyperband(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the times at which the trial's bracket is halved."""
    bracket, _band = its(scheduler, "_trial_info").get(trial, (None, None))
    if bracket is None or trial not in its(bracket, "_live_trials"):
        return Never()
    # The times of all halvings, past and future, as the bracket computes them. It stores how many
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
        times.pop()  # after the last halving, trials continue
    # Past halvings of the bracket are also past for a trial that joined late, after a failure.
    passed, newest = its(bracket, "_cumul_r"), bracket._live_trials[trial]
    reached = 0 if newest is None else newest[its(scheduler, "_time_attr")]
    served = frozenset(time for time in times if time < passed or time <= reached)
    return Rungs(tuple(sorted(set(times))), served)


def pbt(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the interval of perturbations, since the last one."""
    state = its(scheduler, "_trial_state").get(trial)
    if state is None:
        return Never()
    last = its(state, "last_perturbation_time")
    if its(scheduler, "_synch"):
        # Its score was used, and it waits for the others; the perturbation sets the time of all.
        trained = its(state, "last_train_time")
        if trained >= its(scheduler, "_next_perturbation_sync"):
            last = max(last, trained)
    return Interval(
        its(scheduler, "_perturbation_interval"), its(scheduler, "_burn_in_period"), last
    )


def replay(scheduler: Any, trial: Trial) -> DecisionRule:
    """Return the times at which the policy changes something."""
    if trial != its(scheduler, "_trial"):
        return Never()
    times: list[int] = []
    for change_at, _config in its(scheduler, "_policy"):
        # One change per report, and in the order of the policy.
        times.append(max(change_at, times[-1] + 1) if times else change_at)
    changes = its(scheduler, "_num_perturbations")
    return Rungs(tuple(times), frozenset(times[:changes]), each=True)
