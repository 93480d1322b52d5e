"""Compare several sweeps side by side, as tables.

Sweeps are compared at points that all of them have reached, because it would be unfair to compare
scores that one of them found with more time. The score at a point is the incumbent: the best score
that had arrived by then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from tunekit.core.metric_names import listed, meant
from tunekit.core.metrics import flatten
from tunekit.core.parameters import parameters_of
from tunekit.core.problems import Problems
from tunekit.core.ranking import best_scored
from tunekit.core.timeline import better
from tunekit.core.values import number, same
from tunekit.core.words import setting
from tunekit.errors import MetricNotFoundError
from tunekit.reading.sweep import Sweep, load

#: The number of points at which sweeps are compared.
POINTS = 4

# The items of a session's first line that are not settings.
_NO_SETTINGS = (
    "after",
    "begins",
    "follows",
    "journal",
    "judged",
    "mode",
    "n",
    "space",
    "time",
    "version",
)
# Amounts that always differ, and values that a scheduler tracks or derives from its settings.
_NOISE = frozenset(
    {"counter", "memory", "metric", "metric_op", "mode", "num_stopped", "object_store_memory"}
    | {"rungs"}
)


@dataclass(frozen=True)
class SweepComparison:
    """Compare several sweeps side by side; returned by :func:`tunekit.lab.compare`.

    Each table is a ``pandas.DataFrame``, built on first access.

    Args:
        metric: The validated metric to compare by, as a flat name.
        mode: ``"min"`` or ``"max"``.
        names: The name of each sweep.
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
          ``best_trial``, ``best_iteration``: the trial and iteration of that score;
        - ``trials``, ``stopped``, ``failed``: the number of trials, of trials that the scheduler
          stopped, and of failed trials; ``iterations``: how many were trained, counting every run;
        - ``validations``: how many ended with a score;
        - ``driven_s``: seconds from the sweep's start to its last sign of life, without breaks
          between its sessions; ``trained_s``, ``validated_s``: the total seconds of training and
          validation.
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
            "stopped": sum(trial.stopped for trial in trials),
            "failed": sum(trial.status == "error" for trial in trials),
            "iterations": summary["iterations"],
            "validations": summary["validations"].get("validated", 0),
            "driven_s": _driven_s(sweep, sweep.timeline.last),
            "trained_s": summary["trained_s"],
            "validated_s": summary["validations_ran_s"],
        }

    def _best(self, sweep: Sweep) -> dict[str, Any]:
        try:
            trial, best = best_scored(
                sweep.timeline, sweep.timeline.trials, self.metric, self.mode, "best"
            )
        except MetricNotFoundError:
            nothing = dict.fromkeys(("best", "low", "high"), math.nan)
            return {**nothing, "best_trial": None, "best_iteration": pd.NA}
        known = flatten(best.metrics)
        value, low, high = (
            number(known.get(f"{self.metric}{end}")) for end in ("", "_low", "_high")
        )
        within = None not in (low, value, high) and low <= value <= high  # type: ignore[operator]
        return {
            "best": value,
            "low": low if within else math.nan,
            "high": high if within else math.nan,
            "best_trial": trial,
            "best_iteration": best.iteration,
        }

    @cached_property
    def over_time(self) -> pd.DataFrame:
        """Return the best scores after the same time.

        One row for each quarter of the shortest sweep: ``driven_s``, the seconds that each sweep
        had run by then, without breaks, and for each sweep its best score by then.
        """
        return self._over("driven_s", lambda point: point)

    @cached_property
    def over_iterations(self) -> pd.DataFrame:
        """Return the best scores after the same number of training iterations.

        Rows are spaced as in :attr:`over_time`: ``iterations``, the total of a sweep's trials,
        counting every run, and for each sweep its best score by then. For sweeps on different
        machines, this is more meaningful than time.
        """
        return self._over("iterations", math.ceil)

    def _over(self, name: str, rounded: Callable[[float], float]) -> pd.DataFrame:
        known = dict(iter(self.progress.groupby("sweep")))
        shortest = min((rows[name].max() for rows in known.values()), default=0.0)
        parts = range(1, POINTS + 1) if shortest > 0 else ()
        rows = []
        for point in (rounded(shortest * n / POINTS) for n in parts):
            row = {name: point, **dict.fromkeys(self.names, math.nan)}
            for own, improved in known.items():
                there = improved[improved[name] <= point]["best"]
                row[str(own)] = there.iloc[-1] if len(there) else math.nan
            rows.append(row)
        return pd.DataFrame(rows, columns=[name, *self.names])

    @cached_property
    def progress(self) -> pd.DataFrame:
        """Return the times at which each sweep's best score improved.

        One row per improvement, and one more for the end of each sweep that has a score:
        ``sweep``; ``driven_s`` and ``iterations``, as in :attr:`over_time` and
        :attr:`over_iterations`; ``best``.
        """
        rows: list[dict[str, Any]] = []
        for name, sweep in zip(self.names, self.sweeps, strict=True):
            improved = self._improvements(sweep)
            if improved:
                last = max(sweep.timeline.last or 0.0, improved[-1][0])
                improved.append((last, improved[-1][1]))
            for time, best in improved:
                iterations = sweep.timeline.iterations_by(time)
                row = {"driven_s": _driven_s(sweep, time), "iterations": iterations, "best": best}
                rows.append({"sweep": name, **row})
        return pd.DataFrame(rows, columns=["sweep", "driven_s", "iterations", "best"])

    def _improvements(self, sweep: Sweep) -> list[tuple[float, float]]:
        """Return the time and the value of each improvement of the best score."""
        ended = (row for row in sweep.timeline.validations if row["status"] == "validated")
        found: list[tuple[float, float]] = []
        for row in sorted(ended, key=lambda row: row["ended"]):
            value = number(flatten(row["metrics"]).get(self.metric))
            if value is not None and (not found or better(self.mode, value, found[-1][1])):
                found.append((row["ended"], value))
        return found

    @cached_property
    def settings(self) -> pd.DataFrame:
        """Return the settings in which the sweeps differ.

        One row per ``setting``, and a column for each sweep; None if it has no such setting.
        Settings are those of the newest session: scheduler, searcher, validation, cluster,
        versions.
        """
        own = [_settings_of(sweep.newest_session) for sweep in self.sweeps]
        return self._by_name("setting", _differing(own))

    @cached_property
    def searched(self) -> pd.DataFrame:
        """Return the region that each sweep has searched, as text.

        One row per ``hyperparameter`` that differs between trials or sweeps, and a column for each
        sweep: a range, choices, or the only value; empty if the sweep does not have it.
        """
        found = _regions([(one.all_hyperparameters(), one.space) for one in self.sweeps])
        return self._by_name("hyperparameter", found)

    def _by_name(self, title: str, rows: dict[str, list[Any]]) -> pd.DataFrame:
        made = [
            {title: name, **dict(zip(self.names, values, strict=True))}
            for name, values in rows.items()
        ]
        return pd.DataFrame(made, columns=[title, *self.names], dtype=object)

    def __str__(self) -> str:
        return self.table.to_string(index=False)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, with None for missing values."""
    known = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]


def _driven_s(sweep: Sweep, time: float | None) -> float:
    """Return how many seconds a sweep had run by a time, without breaks."""
    began = sweep.timeline.first
    if began is None or time is None:
        return 0.0
    lost = (max(0.0, min(until, time) - since) for since, until in sweep.timeline.breaks)
    return max(0.0, time - began - sum(lost))


def compare(
    sweeps: Sequence[Sweep | str | Path],
    *,
    metric: str | None = None,
    mode: str | None = None,
    names: Sequence[str] | None = None,
) -> SweepComparison:
    """Compare sweeps: their scores and speed, their settings, and the regions they searched.

    Args:
        sweeps: Two or more sweeps, as returned by :func:`tunekit.load`, or their folders or URIs.
        metric: The validated metric to compare by, as a flat name; by default their common
            objective.
        mode: ``"min"`` or ``"max"``; likewise.
        names: The name of each sweep; by default that of its folder.

    Raises:
        tunekit.errors.ConfigError: If there are fewer than two sweeps, if one is not a sweep, if
            their objectives differ and none is passed, if a sweep has not validated the metric, or
            if ``names`` does not have a different name for each.
        tunekit.errors.JournalError: If a journal is damaged or of another version.
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
    problems = Problems("tunekit.lab.compare")
    given = [sweeps] if isinstance(sweeps, (str, os.PathLike, Sweep)) else list(sweeps)
    if len(given) < 2:
        problems.add(f"there are {len(given)} sweeps. Pass a list of two or more.")
    if names is not None and (len(names) != len(given) or len(set(names)) != len(given)):
        problems.add(
            f"names={list(names)!r} must have a different name for each of the {len(given)} "
            "sweeps. Pass as many, or none."
        )
    problems.raise_any()
    read = [one if isinstance(one, Sweep) else load(one) for one in given]
    called = list(names) if names is not None else distinct_names([one.path for one in read])
    by, better_is = _goal_of(dict(zip(called, read, strict=True)), metric, mode, problems)
    problems.raise_any()
    return SweepComparison(by, better_is, called, read)


