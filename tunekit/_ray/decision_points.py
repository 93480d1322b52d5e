"""At which reports the user's scheduler decides, as its internal state says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
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
from tunekit.core.decision_points import Always, DecisionRule, Interval, Never, Rungs
from tunekit.core.values import number

__all__ = ["exhausts", "rule_for", "rungs_of", "time_attr_of"]

# Those that say by which time of a report they decide.
_TIMED = (
    *(AsyncHyperBandScheduler, HyperBandScheduler, HyperBandForBOHB),
    *(PopulationBasedTraining, MedianStoppingRule),
)
# Where those keep the time at which they stop each trial that do.
_ENDS = {
    AsyncHyperBandScheduler: "_max_t",
    HyperBandScheduler: "_max_t_attr",
    HyperBandForBOHB: "_max_t_attr",
}


def rule_for(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    """Return when the scheduler uses a score of the trial, by its current state.

    Ask again for each report: it shows what the scheduler has used so far, and a trial may move to
    another bracket. A scheduler that is neither one of tunekit's own nor exactly one of Tune's may
    use every score. For a trial that a known one does not have, because it has ended or was not
    added, nothing is decided: :class:`~tunekit.core.decision_points.Never`.

    Args:
        scheduler: The scheduler.
        trial: The trial, or what stood for it when it was added to the scheduler.

    Raises:
        tunekit.errors.UnsupportedRayError: If the scheduler of this Ray keeps another.

    Example:
        >>> from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule
        >>> rule_for(FIFOScheduler(), None), rule_for(MedianStoppingRule(), None)
        (Never(), Always())
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase):
        return decides.rule(trial) if decides.knows_its_rule else Always()
    rule = _RULES.get(kind_of(decides))
    return Always() if rule is None else rule(decides, trial)


def time_attr_of(scheduler: TrialScheduler) -> str:
    """Return the name, in a report, of the time that the rule of the scheduler goes by.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> time_attr_of(ASHAScheduler(time_attr="epoch")), time_attr_of(FIFOScheduler())
        ('epoch', 'training_iteration')
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase):
        return decides.time_attr
    return str(its(decides, "_time_attr") if kind_of(decides) in _TIMED else TRAINING_ITERATION)


def exhausts(scheduler: TrialScheduler, result: Mapping[str, Any]) -> bool:
    """Return whether a result is at the end of what the scheduler lets any trial have.

    A trial that it stops there has finished; one that it stops earlier it has rejected.

    Args:
        scheduler: The scheduler.
        result: The result, flat.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> asha = ASHAScheduler(max_t=9, time_attr="training_iteration")
        >>> exhausts(asha, {"training_iteration": 3}), exhausts(asha, {"training_iteration": 9})
        (False, True)
    """
    decides = innermost(scheduler)
    reached = number(result.get(time_attr_of(decides)))
    if isinstance(decides, SchedulerBase):
        return reached is not None and reached >= decides.max_t
    name = _ENDS.get(kind_of(decides))
    return name is not None and reached is not None and reached >= its(decides, name)


def rungs_of(scheduler: TrialScheduler) -> list[int]:
    """Return the iterations at which ASHA compares trials, if they are the same for all trials.

    Empty for other schedulers, and if it counts something else than iterations.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3,
        ...                      time_attr="training_iteration")
        >>> rungs_of(asha), rungs_of(FIFOScheduler())
        ([1, 3, 9, 27], [])
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase):
        return decides.rungs()
    if type(decides) is not AsyncHyperBandScheduler:
        return []
    brackets = its(decides, "_brackets")
    if len(brackets) != 1 or time_attr_of(decides) != TRAINING_ITERATION:
        return []
    return sorted(int(milestone) for milestone, _ in its(brackets[0], "_rungs"))


def _asha(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    bracket = its(scheduler, "_trial_info").get(trial.trial_id)
    if bracket is None:
        return Never()
    rungs = its(bracket, "_rungs")
    times = {milestone for milestone, _ in rungs}
    served = frozenset(milestone for milestone, scores in rungs if trial.trial_id in scores)
    # With stop_last_trials it looks at lower rungs, too, when the highest has a score of the trial.
    each = bool(its(scheduler, "_stop_last_trials"))
    if each:
        times.add(its(scheduler, "_max_t"))
    return Rungs(tuple(sorted(times)), served, each)


def _hyperband(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    bracket, _band = its(scheduler, "_trial_info").get(trial, (None, None))
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
    reached = 0 if newest is None else newest[its(scheduler, "_time_attr")]
    served = frozenset(time for time in times if time < passed or time <= reached)
    return Rungs(tuple(sorted(set(times))), served)


def _pbt(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    state = its(scheduler, "_trial_state").get(trial)
    if state is None:
        return Never()
    last = its(state, "last_perturbation_time")
    if its(scheduler, "_synch"):
        # Its score is in use, and it waits for the others; the perturbation sets the time of all.
        trained = its(state, "last_train_time")
        if trained >= its(scheduler, "_next_perturbation_sync"):
            last = max(last, trained)
    return Interval(
        its(scheduler, "_perturbation_interval"), its(scheduler, "_burn_in_period"), last
    )


def _replay(scheduler: TrialScheduler, trial: Trial) -> DecisionRule:
    if trial != its(scheduler, "_trial"):
        return Never()
    times: list[int] = []
    for change_at, _config in its(scheduler, "_policy"):
        # One change per report, and in the order of the policy.
        times.append(max(change_at, times[-1] + 1) if times else change_at)
    changes = its(scheduler, "_num_perturbations")
    return Rungs(tuple(times), frozenset(times[:changes]), each=True)


_RULES: dict[type, Callable[[Any, Trial], DecisionRule]] = {
    FIFOScheduler: lambda scheduler, trial: Never(),
    AsyncHyperBandScheduler: _asha,
    HyperBandScheduler: _hyperband,
    HyperBandForBOHB: _hyperband,
    PopulationBasedTraining: _pbt,
    PopulationBasedTrainingReplay: _replay,
}
