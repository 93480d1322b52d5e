"""The results of a sweep with validated metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.result import TRAINING_ITERATION

from tunekit._ray.tuner import goal_of
from tunekit.core.constraints import Constraint, violation
from tunekit.core.metrics import GENERATION, flatten
from tunekit.core.values import finite_number
from tunekit.errors import ConfigError
from tunekit.reading.load import load


class ValidatedResults(tune.ResultGrid):
    """A ``ray.tune.ResultGrid`` whose table shows every trial's newest validated metrics.

    A trial's last result may lack a score. Tune's own table shows only that result, without the
    validated metrics that ``Result.metrics`` has. Each iteration has one row in
    ``Result.metrics_dataframe``, that of its last run.

    Args:
        results: Tune's results.
        constraints: The constraints on scores.
        names: The metrics of validations, which are columns also in trials without a score.
    """

    def __init__(
        self,
        results: tune.ResultGrid,
        constraints: Sequence[Constraint] = (),
        names: Iterable[str] = (),
    ):
        self.__dict__.update(results.__dict__)
        self._constraints = constraints
        place = [GENERATION, TRAINING_ITERATION]
        for result in self:
            rows = result.metrics_dataframe
            if rows is not None and rows.columns.isin(place).sum() == len(place):
                # A trial that failed has repeated what it had not saved.
                rows = rows.drop_duplicates(place, keep="last", ignore_index=True)
                columns = dict.fromkeys([*rows.columns, *names])
                result.metrics_dataframe = rows.reindex(columns=list(columns))

    def _repr_html_(self) -> str:
        """Return the sweep for a notebook's cell."""
        html: str = load(self.experiment_path, self.filesystem)._repr_html_()
        return html

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Any:
        """Return the result of the trial that is best by a metric.

        As in every result, the metrics are the last report with the newest validated values; for
        the best checkpoint, use
        ``tunekit.load(results.experiment_path).best().checkpoint``.

        With constraints, a trial whose newest validated score satisfies them ranks before one whose
        score does not; of two that do not, the one with the smaller violation ranks first.

        Args:
            metric: The metric, by flat name; by default the sweep's.
            mode: ``"min"`` or ``"max"``; by default the sweep's.
            scope: As in ``ray.tune.ResultGrid``. With constraints, only ``"last"``.
            filter_nan_and_inf: As in ``ray.tune.ResultGrid``.

        Raises:
            RuntimeError: If Tune finds no best result.
            tunekit.errors.ConfigError: If there are constraints and another scope.
        """
        best = super().get_best_result(metric, mode, scope, filter_nan_and_inf)
        if not self._constraints:
            return best
        if scope != "last":
            raise ConfigError(
                "ResultGrid.get_best_result",
                [
                    f"scope={scope!r} ignores constraints. Leave it out, or use "
                    "tunekit.load(results.experiment_path).best()."
                ],
            )
        own_metric, own_mode = goal_of(self)
        name, better = metric or own_metric, mode or own_mode
        ranked = []
        for place, result in enumerate(self):
            metrics = flatten(result.metrics or {})
            value = finite_number(metrics.get(str(name)))
            if value is not None:
                broken = violation(metrics, self._constraints)
                ranked.append((broken, -value if better == "max" else value, place))
        return self[min(ranked)[2]] if ranked else best

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """Return one row for each trial: its ``Result.metrics`` and hyperparameters.

        Args:
            filter_metric: Show the row in which this metric was best instead, as Tune does: with
                the metrics of that iteration only.
            filter_mode: ``"min"`` or ``"max"``, together with ``filter_metric``.

        Returns:
            The table; ``tunekit/validated_at`` is the iteration whose checkpoint was
            validated.

        Raises:
            ValueError: If ``filter_mode`` is invalid, or is passed without ``filter_metric``.
        """
        table = super().get_dataframe(filter_metric, filter_mode)
        if filter_metric is not None or table.empty:
            return table
        newest = {one.metrics["trial_id"]: flatten(one.metrics) for one in self if one.metrics}
        rows = table.to_dict("records")
        for row in rows:
            own = newest.get(row["trial_id"], {})
            row.update({name: value for name, value in own.items() if _lacks(row, name)})
        return pd.DataFrame(rows)


def _lacks(row: dict[Any, Any], name: str) -> bool:
    value = row.get(name)
    return value is None or (isinstance(value, float) and value != value)
