"""Warm starts: the configurations, results and checkpoints that a sweep takes from a former one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunekit.core.parameters import Parameter, choice, parameters_of
from tunekit.core.ranking import front_of, ranking_of, repeats_of
from tunekit.core.seeds import configurations_of
from tunekit.core.timeline import ScoredCheckpoint, Timeline

#: Hyperparameters by flat name; values that are dicts are not flattened.
Point = Mapping[str, Any]


@dataclass(frozen=True)
class WarmStart:
    """The configurations, results and checkpoints that a sweep begins with.

    Attributes:
        source: The location of the former sweep.
        first: The configurations that run first.
        told: Other configurations with their flat results, for the searcher.
        checkpoints: The checkpoints from which the first configurations start, if any.
    """

    source: str
    first: Sequence[Point] = ()
    told: Sequence[tuple[Point, Mapping[str, Any]]] = ()
    checkpoints: Sequence[Any] = ()

    def checkpoint_for(self, config: Mapping[str, Any]) -> Any:
        """Return the checkpoint that a new trial starts from, or None.

        Example:
            >>> warm = WarmStart("/former", [{"net/width": 8}], checkpoints=["checkpoint"])
            >>> warm.checkpoint_for({"net": {"width": 8}}), warm.checkpoint_for({"net": {}})
            ('checkpoint', None)
        """
        for point, checkpoint in zip(self.first, self.checkpoints, strict=False):
            if all(value_at(config, name) == [value] for name, value in point.items()):
                return checkpoint
        return None


def how_many(num_samples: int, former: int, repeat: int = 1) -> int:
    """Return how many former configurations run first: a quarter of all, and at least one.

    Args:
        num_samples: ``TuneConfig(num_samples=...)``. With -1 (no limit), ``former`` counts instead.
        former: The number of trials in the former sweep.
        repeat: How many trials each configuration has.

    Example:
        >>> how_many(40, 8), how_many(2, 8), how_many(-1, 8), how_many(40, 8, repeat=5)
        (10, 1, 2, 2)
    """
    return max(1, (num_samples if num_samples > 0 else former) // (4 * repeat))


def value_at(config: Any, name: str) -> list[Any]:
    """Return the value of a hyperparameter, in a list that is empty if it has none.

    Example:
        >>> value_at({"net": {"width": 8}}, "net/width"), value_at({}, "lr")
        ([8], [])
    """
    for key in name.split("/"):
        if not isinstance(config, Mapping) or key not in config:
            return []
        config = config[key]
    return [config]


def ranked(
    timeline: Timeline,
    session: Mapping[str, Any],
    objectives: Mapping[str, str],
    seed: str | None,
) -> list[tuple[str, ScoredCheckpoint]]:
    """Return the best checkpoint of each trial that has not failed, best first.

    With several objectives, the Pareto front comes first; with a seed, the configuration with the
    best mean.

    Args:
        timeline: The history of the former sweep.
        session: The settings of its newest session.
        objectives: The mode of each validated metric to rank by, by flat name.
        seed: The hyperparameter that is the random seed, if there is one.

    Example:
        >>> ranked(Timeline(()), {}, {"accuracy": "max"}, None)
        []
    """
    metric, mode = next(iter(objectives.items()))
    found = [
        (one.trial_id, one.best)
        for one in ranking_of(timeline, metric, mode)
        if one.best is not None and one.trial.status != "error"
    ]
    if len(objectives) > 1:
        left = dict(found)
        return [*(one for one in front_of(timeline, objectives) if one[0] in left), *found]
    if seed is not None:
        repeats = repeats_of(timeline, session, metric=metric, mode=mode, scope="best")
        groups = enumerate(configurations_of(repeats, seed, mode))
        places = {one.trial_id: place for place, group in groups for one in group.repeats}
        found.sort(key=lambda one: places[one[0]])
    return found


def unsearched(
    configs: Sequence[Mapping[str, Any]],
    space: Mapping[str, Mapping[str, Any]],
    new: Collection[str],
) -> list[Parameter]:
    """Return the hyperparameters that a former sweep has searched and a new one does not.

    Args:
        configs: The hyperparameters of the former trials, by flat name.
        space: The search space that was recorded, as for ``parameters_of``.
        new: The hyperparameters that are searched now, by flat name.

    Example:
        >>> configs = [{"lr": 0.1, "net/width": 8}, {"lr": 0.2, "net/width": 9}]
        >>> [one.name for one in unsearched(configs, {}, ["net"])]
        ['lr']
    """
    return [
        one
        for one in parameters_of(configs, space).values()
        if (one.name in space or not one.single)
        and not any(f"{one.name}/".startswith(f"{name}/") for name in new)
    ]


def distinct(points: Iterable[Point], leaving_out: Collection[str]) -> list[int]:
    """Return the index of the first of all points that differ only in the names left out.

    Example:
        >>> points = [{"lr": lr, "seed": n} for n in range(3) for lr in (0.1, 0.2)]
        >>> distinct(points, ["seed"])
        [0, 1]
    """
    found: dict[str, int] = {}
    for place, point in enumerate(points):
        values = {name: choice(value) for name, value in point.items() if name not in leaving_out}
        found.setdefault(repr(values), place)
    return list(found.values())
