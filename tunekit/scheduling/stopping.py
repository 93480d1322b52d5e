"""The stopping criteria of a sweep that read validated metrics, asked with validated results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.stoppers import ValidatedStopper
from tunekit.core.confidence import Interval
from tunekit.core.events import Event, TrialAdded
from tunekit.core.metrics import flatten
from tunekit.core.stopping import Criteria
from tunekit.errors import TunekitError

__all__ = ["StoppingCriteria"]


class StoppingCriteria:
    """Keeps what ``RunConfig(stop=...)`` says about validated metrics from Tune, and asks it.

    Tune looks at reports, which do not have these metrics, or have training's values of them.

    Args:
        fail: Ends the sweep with an error.

    Example:
        >>> StoppingCriteria(fail=print).reached("a", {"accuracy": 0.9}, (), again=False)
        False
    """

    def __init__(self, fail: Callable[[TunekitError], None]):
        self._fail = fail
        self._least = Criteria()
        self._stopper: ValidatedStopper | None = None
        # The criterion of each trial that the journal has, once that was looked at.
        self._recorded: dict[str, Mapping[str, Any]] | None = None
        # How many validated metrics were known when criteria were last taken over.
        self._names = 0

    def attach(self, controller: Controller, validated: Callable[[], Collection[str]]) -> None:
        """Take the stoppers of a sweep over.

        Args:
            controller: The sweep.
            validated: Returns the metrics of which only validated values count.
        """
        self._stopper = controller.take_over_stopper(validated, self._fail)

    @property
    def by_scores(self) -> bool:
        """Return whether a trial may be stopped by a score, whether or not its scheduler uses
        it."""
        return not self._least.empty or (self._stopper is not None and self._stopper.by_metrics)

    def may_read(self, trial: Trial) -> bool:
        """Return whether any score of a trial may stop it, as far as its last report shows."""
        unknown = trial.stopping_criterion.keys() - flatten(trial.last_result).keys()
        return self.by_scores or bool(unknown)

    def restore(self, trial: Trial, events: Iterable[Event]) -> None:
        """Give a trial of a restored sweep the criterion back that it had when it was added.

        Args:
            trial: The trial.
            events: The journal; nothing for a new sweep.
        """
        if self._recorded is None:
            self._recorded = {e.trial_id: e.stop for e in events if isinstance(e, TrialAdded)}
        criterion = self._recorded.get(trial.trial_id)
        if criterion:
            trial.stopping_criterion = {**criterion, **trial.stopping_criterion}

    def take_over(self, trial: Trial, names: Collection[str]) -> None:
        """Keep a trial's criteria on metrics of those names from Tune."""
        rest = self._least.take_over(trial.trial_id, trial.stopping_criterion, names)
        if len(rest) < len(trial.stopping_criterion):
            trial.stopping_criterion = rest
            trial.invalidate_json_state()

    def take_over_new(self, trials: Iterable[Trial], names: Collection[str]) -> None:
        """Keep criteria from Tune on metrics that validation has come to produce."""
        if len(names) != self._names:
            self._names = len(names)
            for trial in trials:
                self.take_over(trial, names)

    def reached(
        self, trial_id: str, result: Mapping[str, Any], produced: Collection[str], *, again: bool
    ) -> bool:
        """Return whether a validated result is to end its trial.

        A stopper is shown each result once, whatever it says: it may count them.

        Args:
            trial_id: The trial.
            result: The result, flat.
            produced: The metrics that validation has produced.
            again: Whether it was judged before the sweep was interrupted.
        """
        stops = self._stopper is not None and self._stopper.reached(
            trial_id, result, produced, again=again
        )
        return self._least.reached(trial_id, result) or stops

    def alike(self, trial_id: str, metric: str, interval: Interval) -> bool:
        """Return whether a trial ends, or does not, wherever in an interval a metric is.

        What a stopper that reads validated metrics would say is not known: it may count them.
        """
        if self._stopper is not None and self._stopper.by_metrics:
            return False
        return self._least.alike(trial_id, metric, interval)
