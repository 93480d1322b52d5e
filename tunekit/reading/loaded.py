"""Validates checkpoints of a loaded sweep, or confirms its winner, and reads the sweep anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow.fs

from tunekit.config import ValidationConfig
from tunekit.confirm import Confirm
from tunekit.core.calls import ValidationFunction
from tunekit.core.later_validations import began_of
from tunekit.core.metrics import flatten
from tunekit.core.names import listed
from tunekit.core.problems import Problems
from tunekit.core.ranking import Ranked
from tunekit.core.seeds import Configuration
from tunekit.core.timeline import Timeline
from tunekit.evaluation.confirming import confirm_winner
from tunekit.evaluation.later import Swept, validate_later
from tunekit.reading.folder import read_sweep

__all__ = ["LoadedSweep", "confirmed", "validated"]

_NO_FOLDER = "the sweep is in no folder. Read it with tunekit.load(path)."


class LoadedSweep(Protocol):
    """What has to be known of a sweep here: a part of :class:`tunekit.Sweep`, which is above."""

    path: str
    filesystem: pyarrow.fs.FileSystem | None
    source: str | None
    sessions: list[Mapping[str, Any]]
    metric: str | None
    mode: str | None
    seed: str | None
    seed_as_started: bool
    timeline: Timeline

    @property
    def has_seeds(self) -> bool:
        """Return whether a seed is known, and any trial has it."""

    def ranking(self) -> list[Ranked]:
        """Return the trials, the best first."""

    def ranked_configurations(self) -> list[Configuration]:
        """Return the configurations, the best first."""

    def config_of(self, trial_id: str, generation: int | None = None) -> Mapping[str, Any]:
        """Return a trial's hyperparameters."""

    def hyperparameters(self) -> list[dict[str, Any]]:
        """Return each trial's hyperparameters by flat name."""


_Sweep = TypeVar("_Sweep", bound=LoadedSweep)


def validated(
    sweep: _Sweep,
    validation: ValidationConfig | ValidationFunction,
    checkpoints: int | str | Collection[str],
    *,
    name: str | None,
    cache: str | Path | None,
    replace: bool,
    progress: Callable[[Mapping[str, int]], None] | None,
) -> _Sweep:
    """Validate checkpoints of a sweep, which is read anew before and afterwards.

    The arguments are those of :meth:`tunekit.Sweep.validate`.
    """
    if sweep.filesystem is None:
        problems = Problems("Sweep.validate")
        problems.add(_NO_FOLDER)
        problems.raise_any()
    config = validation
    if not isinstance(config, ValidationConfig):
        config = ValidationConfig(config)
    newest = _reread(sweep)
    options: dict[str, Any] = {"name": name, "cache": cache, "replace": replace}
    validate_later(_swept(newest), config, checkpoints, progress=progress, **options)
    return _reread(sweep)


def confirmed(
    sweep: _Sweep,
    settings: Confirm,
    own: ValidationConfig | None = None,
    progress: Callable[[Mapping[str, int]], None] | None = None,
) -> _Sweep:
    """Confirm the winner of a sweep; see :meth:`tunekit.Sweep.confirm`.

    Args:
        sweep: The sweep; it is read anew first.
        settings: How.
        own: How the sweep itself validates, if that is known.
        progress: As of :meth:`tunekit.Sweep.validate`.
    """
    problems = Problems("Sweep.confirm")
    if sweep.filesystem is None:
        problems.add(_NO_FOLDER)
    if sweep.metric is None or sweep.mode is None:
        problems.add(
            "nothing says by which metric the winner is the best. Pass the metric and the mode to "
            "tunekit.load(path, metric=..., mode=...)."
        )
    problems.raise_any()
    assert sweep.metric and sweep.mode  # or it was raised
    seed = None if sweep.seed_as_started else sweep.seed
    newest = _reread(sweep, seed)
    swept, by = _swept(newest), "trial"
    if newest.has_seeds:
        best = [one.best for one in newest.ranked_configurations()]
        ranked = {one.trial_id: swept.ranked[one.trial_id] for one in best if one is not None}
        swept, by = replace(swept, ranked=ranked), "configuration"
    if settings.fn is None and sweep.metric not in newest.timeline.own_names and swept.ranked:
        problems.add(
            f"the sweep's own function does not validate {sweep.metric!r}, by which it is ranked "
            f"here: it has {listed(newest.timeline.own_names)}. Pass a function that does."
        )
        problems.raise_any()
    rows = newest.timeline.validations
    functions = [one.get("validation", {}).get("fn") for one in newest.sessions]
    confirm_winner(
        swept,
        settings,
        metric=sweep.metric,
        mode=sweep.mode,
        by=by,
        validated=sum(row["status"] == "validated" for row in rows),
        functions=functions,
        own=own,
        progress=progress,
    )
    return _reread(sweep, seed)


def _reread(sweep: _Sweep, seed: str | None = None) -> _Sweep:
    """Return a sweep read anew, ranked by the same metric."""
    where: tuple[Any, ...] = (sweep.path, sweep.filesystem)
    if sweep.source is not None:
        where = (sweep.source,)
    return read_sweep(type(sweep), *where, metric=sweep.metric, mode=sweep.mode, seed=seed)


def _swept(sweep: LoadedSweep) -> Swept:
    """Return what a later validation has to know of a sweep."""
    assert sweep.filesystem is not None
    own = set(sweep.timeline.own_names)
    later = set(sweep.timeline.names) - own
    for trial_id in sweep.timeline.trials:
        for row in sweep.timeline.rows(trial_id):
            own.update(name for name in flatten(row) if name not in later)
    return Swept(
        filesystem=sweep.filesystem,
        path=sweep.path,
        began=began_of(sweep.sessions),
        ranked={one.trial_id: _scored_of(sweep, one) for one in sweep.ranking()},
        names=own,
        run_of=sweep.timeline.run_of,
        config_of=sweep.config_of,
    )


def _scored_of(sweep: LoadedSweep, one: Ranked) -> list[tuple[int, int]]:
    """Return where a trial has scores, the best first; none if it is not ranked."""
    if one.best is None or sweep.metric is None:
        return []
    scored = [
        (value, (score.generation, score.iteration))
        for score in sweep.timeline.scores(one.trial_id)
        if (value := score.value(sweep.metric)) is not None
    ]
    scored.sort(key=lambda found: found[0], reverse=sweep.mode == "max")
    return [place for _, place in scored]
