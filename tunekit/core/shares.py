"""How trials and validations share a cluster: how many fit, and whether in each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

# The smallest share that Ray assigns.
_FINEST = 1e-4
# Demands may have other resources that were not requested: those of a placement group.
_DISTINGUISHED_BY = {"CPU", "GPU", "memory"}


def fits(
    free: Mapping[str, float],
    promised: Iterable[tuple[Mapping[str, float], int]],
    need: Mapping[str, float],
) -> int:
    """Return how many times a need fits into free resources that are not promised to others.

    A trial that needs more than is free waits for another one to release resources, which may take
    long, so free resources can be used in the meantime.

    Args:
        free: The free resources, by name.
        promised: The needs of those that already wait, each with the number of those, in the order
            in which they get theirs.
        need: The resources of one; at least one amount is above 0.

    Example:
        >>> fits({"CPU": 4, "GPU": 1}, [({"CPU": 1}, 1)], {"CPU": 1.5, "GPU": 0})
        2
        >>> fits({"CPU": 3}, [({"CPU": 2}, 2)], {"CPU": 1})
        1
    """
    rest = dict(free)
    for other, number in promised:
        times = max(0, min(number, _times(rest, other) or 0))
        for name, amount in other.items():
            rest[name] = rest.get(name, 0.0) - times * amount
    return _times(rest, need) or 0


def _times(free: Mapping[str, float], need: Mapping[str, float]) -> int | None:
    """Return how many times a need fits into free resources; None if it is empty."""
    needed = ((name, amount) for name, amount in need.items() if amount > 0)
    counts = (math.floor(free.get(name, 0) / amount + 1e-9) for name, amount in needed)
    return min(counts, default=None)


def fits_in(
    need: Mapping[str, float] | Sequence[Mapping[str, float]],
    processes: Sequence[Mapping[str, float]],
) -> bool:
    """Return whether a validation can run in the processes of a waiting trial.

    Args:
        need: The resources that it needs in one process, or in each of several.
        processes: The resources of each process of the trial.

    Example:
        >>> both = {"CPU": 1, "GPU": 1}
        >>> fits_in(both, [both]), fits_in(both, [both, both]), fits_in(both, [{"CPU": 2}])
        (True, True, False)
        >>> [fits_in([both] * 2, [both] * n) for n in (1, 2)]
        [False, True]
    """
    needs = [need] if isinstance(need, Mapping) else need
    if needs is need and len(needs) != len(processes):
        return False
    return bool(processes) and all(
        amount <= process.get(name, 0.0)
        for each, process in zip(needs, processes, strict=False)
        for name, amount in each.items()
    )


def total(*parts: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of several amounts of resources, without zeros.

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
        at_once: The number of trials that fit; None: unknown or unlimited.
        alongside: The number of trials that leave resources for validations; None: none or
            unlimited.
        validations: The number of validations that these leave resources for.
        apart: Whether there are resources for validations that no trial can use.
        dedicated: Whether validations run as fast there as in a trial: with a GPU if it has one.
        exclusive: Whether a trial and a validation fit, but only one after the other.
        have_workers: Whether trials are runs of a trainer, each of whose workers has one of their
            bundles.
    """

    at_once: int | None = None
    alongside: int | None = None
    validations: int = 0
    apart: bool = False
    dedicated: bool = False
    exclusive: bool = False
    have_workers: bool = False

    def processes(self, bundles: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
        """Return the resources of each process of a trial with these bundles.

        They are unknown for a trial with several bundles that is not a run of a trainer.
        """
        return bundles if len(bundles) == 1 or self.have_workers else ()


def shares(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    *,
    most: int,
    limit: int | None = None,
    number: int | None = None,
) -> Shares:
    """Return how trials and validations share a cluster.

    Args:
        cluster: The cluster's resources, by name.
        trial: The resources of one trial.
        validation: The resources of one validation.
        most: The number of validations to leave resources for; fewer if none would be left for a
            trial.
        limit: The limit on concurrent trials that the user has set, if any.
        number: How many trials the sweep has at most, if known.

    Example:
        >>> known = shares({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, most=1)
        >>> known.at_once, known.alongside, known.apart
        (8, 6, False)
        >>> shares({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, most=4).validations  # one has to do
        1
        >>> known = shares({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, most=1)
        >>> known.apart, known.dedicated
        (True, False)
        >>> shares({"CPU": 8}, {"CPU": 1}, {"CPU": 1}, most=1, limit=4).dedicated
        True
        >>> [shares({"CPU": 4}, {"CPU": 1}, {"CPU": 1}, most=1, number=n).apart for n in (3, 4)]
        [True, False]
        >>> shares({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, most=1).exclusive
        True
    """
    times = _times(cluster, trial)
    trials = None if times is None else max(1, min(times, limit or times))
    taken = 0 if trials is None else min(trials, number or trials)
    rest = {name: amount - taken * trial.get(name, 0) for name, amount in cluster.items()}
    apart = trials is not None and (_times(rest, validation) or 0) > 0
    shared = [name for name, amount in trial.items() if amount > 0 and validation.get(name, 0) > 0]
    as_fast = not trial.get("GPU") or bool(validation.get("GPU"))
    known = Shares(trials, apart=apart, dedicated=apart and as_fast)
    for count in range(most if shared else 0, 0, -1):
        beside = min(
            math.floor((cluster.get(name, 0) - count * validation[name]) / trial[name] + 1e-9)
            for name in shared
        )
        if beside >= 1:
            return replace(known, alongside=beside, validations=count)
    each_fits = all(
        cluster.get(name, 0.0) >= amount - _FINEST
        for need in (trial, validation)
        for name, amount in need.items()
    )
    return replace(known, exclusive=bool(shared) and each_fits)


def divide(
    cluster: Mapping[str, float],
    bundles: Sequence[Mapping[str, float]],
    validation: Mapping[str, float],
    *,
    most: int,
    limit: int | None = None,
    number: int | None = None,
    alongside: Mapping[str, float] | None = None,
    have_workers: bool = False,
) -> Shares:
    """Divide a cluster between the trials and the validations of a sweep.

    Args:
        cluster: The cluster's resources, by name.
        bundles: The resources of each bundle of a trial.
        validation: The resources of one validation.
        most: As for :func:`shares`.
        limit: The limit on concurrent trials that the user has set; None: it is set here.
        number: As for :func:`shares`.
        alongside: What must be free for each trial in addition, if anything; then no more
            trials run than that allows, whatever the user's limit.
        have_workers: As for :class:`Shares`.

    Example:
        >>> divide({"CPU": 4}, [{"CPU": 1}], {"CPU": 1}, most=1).alongside
        3
        >>> divide({"CPU": 4}, [{"CPU": 1}], {"CPU": 1}, most=1, limit=2).alongside is None
        True
    """
    trial = total(*bundles, alongside or {})
    known = shares(cluster, trial, validation, most=most, limit=limit, number=number)
    if limit is not None:
        known = replace(known, alongside=None, at_once=known.at_once if alongside else None)
    if alongside and known.alongside is None:
        known = replace(known, alongside=known.at_once)
    return replace(known, have_workers=have_workers)


def matching(demands: Iterable[tuple[Mapping[str, float], int]], need: Mapping[str, float]) -> int:
    """Return how many demands for resources match a need.

    Args:
        demands: The demands, each with its count. A demand in a placement group has the group in
            the names of its resources (``CPU_group_0_3f2a``).
        need: The resources of one.

    Example:
        >>> matching([({"CPU": 1.0}, 3), ({"CPU": 1.0, "GPU": 1.0}, 2)], {"CPU": 1, "GPU": 1})
        2
        >>> matching([({"CPU_group_3f2a": 1.0, "bundle_group_3f2a": 0.001}, 1)], {"CPU": 1})
        1
    """

    names = need.keys() | _DISTINGUISHED_BY

    def wants(shape: Mapping[str, float]) -> bool:
        amounts: dict[str, float] = {}
        for name, amount in shape.items():
            amounts.setdefault(name.split("_group_")[0], amount)
        differences = (amounts.get(name, 0.0) - (need.get(name) or 0.0) for name in names)
        return all(abs(difference) < _FINEST for difference in differences)

    return sum(count for shape, count in demands if wants(shape))
