"""The stopping criteria of a sweep on validated metrics, evaluated on validated results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ray.tune.experiment import Trial

from tunekit._ray.controller import Controller
from tunekit._ray.stoppers import ValidatedStopper
from tunekit.core.events import Event, TrialAdded
from tunekit.core.metrics import flatten
from tunekit.core.values import number
from tunekit.errors import TunekitError


class StoppingCriteria:
    """Take over from Tune the criteria of ``RunConfig(stop=...)`` on validated metrics.

    Tune evaluates reports, which lack these metrics or have training's values for them.

    Args:
        fail: Ends the sweep with an error.

    Example:
        >>> StoppingCriteria(fail=print).reached("a", {"accuracy": 0.9}, (), again=False)
        False
    """

    def __init__(self, fail: Callable[[TunekitError], None]):
        self._fail = fail
        # The least values at which trials stop, by trial and metric.
        self._least: dict[str, dict[str, float]] = {}
        self._stopper: ValidatedStopper | None = None
        # Each trial's criterion in the journal; None until it is read.
        self._recorded: dict[str, Mapping[str, Any]] | None = None
        # The number of validated metrics when criteria were last taken over.
        self._names = 0

    def attach(self, controller: Controller, validated: Callable[[], Collection[str]]) -> None:
        """Take over the stoppers of a sweep.

        Args:
            controller: The sweep.
            validated: Returns the metrics for which only validated values count.
        """
        self._stopper = controller.take_over_stopper(validated, self._fail)

    @property
    def by_scores(self) -> bool:
        """Return whether a score may stop a trial, even if its scheduler does not use it."""
        return bool(self._least) or (self._stopper is not None and self._stopper.by_metrics)

    def may_read(self, trial: Trial) -> bool:
        """Return whether any score of a trial may stop it, given its last report."""
        unknown = trial.stopping_criterion.keys() - flatten(trial.last_result).keys()
        return self.by_scores or bool(unknown)

    def restore(self, trial: Trial, events: Iterable[Event]) -> None:
        """Restore the original criterion of a trial of a restored sweep.

        Args:
            trial: The trial.
            events: The journal's events; empty for a new sweep.
        """
        if self._recorded is None:
            self._recorded = {e.trial_id: e.stop for e in events if isinstance(e, TrialAdded)}
        criterion = self._recorded.get(trial.trial_id)
        if criterion:
            trial.stopping_criterion = {**criterion, **trial.stopping_criterion}

    def take_over(self, trial: Trial, names: Collection[str]) -> None:
        """Take over from Tune a trial's criteria on the given metrics."""
        given = trial.stopping_criterion
        taken = {name: given[name] for name in given if name in names}
        if taken:
            self._least.setdefault(trial.trial_id, {}).update(taken)
            trial.stopping_criterion = {name: given[name] for name in given if name not in taken}
            trial.invalidate_json_state()

    def take_over_new(self, trials: Iterable[Trial], names: Collection[str]) -> None:
        """Take over from Tune the criteria on newly validated metrics."""
        if len(names) != self._names:
            self._names = len(names)
            for trial in trials:
                self.take_over(trial, names)

    def reached(
        self, trial_id: str, result: Mapping[str, Any], produced: Collection[str], *, again: bool
    ) -> bool:
        """Return whether a validated result ends its trial.

        A stopper gets each result once in any case, because it may count results.

        Args:
            trial_id: The trial.
            result: The result, flat.
            produced: The metrics that validation has produced.
            again: Whether it was already evaluated before the sweep was interrupted.
        """
        stops = self._stopper is not None and self._stopper.reached(
            trial_id, result, produced, again=again
        )
        least = self._least.get(trial_id, {})
        known = {name: number(result.get(name)) for name in least}
        return stops or any(own is not None and own >= least[name] for name, own in known.items())
