"""How many trials may train at once so that validations fit beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["trials_beside"]


def trials_beside(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    slots: int,
) -> int | None:
    """Return how many trials leave resources for ``slots`` validations.

    Args:
        cluster: What there is, by name of the resource: ``{"CPU": 8, "GPU": 1}``.
        trial: What one trial takes.
        validation: What one validation takes.
        slots: Validations to leave room for; fewer if they would leave none for a trial.

    Returns:
        The number of trials, at least 1; None if trials take nothing that validations need, or
        if not even one of each fits together.

    Example:
        >>> trials_beside({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, slots=1)
        6
        >>> trials_beside({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, slots=4)  # one slot has to do
        1
        >>> trials_beside({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, slots=1)
        >>> trials_beside({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, slots=1)
    """
    shared = [name for name, amount in trial.items() if amount > 0 and validation.get(name, 0) > 0]
    if not shared:
        return None
    for count in range(slots, 0, -1):
        fits = min(
            math.floor((cluster.get(name, 0) - count * validation[name]) / trial[name] + 1e-9)
            for name in shared
        )
        if fits >= 1:
            return fits
    return None
