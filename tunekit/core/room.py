"""What resources are left for validations beside trials, and for trials beside validations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

__all__ = ["fits", "left_free", "total", "trials_beside"]


def left_free(
    free: Mapping[str, float], promised: Iterable[Mapping[str, float]]
) -> dict[str, float]:
    """Return what is free besides what those are about to take that can start now.

    A trial that needs more than is free waits for another to give resources back, which may take
    long: what is free meanwhile can be used.

    Args:
        free: What is free, by name of the resource.
        promised: What each that waits needs, in the order in which they get it.

    Example:
        >>> left_free({"CPU": 3}, [{"CPU": 2}, {"CPU": 2}])
        {'CPU': 1.0}
    """
    rest = {name: float(amount) for name, amount in free.items()}
    for need in promised:
        if all(rest.get(name, 0.0) >= amount for name, amount in need.items()):
            for name, amount in need.items():
                rest[name] = rest.get(name, 0.0) - amount
    return rest


def fits(
    free: Mapping[str, float],
    promised: Iterable[Mapping[str, float]],
    need: Mapping[str, float],
) -> int:
    """Return how often a need fits into what is free, besides what is promised to others.

    Args:
        free: What is free, by name of the resource.
        promised: What each that waits needs, as for :func:`left_free`.
        need: What one takes; at least one amount is above 0.

    Example:
        >>> fits({"CPU": 4, "GPU": 1}, [{"CPU": 1}], {"CPU": 1.5, "GPU": 0})
        2
    """
    rest = left_free(free, promised)
    wanted = {name: amount for name, amount in need.items() if amount > 0}
    return min(int(rest.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items())


def total(*parts: Mapping[str, float]) -> dict[str, float]:
    """Return what several things take together, without what none of them does.

    Example:
        >>> total({"CPU": 1, "GPU": 0}, {"CPU": 2})
        {'CPU': 3}
    """
    names = dict.fromkeys(name for part in parts for name in part)
    sums = {name: sum(part.get(name) or 0 for part in parts) for name in names}
    return {name: amount for name, amount in sums.items() if amount}


def trials_beside(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    slots: int,
) -> tuple[int, int] | None:
    """Return how many trials leave resources for how many validations, at most ``slots``.

    Args:
        cluster: What there is, by name of the resource: ``{"CPU": 8, "GPU": 1}``.
        trial: What one trial takes.
        validation: What one validation takes.
        slots: Validations to leave room for; fewer if they would leave none for a trial.

    Returns:
        The numbers of trials and of validations, both at least 1; None if trials take nothing
        that validations need, or if not even one of each fits together.

    Example:
        >>> trials_beside({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, slots=1)
        (6, 1)
        >>> trials_beside({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, slots=4)  # one slot has to do
        (1, 1)
        >>> trials_beside({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, slots=1)
        >>> trials_beside({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, slots=1)
    """
    shared = [name for name, amount in trial.items() if amount > 0 and validation.get(name, 0) > 0]
    if not shared:
        return None
    for count in range(slots, 0, -1):
        beside = min(
            math.floor((cluster.get(name, 0) - count * validation[name]) / trial[name] + 1e-9)
            for name in shared
        )
        if beside >= 1:
            return beside, count
    return None
