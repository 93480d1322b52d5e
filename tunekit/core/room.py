"""What resources are left for validations beside trials, and for trials beside validations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Shares",
    "Shortage",
    "at_once",
    "fits",
    "fits_in",
    "one_at_a_time",
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
    *,
    in_process: bool = False,
) -> bool:
    """Return whether something can run in the place of processes that wait.

    Their cores are free then. Their memory is not, nor is their GPUs', for another process.

    Args:
        need: The resources that it takes in one process, or in each of as many as there are.
        place: The resources of each process that waits.
        in_process: Whether it runs in these very processes.

    Example:
        >>> both = {"CPU": 1, "GPU": 1}
        >>> fits_in({"CPU": 1}, [{"CPU": 2}]), fits_in(both, [both])
        (True, False)
        >>> fits_in(both, [both], in_process=True), fits_in(both, [both, both], in_process=True)
        (True, True)
        >>> [fits_in([both] * 2, [both] * n, in_process=True) for n in (1, 2)]
        [False, True]
        >>> fits_in({"CPU": 1}, [{"CPU": 1}, {"CPU": 1}])  # on which of their nodes?
        False
    """
    needs = [need] if isinstance(need, Mapping) else need
    if not in_process and (len(place) != 1 or needs is need or {*total(*needs)} != {"CPU"}):
        return False
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
        themselves: Whether trials that wait validate their checkpoints in their processes.
        alone: Whether a trial and a validation can only run one after the other.
        known: Whether it is known how many trials fit; else nothing can be left for validations.
        limit: How many trials may have an actor at once; None: as many as fit.
        validations: How many validations there is room for then.
    """

    themselves: bool = False
    alone: bool = False
    known: bool = False
    limit: int | None = None
    validations: int = 0


def shares(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    *,
    on_pending: str,
    when: int | str,
    most: int,
    lends: bool,
    in_trials: bool,
    pausing: bool,
) -> Shares:
    """Return how trials and validations share a cluster.

    No room is left for validations if trials make it when they wait for scores, and nothing else is
    validated, or is validated in their processes, too. Then no more trials are started than fit, so
    that validations of ended trials go before trials to come.

    Args:
        cluster: What the cluster has, by name of the resource.
        trial: What one trial takes.
        validation: What one validation takes.
        on_pending: As in :class:`tunekit.ValidationConfig`.
        when: Likewise; 1 for ``"auto"`` with a scheduler by whose decisions nothing is left out.
        most: How many validations to leave room for; fewer if they would leave none for a trial.
        lends: Whether a validation can run in the place of a trial that waits.
        in_trials: Whether it runs in the trial's process then.
        pausing: Whether trials are paused: a limit would count them, so room is to be reserved.

    Example:
        >>> known = {"on_pending": "auto", "when": 1, "most": 1, "pausing": False}
        >>> on_cpus = lambda n, **more: shares({"CPU": n}, {"CPU": 1}, {"CPU": 1}, **known | more)
        >>> on_cpus(4, lends=True, in_trials=True)
        Shares(themselves=True, alone=False, known=True, limit=4, validations=0)
        >>> on_cpus(4, lends=False, in_trials=False)
        Shares(themselves=False, alone=False, known=True, limit=3, validations=1)
        >>> on_cpus(4, lends=False, in_trials=False, pausing=True).limit
        >>> on_cpus(1, lends=False, in_trials=False).alone
        True
    """
    lends = lends and on_pending != "continue"
    themselves = lends and in_trials
    if not themselves and one_at_a_time(cluster, trial, validation):
        return Shares(alone=True)
    if lends and (themselves or when in ("auto", "decisions")):
        fit = at_once(cluster, trial)
        room = None if fit is None else (fit, 0)
    else:
        room = _beside(cluster, trial, validation, most)
    if room is None:
        return Shares(themselves)
    limit, validations = room
    return Shares(themselves, False, True, None if pausing else limit, validations)


def _beside(
    cluster: Mapping[str, float],
    trial: Mapping[str, float],
    validation: Mapping[str, float],
    most: int,
) -> tuple[int, int] | None:
    """Return how many trials leave resources for how many validations, both at least 1.

    None if trials take nothing that validations need, or if not even one of each fits together.

    Example:
        >>> _beside({"CPU": 8}, {"CPU": 1}, {"CPU": 2}, most=1)
        (6, 1)
        >>> _beside({"CPU": 2}, {"CPU": 1}, {"CPU": 1}, most=4)  # one has to do
        (1, 1)
        >>> _beside({"CPU": 8, "GPU": 1}, {"GPU": 1}, {"CPU": 1}, most=1)
        >>> _beside({"CPU": 1}, {"CPU": 1}, {"CPU": 1}, most=1)
    """
    shared = [name for name, amount in trial.items() if amount > 0 and validation.get(name, 0) > 0]
    for count in range(most if shared else 0, 0, -1):
        beside = min(
            math.floor((cluster.get(name, 0) - count * validation[name]) / trial[name] + 1e-9)
            for name in shared
        )
        if beside >= 1:
            return beside, count
    return None


def one_at_a_time(
    cluster: Mapping[str, float], trial: Mapping[str, float], validation: Mapping[str, float]
) -> bool:
    """Return whether a trial fits on the cluster, but nothing beside it.

    Neither a validation nor another trial does: they can only run one after the other. False if
    one of them does not fit at all.

    Args:
        cluster: What the cluster has, by name of the resource.
        trial: What one trial takes.
        validation: What one validation takes.

    Example:
        >>> one_at_a_time({"CPU": 1}, {"CPU": 1}, {"CPU": 1})
        True
        >>> one_at_a_time({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1, "GPU": 1})
        True
        >>> one_at_a_time({"CPU": 4, "GPU": 1}, {"GPU": 1}, {"CPU": 1})
        False
        >>> one_at_a_time({"CPU": 1}, {"CPU": 1}, {"CPU": 2})
        False
    """

    def fit(*parts: Mapping[str, float]) -> bool:
        needed = total(*parts)
        return all(cluster.get(name, 0.0) >= n - _FINEST for name, n in needed.items())

    each_fits = fit(trial) and fit(validation)
    return each_fits and not fit(trial, validation) and not fit(trial, trial)


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


class Shortage:
    """Whether a sweep's validations are short of resources, and since when.

    They are while all that were started wait for resources, because none are free. While one runs,
    or its process starts, which may take long, they are not: that one has its resources.

    Example:
        >>> shortage = Shortage()
        >>> shortage.seen(started=2, queued=2, now=10.0)
        >>> shortage.for_s(now=14.0)
        4.0
        >>> shortage.seen(started=2, queued=1, now=15.0)  # the other one's process starts
        >>> shortage.for_s(now=16.0)
        0.0
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def seen(self, *, started: int, queued: int, now: float) -> None:
        """Take the current numbers.

        Args:
            started: How many validations were started and have not ended.
            queued: How many of those wait for resources.
            now: The time, in seconds on any clock that does not go back.
        """
        if not started or queued < started:
            self._since = None
        elif self._since is None:
            self._since = now

    def relieved(self, now: float) -> None:
        """Note that something has given resources back for them: it counts from now."""
        if self._since is not None:
            self._since = now

    def for_s(self, now: float) -> float:
        """Return for how many seconds they have been short of resources; 0 if they are not."""
        return 0.0 if self._since is None else now - self._since
