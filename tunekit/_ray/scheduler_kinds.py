"""What kind of scheduler the user's is: one table, with a row for each of Tune's.

What is not known of Tune's own is asked of :class:`~tunekit._ray.scheduler_base.SchedulerBase`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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

from tunekit._ray import alike, decision_points
from tunekit._ray.compat import its
from tunekit._ray.scheduler_base import SchedulerBase, Traits
from tunekit.core.confidence import Interval
from tunekit.core.decision_points import Always, DecisionRule, Never
from tunekit.core.values import number

__all__ = [
    "decides_alike",
    "exhausts",
    "innermost",
    "mode_of",
    "objectives_of",
    "rule_for",
    "rungs_of",
    "time_attr_of",
    "traits_of",
]


@dataclass(frozen=True)
class Kind:
    """One of Tune's schedulers; the defaults are right for any that is not known.

    Attributes:
        traits: What sets it apart.
        rule: Returns when it uses a score of a trial.
        alike: Returns whether it decides the same wherever in an interval a score is.
        time_attr: Its attribute that names the time of a report by which it decides.
        max_t: Its attribute for the time at which it stops every trial.
    """

    traits: Traits = field(default_factory=Traits)
    rule: Callable[[Any, Trial], DecisionRule] = lambda scheduler, trial: Always()
    alike: Callable[[Any, Trial, float, Interval], bool] = lambda *_: False
    time_attr: str | None = None
    max_t: str | None = None


_HYPERBAND = Kind(
    Traits(at_times=True, clones=False, waits_for_all=True),
    rule=decision_points.hyperband,
    alike=alike.hyperband,
    time_attr="_time_attr",
    max_t="_max_t_attr",
)
_KINDS: dict[type, Kind] = {
    FIFOScheduler: Kind(
        Traits(clones=False, pauses=False),
        rule=lambda scheduler, trial: Never(),
        alike=lambda *_: True,
    ),
    AsyncHyperBandScheduler: Kind(
        Traits(at_times=True, clones=False, pauses=False),
        rule=decision_points.asha,
        alike=alike.asha,
        time_attr="_time_attr",
        max_t="_max_t",
    ),
    MedianStoppingRule: Kind(Traits(clones=False), alike=alike.median, time_attr="_time_attr"),
    HyperBandScheduler: _HYPERBAND,
    HyperBandForBOHB: replace(_HYPERBAND, traits=Traits(at_times=True, clones=False)),
    PopulationBasedTraining: Kind(
        Traits(at_times=True),
        rule=decision_points.pbt,
        alike=alike.pbt,
        time_attr="_time_attr",
    ),
    PopulationBasedTrainingReplay: Kind(
        Traits(at_times=True, replays=True),
        rule=decision_points.replay,
        alike=lambda *_: True,
    ),
}


def kind_of(scheduler: TrialScheduler) -> Kind:
    """Return the row of a scheduler that is exactly one of Tune's; PB2 is as PBT."""
    kind = type(scheduler)
    # PB2's module is slow to import: a scheduler of it has imported it.
    pb2 = getattr(sys.modules.get("ray.tune.schedulers.pb2"), "PB2", None)
    return _KINDS.get(PopulationBasedTraining if kind is pb2 else kind, Kind())


def traits_of(scheduler: TrialScheduler) -> Traits:
    """Return what kind of scheduler the one is that decides.

    A subclass of one of Tune's is taken for one that may decide by any score, clone and pause.

    Example:
        >>> traits_of(AsyncHyperBandScheduler()).pauses, traits_of(HyperBandScheduler()).pauses
        (False, True)
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase):
        return decides.traits if decides.knows_its_rule else Traits()
    known = next((_KINDS[kind] for kind in type(decides).__mro__ if kind in _KINDS), Kind())
    traits = known.traits
    if isinstance(decides, PopulationBasedTraining) and its(decides, "_synch"):
        traits = replace(traits, synchronous=True, waits_for_all=True)
    if kind_of(decides) is known:
        return traits
    return replace(traits, at_times=False, clones=True, pauses=True)


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
    return kind_of(decides).rule(decides, trial)


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
    largest = mode_of(decides) == "max"
    better = interval if largest else Interval(-interval.high, -interval.low)
    if isinstance(decides, SchedulerBase):
        return decides.knows_its_rule and decides.decides_alike(trial, at, better)
    return kind_of(decides).alike(decides, trial, at, better)


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
    name = kind_of(decides).time_attr
    return TRAINING_ITERATION if name is None else str(its(decides, name))


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
    name = kind_of(decides).max_t
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


def mode_of(scheduler: TrialScheduler) -> str | None:
    """Return whether the scheduler's metric is to be large or small, if it has one.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> mode_of(ASHAScheduler(metric="loss", mode="min")), mode_of(FIFOScheduler())
        ('min', None)
    """
    mode = getattr(innermost(scheduler), "_mode", None)
    return mode if mode in ("min", "max") else None


def objectives_of(scheduler: TrialScheduler, mode: str | None) -> dict[str, str | None]:
    """Return the metrics that the scheduler ranks trials by, and which values of each are better.

    Args:
        scheduler: The scheduler.
        mode: Which are better if it ranks by one metric.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> objectives_of(ASHAScheduler(metric="loss"), "min"), objectives_of(FIFOScheduler(), None)
        ({'loss': 'min'}, {})
    """
    decides = innermost(scheduler)
    if isinstance(decides, SchedulerBase) and len(decides.objectives) > 1:
        return decides.objectives
    metric = scheduler.metric
    return {metric: mode} if isinstance(metric, str) and metric != DEFAULT_METRIC else {}


def innermost(scheduler: TrialScheduler) -> TrialScheduler:
    """Return the scheduler that decides, inside of one that changes resources."""
    while isinstance(scheduler, ResourceChangingScheduler):
        scheduler = its(scheduler, "_base_scheduler")
    return scheduler
