"""The results of a sweep whose winner was confirmed."""

from __future__ import annotations

from typing import Any

from ray import tune

from tunekit.core.confirmation import Confirmed

__all__ = ["ConfirmedResults"]


class ConfirmedResults(tune.ResultGrid):
    """A ``ray.tune.ResultGrid`` whose best result is that of the confirmed winner.

    Attributes:
        confirmation: Which checkpoint is the best, and how sure that is.

    Args:
        results: What Tune has returned.
        confirmation: What the confirmation has come to.
    """

    def __init__(self, results: tune.ResultGrid, confirmation: Confirmed):
        self.__dict__.update(results.__dict__)
        self.confirmation = confirmation

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Any:
        """Return the result of the trial whose checkpoint was confirmed to be the best.

        Its metrics are its last report with its newest validated values, as of every result. The
        checkpoint itself is ``tunekit.load(results.experiment_path).best().checkpoint``.

        Args:
            metric: The metric; by default the sweep's. By another one, Tune ranks.
            mode: ``"min"`` or ``"max"``; by default the sweep's. The other way, Tune ranks.
            scope: ``"last"`` or ``"all"``; for averages, Tune ranks.
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
