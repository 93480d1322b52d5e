"""At which reports a Tune scheduler decides, read from its own books."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ray
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
    ResourceChangingScheduler,
    TrialScheduler,
)

from tunekit._ray.compat import TESTED
from tunekit._ray.own_schedulers import JudgingScheduler
from tunekit.core.decisions import Always, DecisionRule, Interval, Never, Rungs
from tunekit.core.values import number
from tunekit.errors import UnsupportedRayError

__all__ = [
    "exhausts",
    "innermost",
    "is_synchronous",
    "its",
    "mode_of",
    "perturbs",
    "rule_for",
    "rungs_of",
    "time_attr_of",
]


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
    :class:`~tunekit.core.decisions.Never`.

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
    kind = type(base)
    if kind is ResourceChangingScheduler:
        return rule_for(its(base, "_base_scheduler"), trial)
    if isinstance(base, JudgingScheduler):
        return base.rule(trial) if base.knows_its_rule else Always()
    if kind is FIFOScheduler:
        return Never()
    if kind is AsyncHyperBandScheduler:
        return _asha(base, trial)
    if kind in (HyperBandScheduler, HyperBandForBOHB):
        return _hyperband(base, trial)
    if perturbs(kind):
        return _pbt(base, trial)
    if kind is PopulationBasedTrainingReplay:
        return _replay(base, trial)
    return Always()


def time_attr_of(base: TrialScheduler) -> str:
    """The name, in a report, of the time that the rule of the scheduler goes by.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> time_attr_of(ASHAScheduler(time_attr="epoch")), time_attr_of(FIFOScheduler())
        ('epoch', 'training_iteration')
    """
    kind = type(base)
    if kind is ResourceChangingScheduler:
        return time_attr_of(its(base, "_base_scheduler"))
    if isinstance(base, JudgingScheduler):
        return base.time_attr
    if perturbs(kind) or kind in (
        AsyncHyperBandScheduler,
        HyperBandScheduler,
        HyperBandForBOHB,
        MedianStoppingRule,
    ):
        return str(its(base, "_time_attr"))
    return str(TRAINING_ITERATION)


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
    names = {
        AsyncHyperBandScheduler: "_max_t",
        HyperBandScheduler: "_max_t_attr",
        HyperBandForBOHB: "_max_t_attr",
    }
    name = names.get(type(decides))
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


def perturbs(kind: type) -> bool:
    """Return whether it is PBT, or PB2, whose module is slow to import: no one has it who has
    not."""
    pb2 = getattr(sys.modules.get("ray.tune.schedulers.pb2"), "PB2", None)
    return kind is PopulationBasedTraining or (pb2 is not None and kind is pb2)


def its(thing: Any, name: str) -> Any:
    """A private attribute that objects have and classes do not, so it is not checked at import."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnsupportedRayError(
            f"A {type(thing).__name__} of Ray {ray.__version__} has no {name}, which tells when "
            f"the scheduler decides; tunekit was tested with {TESTED}. Install it with: "
            f"pip install 'ray[tune,train,data]=={TESTED}'. Or validate by count: "
            "ValidationConfig(every=1)."
        ) from None