def _goal_of(
    sweeps: Mapping[str, Sweep], metric: str | None, mode: str | None, problems: Problems
) -> tuple[str, str]:
    """Return the metric and the mode by which sweeps are compared; add any problems."""
    if mode is not None:
        problems.choice("mode", mode, ["min", "max"])
    metrics = {one.metric for one in sweeps.values()}
    scored = {name: one.timeline.names for name, one in sweeps.items() if one.timeline.names}
    common = sorted(set.intersection(*map(set, scored.values()))) if scored else []
    if metric is None and (len(metrics) > 1 or metrics == {None}):
        told = ", ".join(
            f"{name!r} by {'no single one' if one.metric is None else repr(one.metric)}"
            for name, one in sweeps.items()
        )
        has = f" All of them have validated {listed(common)}." if common else ""
        problems.add(f"the sweeps rank by different metrics: {told}. Pass metric= and mode=.{has}")
        return "", ""
    by = metric if metric is not None else next(iter(metrics), None)
    lacking = [name for name, names in scored.items() if by not in names]
    if metric is not None and lacking:
        near = meant(metric, common)
        problems.add(
            f"metric={metric!r} has not been validated in {', '.join(map(repr, lacking))}. "
            f"{f'Did you mean {near!r}? ' if near else ''}Pass one that all sweeps have: "
            f"{listed(common, [metric])}."
        )
    modes = {one.mode for one in sweeps.values() if one.metric == by} - {None}
    if mode is None and len(modes) > 1:
        told = ", ".join(f"{one.mode!r} in {name!r}" for name, one in sweeps.items())
        problems.add(
            f"mode is missing: the sweeps rank by {by!r} with different modes: {told}. Pass "
            "mode='min' or mode='max'."
        )
    elif mode is None and not modes:
        problems.add(
            f"mode is missing, and no sweep ranks by {by!r}. Pass mode='min' or mode='max'."
        )
    return str(by), mode or next(iter(sorted(filter(None, modes))), "")


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return names of sweeps: the shortest ends of their paths that distinguish them.

    Example:
        >>> distinct_names(["/results/asha", "/results/pbt"])
        ['asha', 'pbt']
        >>> distinct_names(["/may/digits", "/june/digits", "/june/digits"])
        ['may/digits', 'june/digits', 'june/digits (2)']
    """
    parts = [path.rstrip("/").split("/") for path in paths]
    names: list[str] = []
    for most in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(own[-most:]) for own in parts]
        if len(set(names)) == len(set(paths)):
            break
    found = []
    for at, name in enumerate(names):
        again = names[:at].count(name)
        found.append(f"{name} ({again + 1})" if again else name)
    return found


# Differences -----------------------------------------------------------------------------------


def _settings_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a session by flat name, as its journal records them.

    Example:
        >>> _settings_of({"time": 1.0, "ray": "2.60", "scheduler": {
        ...     "type": "ASHA", "settings": {"max_t": 9}, "rungs": [1, 3]}})
        {'ray': '2.60', 'scheduler': 'ASHA', 'scheduler/max_t': 9}
    """
    known = {name: value for name, value in session.items() if name not in _NO_SETTINGS}
    found = {}
    for name, value in flatten(known).items():
        if name.rsplit("/", 1)[-1] not in _NOISE and value not in (None, {}):
            found[name.replace("/settings/", "/").removesuffix("/type")] = value
    return found


