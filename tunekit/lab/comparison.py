"""Several sweeps side by side, as tables."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from tunekit.core.comparison import (
    Compared,
    best_so_far,
    common_points,
    differing,
    distinct_names,
    driven_s,
    goal_of,
    regions,
    settings_of,
    value_at,
)
from tunekit.core.metrics import flatten
from tunekit.core.problems import Problems
from tunekit.core.timeline import better
from tunekit.core.values import number
from tunekit.reading.loading import load
from tunekit.reading.sweep import Sweep

__all__ = ["SweepComparison", "compare"]


@dataclass(frozen=True)
class SweepComparison:
    """Several sweeps side by side. :func:`tunekit.compare` makes it.

    Each table is a ``pandas.DataFrame``, made when it is first asked for.

    Args:
        metric: The validated metric by which they are compared, by flat name.
        mode: ``"min"`` or ``"max"``.
        names: What each is called.
        sweeps: The sweeps.

    Example:
        >>> SweepComparison("accuracy", "max", ["a"], [Sweep([])]).table[["sweep", "trials"]]
          sweep  trials
        0     a       0
    """

    metric: str
    mode: str
    names: Sequence[str]
    sweeps: Sequence[Sweep] = field(repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return one row per sweep, in the order in which they were passed.

        Columns:

        - ``sweep``: its name; ``state``: as in :meth:`tunekit.Sweep.summary`;
        - ``best``: the best validated score of all its trials; ``low``, ``high``: its interval, if
          the validation function returned one (``X_low``, ``X_high``), otherwise NaN;
          ``best_trial``, ``best_iteration``: where that was;
        - ``trials``, ``stopped``, ``failed``: how many there are, were stopped by the scheduler,
          and failed; ``iterations``: how many were trained, counting every run;
        - ``validations``: how many ended with a score;
        - ``driven_s``: seconds from its beginning until it was last heard of, without breaks
          between its sessions; ``trained_s``, ``validated_s``: seconds that trials trained and
          validations ran, added up.
        """
        return pd.DataFrame([self._row(*one) for one in zip(self.names, self.sweeps, strict=True)])

    def _row(self, name: str, sweep: Sweep) -> dict[str, Any]:
        trials = list(sweep.timeline.trials.values())
        summary = sweep.summary()
        return {
            "sweep": name,
            "state": summary["state"],
            **self._best(sweep),
            "trials": len(trials),
            "stopped": sum(story.stopped for story in trials),
            "failed": sum(story.status == "error" for story in trials),
            "iterations": summary["iterations"],
            "validations": summary["validations"].get("validated", 0),
            "driven_s": _until(sweep, sweep.timeline.last),
            "trained_s": summary["trained_s"],
            "validated_s": summary["validations_ran_s"],
        }

    def _best(self, sweep: Sweep) -> dict[str, Any]:
        best, value, trial = None, math.nan, None
        for trial_id in sweep.timeline.trials:
            scored = sweep.timeline.best_score(trial_id, self.metric, self.mode)
            own = None if scored is None else scored.value(self.metric)
            if own is not None and (best is None or better(self.mode, own, value)):
                best, value, trial = scored, own, trial_id
        metrics = {} if best is None else flatten(best.metrics)
        low, high = (number(metrics.get(f"{self.metric}{end}")) for end in ("_low", "_high"))
        within = low is not None and high is not None and low <= value <= high
        return {
            "best": value,
            "low": low if within else math.nan,
            "high": high if within else math.nan,
            "best_trial": trial,
            "best_iteration": pd.NA if best is None else best.iteration,
        }

    @cached_property
    def over_time(self) -> pd.DataFrame:
        """Return the best scores after the same time.

        One row per time, four equal parts of the shortest sweep: ``driven_s``, seconds that each
        had been driven, and for each sweep the best of the scores that had arrived by then.
        """
        return self._over("driven_s", _until, lambda point: point)

    @cached_property
    def over_iterations(self) -> pd.DataFrame:
        """Return the best scores after the same number of training iterations.

        One row per number, as in :attr:`over_time`: ``iterations``, which all trials of a sweep
        had trained together, counting every run, and for each sweep the best score by then. Of
        sweeps that had different machines, this tells more than time.
        """
        return self._over("iterations", _iterations_at, math.ceil)

    def _over(
        self,
        name: str,
        at: Callable[[Sweep, float | None], float],
        rounded: Callable[[float], float],
    ) -> pd.DataFrame:
        curves = [self._improvements(sweep, at) for sweep in self.sweeps]
        ends = [
            at(sweep, sweep.timeline.last)
            for sweep, curve in zip(self.sweeps, curves, strict=True)
            if curve
        ]
        rows = [
            {name: point}
            | {own: value_at(c, point) for own, c in zip(self.names, curves, strict=True)}
            for point in map(rounded, common_points(ends))
        ]
        return pd.DataFrame(rows, columns=[name, *self.names])

    def _improvements(
        self, sweep: Sweep, at: Callable[[Sweep, float | None], float]
    ) -> list[tuple[float, float]]:
        scores = [
            (at(sweep, row["ended"]), value)
            for row in sweep.timeline.validations
            if row["status"] == "validated"
            and (value := number(flatten(row["metrics"]).get(self.metric))) is not None
        ]
        return best_so_far(scores, self.mode)

    @cached_property
    def progress(self) -> pd.DataFrame:
        """Return when each sweep's best score has improved.

        One row per improvement, and one more for the end of each sweep that has a score:
        ``sweep``; ``driven_s`` and ``iterations``, as in :attr:`over_time` and
        :attr:`over_iterations`; ``best``.
        """
        rows: list[dict[str, Any]] = []
        for name, sweep in zip(self.names, self.sweeps, strict=True):
            by_time = self._improvements(sweep, lambda _, time: 0.0 if time is None else time)
            if by_time and sweep.timeline.last is not None:
                by_time.append((max(sweep.timeline.last, by_time[-1][0]), by_time[-1][1]))
            for time, best in by_time:
                points = {
                    "driven_s": _until(sweep, time),
                    "iterations": _iterations_at(sweep, time),
                }
                rows.append({"sweep": name, **points, "best": best})
        return pd.DataFrame(rows, columns=["sweep", "driven_s", "iterations", "best"])

    @cached_property
    def settings(self) -> pd.DataFrame:
        """Return the settings in which the sweeps differ, and no others.

        One row per ``setting``, and a column for each sweep; None where it has no such setting.
        They are those of its newest session: scheduler, searcher, validation, cluster, versions.
        """
        own = [settings_of(sweep.sessions[-1]) if sweep.sessions else {} for sweep in self.sweeps]
        return self._by_name("setting", differing(own))

    @cached_property
    def searched(self) -> pd.DataFrame:
        """Return where each sweep has searched, as text.

        One row per ``hyperparameter`` that differs between trials or sweeps, and a column for each
        sweep: a range, choices, or the only value; empty where it does not have it.
        """
        found = regions([(one.all_hyperparameters(), one.space) for one in self.sweeps])
        return self._by_name("hyperparameter", found)

    def _by_name(self, title: str, rows: dict[str, list[Any]]) -> pd.DataFrame:
        made = [
            {title: name, **dict(zip(self.names, values, strict=True))}
            for name, values in rows.items()
        ]
        return pd.DataFrame(made, columns=[title, *self.names], dtype=object)

    def __str__(self) -> str:
        return self.table.to_string(index=False)


