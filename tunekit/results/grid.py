"""The results of a sweep whose trials were validated, and of one whose winner was confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from ray import tune

from tunekit._ray.tuner import goal_of
from tunekit.core.confirmation import Confirmed
from tunekit.core.constraints import Constraint, violation
from tunekit.core.history import VALIDATED_ITERATION
from tunekit.core.metrics import flatten
from tunekit.core.values import number
from tunekit.errors import ConfigError

__all__ = ["ConfirmedResults", "ValidatedResults"]


class ValidatedResults(tune.ResultGrid):
    """A ``ray.tune.ResultGrid`` whose table shows every trial's newest validated metrics.

    A trial may report again after its last validated checkpoint. Tune's own table shows only that
    report, without the validated metrics that ``Result.metrics`` has.

    Args:
        results: Tune's results.
        constraints: What scores must satisfy.
    """

    def __init__(self, results: tune.ResultGrid, constraints: Sequence[Constraint] = ()):
        self.__dict__.update(results.__dict__)
        self._constraints = constraints

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Any:
        """Return the result of the trial that is best by a metric.

        With constraints, a trial whose newest validated score satisfies them ranks before one whose
        score does not; of two that do not, the one with the smaller violation ranks first.

        Args:
            metric: The metric, by flat name; by default the sweep's.
            mode: ``"min"`` or ``"max"``; by default the sweep's.
            scope: As in ``ray.tune.ResultGrid``. With constraints, only ``"last"``.
            filter_nan_and_inf: As in ``ray.tune.ResultGrid``.

        Raises:
            RuntimeError: If Tune finds no best result.
            tunekit.errors.ConfigError: If there are constraints, and another scope.
        """
        best = super().get_best_result(metric, mode, scope, filter_nan_and_inf)
        if not self._constraints:
            return best
        if scope != "last":
            raise ConfigError(
                "ResultGrid.get_best_result",
                [
                    f"scope={scope!r} does not go by constraints. Leave it out, or use "
                    "tunekit.load(results.experiment_path).best()."
                ],
            )
        own_metric, own_mode = goal_of(self)
        name, better = metric or own_metric, mode or own_mode
        found = []
        for place in range(len(self)):
            metrics = _metrics_of(self[place])
            value = number(metrics.get(str(name)))
            if value is not None:
                broken = violation(metrics, self._constraints)
                found.append((broken, -value if better == "max" else value, place))
        return self[min(found)[2]] if found else best

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """Return one row for each trial: its ``Result.metrics`` and hyperparameters.

        Args:
            filter_metric: Show the row in which this metric was best instead, as Tune does: with
                the metrics of that iteration only.
            filter_mode: ``"min"`` or ``"max"``, together with ``filter_metric``.

        Returns:
            The table; ``validated_iteration`` is the iteration that validated metrics belong to.

        Raises:
            ValueError: If ``filter_mode`` is invalid, or is passed without ``filter_metric``.
        """
        table = super().get_dataframe(filter_metric, filter_mode)
        if filter_metric is not None or table.empty:
            return table
        newest = {metrics["trial_id"]: metrics for metrics in map(_metrics_of, self) if metrics}
        rows = [
            _completed(row, newest.get(row["trial_id"], {})) for row in table.to_dict("records")
        ]
        return pd.DataFrame(rows)


def _metrics_of(result: Any) -> dict[str, Any]:
    return flatten(result.metrics or {})


def _completed(row: dict[str, Any], newest: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's last row, completed by newest metrics that it lacks."""
    lacking = {name: value for name, value in newest.items() if _is_missing(row.get(name))}
    if VALIDATED_ITERATION in newest:
        lacking[VALIDATED_ITERATION] = newest[VALIDATED_ITERATION]
    return {**row, **lacking}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


class ConfirmedResults(ValidatedResults):
    """Results whose best result is that of the confirmed winner.

    Attributes:
        confirmation: The winning checkpoint, with its confidence.

    Args:
        results: Tune's results.
        confirmation: The result of the confirmation.
        constraints: What scores must satisfy.
    """

    def __init__(
        self,
        results: tune.ResultGrid,
        confirmation: Confirmed,
        constraints: Sequence[Constraint] = (),
    ):
        super().__init__(results, constraints)
        self.confirmation = confirmation

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Any:
        """Return the result of the trial whose checkpoint was confirmed to be the best.

        As for every result, its metrics are the last report with the newest validated values. For
        the checkpoint itself, use ``tunekit.load(results.experiment_path).best().checkpoint``.

        Args:
            metric: The metric; by default the sweep's. Any other metric is ranked by Tune.
            mode: ``"min"`` or ``"max"``; by default the sweep's. The other mode is ranked by Tune.
            scope: ``"last"`` or ``"all"``; any other scope is ranked by Tune.
            filter_nan_and_inf: As in ``ray.tune.ResultGrid``.

        Raises:
            RuntimeError: If Tune finds no best result.
        """
        found = self.confirmation
        own = metric in (None, found.metric) and mode in (None, found.mode)
        if own and scope in ("last", "all"):
            for result in (self[n] for n in range(len(self))):
                if (result.metrics or {}).get("trial_id") == found.winner.trial_id:
                    return result
        return super().get_best_result(metric, mode, scope, filter_nan_and_inf)