def _differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings in which sweeps differ: one value for each sweep, None if it has none.

    Example:
        >>> _differing([{"max_t": 9, "seed": 1}, {"max_t": 27, "seed": 1}, {"seed": 1}])
        {'max_t': [9, 27, None]}
    """
    names = dict.fromkeys(name for one in settings for name in one)
    found = {}
    for name in names:
        values = [one.get(name) for one in settings]
        if not all(same(value, values[0]) for value in values):
            found[name] = values
    return found


def _regions(
    sweeps: Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Mapping[str, Any]]]],
) -> dict[str, list[str]]:
    """Return the region that each sweep has searched: by hyperparameter, one text for each sweep.

    Hyperparameters with the same value in all trials of all sweeps are left out.

    Args:
        sweeps: For each sweep, the hyperparameters of its trials by flat name, and its recorded
            space, as for :func:`~tunekit.core.parameters.parameters_of`.

    Example:
        >>> wide = [{"lr": 0.01, "epochs": 9}, {"lr": 0.1, "epochs": 9}]
        >>> _regions([(wide, {}), ([{"lr": 0.1, "epochs": 27}], {})])
        {'lr': ['0.01 to 0.1', '0.1'], 'epochs': ['9', '27']}
    """
    told = []
    for configs, space in sweeps:
        searched = parameters_of(configs, space) if len(configs) > 1 or space else {}
        own = {name: str(one) for name, one in searched.items()}
        for config in configs:
            for name, value in config.items():
                own.setdefault(name, setting(value))
        told.append((own, set(searched)))
    names = dict.fromkeys(name for own, _ in told for name in own)
    found = {}
    for name in names:
        values = [own.get(name, "") for own, _ in told]
        if len(set(values)) > 1 or any(name in searched for _, searched in told):
            found[name] = values
    return found