def _until(sweep: Sweep, time: float | None) -> float:
    """Return for how many seconds a sweep had been driven by a time."""
    began = sweep.timeline.first
    if began is None or time is None:
        return 0.0
    return driven_s(time, began, sweep.timeline.breaks)


def _iterations_at(sweep: Sweep, time: float | None) -> float:
    """Return how many iterations a sweep had trained by a time."""
    return 0.0 if time is None else float(sweep.timeline.iterations_by(time))


def compare(
    sweeps: Sequence[Sweep | str | Path],
    *,
    metric: str | None = None,
    mode: str | None = None,
    names: Sequence[str] | None = None,
) -> SweepComparison:
    """Compare sweeps: how good, how fast, in what they differ, and where each has searched.

    Args:
        sweeps: Two or more: what :func:`tunekit.load` returns, or what it takes, a folder or URI.
        metric: The validated metric to compare by, as a flat name; by default the one that all of
            them are judged by.
        mode: ``"min"`` or ``"max"``; likewise.
        names: What each is called; by default as its folder.

    Raises:
        tunekit.ConfigError: If there are fewer than two, if one is no sweep, if they are judged by
            different metrics or modes and none is passed, if a sweep has not validated the metric,
            or if ``names`` are not one for each, all different.
        tunekit.JournalError: If a journal is damaged or of another version.
        OSError: If the storage fails.

    Example:
        >>> from tunekit.core.events import TrialAdded
        >>> sweeps = [
        ...     Sweep([TrialAdded(time=1e9, trial_id="a", config={"lr": lr})], path=f"/sweeps/{lr}")
        ...     for lr in (0.1, 0.2)
        ... ]
        >>> compare(sweeps, metric="accuracy", mode="max").searched
          hyperparameter  0.1  0.2
        0             lr  0.1  0.2
    """
    problems = Problems("tunekit.compare")
    given = [sweeps] if isinstance(sweeps, (str, os.PathLike, Sweep)) else list(sweeps)
    if len(given) < 2:
        problems.add(f"there are {len(given)} sweeps. Pass a list of two or more.")
    if names is not None and (len(names) != len(given) or len(set(names)) != len(given)):
        problems.add(
            f"names={list(names)!r} must be one for each of the {len(given)} sweeps, all "
            "different. Pass as many, or none."
        )
    problems.raise_any()
    read = [one if isinstance(one, Sweep) else load(one) for one in given]
    called = list(names) if names is not None else distinct_names([one.path for one in read])
    by, better_is = goal_of(
        [
            Compared(name, one.metric, one.mode, one.timeline.names)
            for name, one in zip(called, read, strict=True)
        ],
        metric,
        mode,
        problems,
    )
    problems.raise_any()
    return SweepComparison(by, better_is, called, read)
