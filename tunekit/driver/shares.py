"""How a sweep's trials and validations share what there is: the rule, applied to its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tunekit._ray.decisions import room_for
from tunekit.combinations import pauses
from tunekit.core.room import Shares, shares, slots, total
from tunekit.driver.callback import ValidationCallback

__all__ = ["share"]


def share(
    validation: ValidationCallback,
    scheduler: TrialScheduler | None,
    cluster: Mapping[str, float],
    bundles: Sequence[Mapping[str, float]],
    *,
    swaps: bool,
    turns: Callable[[], bool],
) -> Shares:
    """Decide how trials and validations share a cluster, and let the sweep heed it.

    Args:
        validation: The sweep's validations.
        scheduler: The sweep's scheduler, not wrapped.
        cluster: What the cluster has, by name of the resource.
        bundles: What a trial takes, by place.
        swaps: Whether actors are reused.
        turns: Whether a trial and a validation can still only run one after the other; asked only
            where that is so at first.

    Returns:
        What is left to do: to limit trials, or to reserve resources.
    """
    config, waiting = validation.config, validation.waiting
    taken, needed = total(*bundles), validation.validator.resources
    most = slots(cluster, taken, needed)
    waiting.room_beside = most is not None and most[1] > 0
    swaps = swaps or waiting.room_beside
    room = shares(
        cluster,
        taken,
        needed,
        on_pending=config.on_pending,
        when=room_for(config.when, scheduler),
        most=config.most_in_flight or 1,
        lends=validation.validator.fits_in(waiting.place(bundles)),
        in_trials=validation.validator.in_trials,
        pausing=pauses(scheduler) or (swaps and config.on_pending != "continue"),
    )
    waiting.validate_themselves = room.themselves
    waiting.decides = type(scheduler) is not FIFOScheduler
    if room.alone:
        waiting.one_at_a_time = turns
    else:
        waiting.shares_with_trials = any(name in needed for name in taken)
    return room
