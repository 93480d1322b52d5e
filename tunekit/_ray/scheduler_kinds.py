"""What kind of scheduler the user's is: the one table of what sets Tune's own apart."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import ray
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
from tunekit._ray.scheduler_base import SchedulerBase, Traits
from tunekit.errors import UnsupportedRayError

__all__ = ["innermost", "its", "kind_of", "mode_of", "traits_of"]

# PB2 is as population based training, and whether that is synchronous is a setting.
_TRAITS: dict[type, Traits] = {
    FIFOScheduler: Traits(clones=False, pauses=False),
    AsyncHyperBandScheduler: Traits(at_times=True, clones=False, pauses=False),
    MedianStoppingRule: Traits(clones=False),
    HyperBandScheduler: Traits(at_times=True, clones=False, waits_for_all=True),
    HyperBandForBOHB: Traits(at_times=True, clones=False),
    PopulationBasedTraining: Traits(at_times=True),
    PopulationBasedTrainingReplay: Traits(at_times=True, replays=True),
}


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
    known = next((kind for kind in type(decides).__mro__ if kind in _TRAITS), None)
    traits = Traits() if known is None else _TRAITS[known]
    if isinstance(decides, PopulationBasedTraining) and its(decides, "_synch"):
        traits = replace(traits, synchronous=True, waits_for_all=True)
    if kind_of(decides) is known:
        return traits
    return replace(traits, at_times=False, clones=True, pauses=True)


def kind_of(scheduler: TrialScheduler) -> type:
    """Return the exact class of a scheduler; of PB2, the one whose internal state it has."""
    kind = type(scheduler)
    # PB2's module is slow to import: a scheduler of it has imported it.
    pb2 = getattr(sys.modules.get("ray.tune.schedulers.pb2"), "PB2", None)
    return PopulationBasedTraining if kind is pb2 else kind


def innermost(scheduler: TrialScheduler) -> TrialScheduler:
    """Return the scheduler that decides, inside of one that changes resources."""
    while isinstance(scheduler, ResourceChangingScheduler):
        scheduler = its(scheduler, "_base_scheduler")
    return scheduler


def mode_of(scheduler: TrialScheduler) -> str | None:
    """Return whether the scheduler's metric is to be large or small, if it has one.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
        >>> mode_of(ASHAScheduler(metric="loss", mode="min")), mode_of(FIFOScheduler())
        ('min', None)
    """
    mode = getattr(innermost(scheduler), "_mode", None)
    return mode if mode in ("min", "max") else None


def its(thing: Any, name: str) -> Any:
    """Return a private attribute that only objects have, so that it is not checked at import."""
    try:
        return getattr(thing, name)
    except AttributeError:
        raise UnsupportedRayError(
            f"A {type(thing).__name__} of Ray {ray.__version__} has no {name}, which tells when "
            f"the scheduler decides; tunekit was tested with {TESTED}. Install it with: "
            f"pip install 'ray[tune,train,data]=={TESTED}'. Or validate by count: "
            "ValidationConfig(when=1)."
        ) from None
