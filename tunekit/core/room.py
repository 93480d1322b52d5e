"""What resources are left for validations beside trials, and for trials beside validations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = [
    "Shares",
    "at_once",
    "fits",
    "fits_in",
    "queued",
    "shares",
    "slots",
    "total",
]

# Ray divides resources no finer.
_FINEST = 1e-4
# What is waited for may have other resources that were not asked for: those of a placement group.
_TOLD_APART_BY = {"CPU", "GPU", "memory"}


def fits(
    free: Mapping[str, float],
    promised: Iterable[Mapping[str, float]],
    need: Mapping[str, float],
) -> int:
    """Return how many times a need fits into what is free and not promised to others.

    A trial that needs more than is free waits for another to give resources back, which may take
    long, so what is free meanwhile can be used.

    Args:
        free: What is free, by name of the resource.
        promised: What each of those that wait needs, in the order in which they get it.
        need: What one takes; at least one amount is above 0.

    Example:
        >>> fits({"CPU": 4, "GPU": 1}, [{"CPU": 1}], {"CPU": 1.5, "GPU": 0})
        2
        >>> fits({"CPU": 3}, [{"CPU": 2}, {"CPU": 2}], {"CPU": 1})
        1
    """
    rest = dict(free)
    for other in promised:
        if all(rest.get(name, 0.0) >= amount for name, amount in other.items()):
            for name, amount in other.items():
                rest[name] = rest.get(name, 0.0) - amount
    wanted = {name: amount for name, amount in need.items() if amount > 0}
    return min(int(rest.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items())


def at_once(cluster: Mapping[str, float], trial: Mapping[str, float]) -> int | None:
    """Return how many trials fit on the cluster at once; None if they take nothing.

    Example:
        >>> at_once({"CPU": 8, "GPU": 1}, {"CPU": 3}), at_once({"CPU": 8}, {})
        (2, None)
    """
    taken = {name: amount for name, amount in trial.items() if amount > 0}
    counts = [math.floor(cluster.get(name, 0) / n + 1e-9) for name, n in taken.items()]
    return max(1, min(counts)) if counts else None


def slots(
    cluster: Mapping[str, float], trial: Mapping[str, float], validation: Mapping[str, float]
) -> tuple[int, int] | None:
    """Return how many trials fit on the cluster at once, and how many validations besides.

    If no validation fits besides, one runs where a trial could. None if trials take nothing, or if
    validations take more than a trial gives back.

    Args:
        cluster: What the cluster has, by name of the resource.
        trial: What one trial takes.
        validation: What one validation takes.

    Example:
        >>> slots({"CPU": 3}, {"CPU": 1}, {"CPU": 1})
        (3, 0)
        >>> slots({"CPU": 8, "GPU": 2}, {"CPU": 1, "GPU": 1}, {"CPU": 2})
        (2, 3)
        >>> slots({"CPU": 2}, {"CPU": 1}, {"CPU": 2})
    """
    trials = at_once(cluster, trial)
    if trials is None:
        return None
    rest = {name: amount - trials * trial.get(name, 0) for name, amount in cluster.items()}
    taken = {name: amount for name, amount in validation.items() if amount > 0}
    beside = min((int(rest.get(name, 0) / n + 1e-9) for name, n in taken.items()), default=0)
    if beside > 0:
        return trials, beside
    fit = all(trial.get(name, 0) >= amount for name, amount in taken.items())
    return (trials, 0) if fit else None


def fits_in(
    need: Mapping[str, float] | Sequence[Mapping[str, float]],
    place: Sequence[Mapping[str, float]],
) -> bool:
    """Return whether a validation can run in the processes of a trial that waits.

    Args:
        need: The resources that it takes in one process, or in each of as many as there are.
        place: The resources of each process that waits.

    Example:
        >>> both = {"CPU": 1, "GPU": 1}
        >>> fits_in(both, [both]), fits_in(both, [both, both]), fits_in(both, [{"CPU": 2}])
        (True, True, False)
        >>> [fits_in([both] * 2, [both] * n) for n in (1, 2)]
        [False, True]
    """
    needs = [need] if isinstance(need, Mapping) else need
    if needs is need and len(needs) != len(place):
        return False
    return bool(place) and all(
        amount <= process.get(name, 0.0)
        for each, process in zip(needs, place, strict=False)
        for name, amount in each.items()
    )


def total(*parts: Mapping[str, float]) -> dict[str, float]:
    """Return what several things take together, without resources that none of them takes.

    Example:
        >>> total({"CPU": 1, "GPU": 0}, {"CPU": 2})
        {'CPU': 3}
    """
    names = dict.fromkeys(name for part in parts for name in part)
    sums = {name: sum(part.get(name) or 0 for part in parts) for name in names}
    return {name: amount for name, amount in sums.items() if amount}


@dataclass(frozen=True)
class Shares:
    """How trials and validations share a cluster.

    Attributes:
        at_once: How many trials fit; None: that is not known, or any number.
        leaving_room: How many leave resources for validations; None: none does, or any number.
        validations: For how many validations these leave resources.
        apart: Whether there are resources for validations that no trial can use.
        squeezed: Whether a trial and a validation fit, but only one after the other.
        have_workers: Whether trials are runs of a trainer, each of whose workers has one of their
            bundles.
    """

    at_once: int | None = None
    leaving_room: int | None = None
    validations: int = 0
    apart: bool = False
    squeezed: bool = False
    have_workers: bool = False

    def processes(self, bundles: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
        """Return the resources of each process of a trial that has these bundles.

        Those of a trial that is no run of a trainer and is spread over several are not known.
        """
        return bundles if len(bundles) == 1 or self.have_workers else ()


def shares(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    *,
    most: int,
) -> Shares:
    """Return how trials and validations share a cluster.

    Args:
        cluster: What the cluster has, by name of the resource.
        trial: What one trial takes.
        validation: What one validation takes.
        most: How many validations to leave resources for; fewer if they would leave none for a
            trial.

    Example:
        >>> known = shares({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, most=1)
        >>> known.at_once, known.leaving_room, known.apart
        (8, 6, False)
        >>> shares({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, most=4).validations  # one has to do
        1
        >>> shares({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, most=1).apart
        True
        >>> shares({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, most=1).squeezed
        True
    """
    fit = slots(cluster, trial, validation)
    shared = [name for name, amount in trial.items() if amount > 0 and validation.get(name, 0) > 0]
    known = Shares(at_once(cluster, trial), apart=fit is not None and fit[1] > 0)
    for count in range(most if shared else 0, 0, -1):
        beside = min(
            math.floor((cluster.get(name, 0) - count * validation[name]) / trial[name] + 1e-9)
            for name in shared
        )
        if beside >= 1:
            return replace(known, leaving_room=beside, validations=count)
    each_fits = all(
        cluster.get(name, 0.0) >= amount - _FINEST
        for need in (trial, validation)
        for name, amount in need.items()
    )
    return replace(known, squeezed=bool(shared) and each_fits)


def queued(demands: Iterable[tuple[Mapping[str, float], int]], need: Mapping[str, float]) -> int:
    """Return how many of the demands for resources match what something takes.

    Args:
        demands: What is waited for, and by how many. A demand in a placement group has the group in
            the names of its resources (``CPU_group_0_3f2a``).
        need: What one takes.

    Example:
        >>> queued([({"CPU": 1.0}, 3), ({"CPU": 1.0, "GPU": 1.0}, 2)], {"CPU": 1, "GPU": 1})
        2
        >>> queued([({"CPU_group_3f2a": 1.0, "bundle_group_3f2a": 0.001}, 1)], {"CPU": 1})
        1
    """

    names = need.keys() | _TOLD_APART_BY

    def wants(shape: Mapping[str, float]) -> bool:
        amounts: dict[str, float] = {}
        for name, amount in shape.items():
            amounts.setdefault(name.split("_group_")[0], amount)
        differences = (amounts.get(name, 0.0) - (need.get(name) or 0.0) for name in names)
        return all(abs(difference) < _FINEST for difference in differences)

    return sum(count for shape, count in demands if wants(shape))
