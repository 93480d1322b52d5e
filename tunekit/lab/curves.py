"""The recorded curves of a sweep's trials, for a simulation to play back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tunekit.core.problems import Problems
from tunekit.core.values import number

#: The column with the trial of a row.
TRIAL = "trial"
_ITERATION = "training_iteration"


class Curves:
    """Each trial's reports and its checkpoints' scores, by iteration.

    A trial may be trained further than recorded: past the end of its curve, the last value holds.
    An iteration without a value takes the previous one.

    Args:
        rows: The rows of each trial, by iteration, from 1.
        order: The names of the trials; by default numbers, from 0.

    Example:
        >>> curves = Curves([{1: {"accuracy": 0.5}, 2: {"accuracy": 0.6}}, {1: {"accuracy": 0.4}}])
        >>> len(curves), curves.length
        (2, 2)
        >>> curves.at(0, 2), curves.at(1, 2), curves.is_recorded(1, 2)
        ({'accuracy': 0.6}, {'accuracy': 0.4}, False)
    """

    def __init__(
        self,
        rows: Sequence[Mapping[int, Mapping[str, Any]]],
        order: Sequence[Any] | None = None,
    ):
        self._known = rows
        self._rows = [_filled(known) for known in rows]
        self._last = [max(known) for known in self._rows]
        #: The names of the trials, in order.
        self.order = list(range(len(rows)) if order is None else order)
        #: The names of all metrics.
        self.names = {name for known in self._rows for row in known.values() for name in row}
        #: The length of the longest curve, in iterations.
        self.length = max(self._last, default=0)

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, curve: int, iteration: int) -> dict[str, Any]:
        """Return a trial's row at an iteration."""
        return dict(self._rows[curve][min(iteration, self._last[curve])])

    def is_recorded(self, curve: int, iteration: int, metric: str | None = None) -> bool:
        """Return whether a trial was trained that far, or scored there, when it was recorded."""
        if metric is None:
            return iteration <= self._last[curve]
        return number(self._known[curve].get(iteration, {}).get(metric)) is not None

    def scores(self, curve: int, metric: str) -> list[float]:
        """Return the numeric values recorded for a metric in a trial."""
        values = (number(row.get(metric)) for row in self._rows[curve].values())
        return [value for value in values if value is not None]

    def having(self, metric: str) -> Curves:
        """Return the curves of the trials that have a numeric value of a metric."""
        known = [n for n in range(len(self)) if self.scores(n, metric)]
        return Curves([self._known[n] for n in known], [self.order[n] for n in known])

    @classmethod
    def of(cls, table: pd.DataFrame) -> Curves:
        """Return the curves of a table with the columns ``trial`` and ``training_iteration``.

        Raises:
            tunekit.errors.ConfigError: If a column is missing, if there are no rows, or if an
                iteration is below 1.

        Example:
            >>> import pandas
            >>> table = {"trial": ["a", "a"], "training_iteration": [1, 2], "loss": [1.0, 0.5]}
            >>> Curves.of(pandas.DataFrame(table)).at(0, 2)
            {'loss': 0.5}
        """
        problems = Problems("tunekit.lab.simulate")
        for column in (TRIAL, _ITERATION):
            if column not in table.columns:
                problems.add(
                    f"curves has no column {column!r}, only {sorted(map(str, table.columns))}. "
                    f"Pass a DataFrame with {TRIAL!r}, {_ITERATION!r} and a column for each metric."
                )
        if not problems and table.empty:
            problems.add("curves has no rows. Pass at least one trial's.")
        problems.raise_any()
        rows: dict[Any, dict[int, dict[str, Any]]] = {}
        for record in table.to_dict("records"):
            trial, iteration = record.pop(TRIAL), int(record.pop(_ITERATION))
            if iteration < 1:
                problems.add(
                    f"curves has {_ITERATION}={iteration} for trial {trial!r}. Iterations start at "
                    "1."
                )
                problems.raise_any()
            known = {str(n): value for n, value in record.items() if value == value}  # not NaN
            rows.setdefault(trial, {})[iteration] = known
        return cls(list(rows.values()), list(rows))


def _filled(rows: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return a row for every iteration; missing values come from the previous one."""
    filled: dict[int, dict[str, Any]] = {}
    # Iterations before the first value get that value.
    known: dict[str, Any] = {}
    for iteration in sorted(rows, reverse=True):
        known.update(rows[iteration])
    for iteration in range(1, max(rows) + 1):
        known = {**known, **rows.get(iteration, {})}
        filled[iteration] = known
    return filled
