"""Run any Tune searcher on validated results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.result import DEFAULT_METRIC, DONE
from ray.tune.search import ConcurrencyLimiter, Searcher

from tunekit._ray.controller import Controller
from tunekit._ray.searchers import constrain
from tunekit.core.constraints import Constraint, standing_for, violation
from tunekit.core.problems import Problems
from tunekit.errors import WiringError

logger = logging.getLogger(__name__)


class ValidatedSearcher(Searcher):
    """Pass only validated results to an unmodified Tune searcher.

    The searcher gets each validated result once, in iteration order within a trial. After a trial's
    last validation, it gets the trial's completion with the newest validated result, or without a
    result if there is none, as for a trial that never reported.

    It needs a :class:`~tunekit.ValidatedScheduler` (around a ``FIFOScheduler()`` if you have none)
    and a :class:`~tunekit.ValidationCallback` in the same sweep. Put it inside a
    ``ConcurrencyLimiter``, which then limits how many trials train at once. But put it around a
    limiter with ``batch=True``, whose next batch waits for the scores of the previous one, and
    around a ``Repeater``, which averages scores.

    Args:
        searcher: The searcher; it is not changed.

    Raises:
        tunekit.errors.ConfigError: If ``searcher`` is not a searcher, is already wrapped, or is a
            ``ConcurrencyLimiter`` without ``batch=True``.

    Example:
        >>> from ray.tune.search.optuna import OptunaSearch
        >>> searcher = ValidatedSearcher(OptunaSearch(metric="accuracy", mode="max"))
    """

    #: None, because Tune must not look for the metric in reports, which may lack it.
    metric = None
    mode = None

    def __init__(self, searcher: Searcher):
        problems = Problems("ValidatedSearcher")
        if isinstance(searcher, ValidatedSearcher):
            problems.add("searcher is already a ValidatedSearcher. Pass the searcher inside it.")
        elif isinstance(searcher, ConcurrencyLimiter) and not searcher.batch:
            problems.add(
                "searcher is a ConcurrencyLimiter, which would count a trial until its last score. "
                "Wrap the searcher inside it: "
                "ConcurrencyLimiter(ValidatedSearcher(searcher), max_concurrent)."
            )
        else:
            problems.instance("searcher", searcher, Searcher, "Pass a searcher of ray.tune.search.")
        problems.raise_any()
        super().__init__()
        # Tune looks for a nested searcher under this name.
        self.searcher = searcher
        self._refresh: Callable[[], None] | None = None
        self._constraints: Sequence[Constraint] = ()
        self._completed: set[str] = set()
        self._final: dict[str, Mapping[str, Any] | None] = {}

    @classmethod
    def within(cls, controller: Controller) -> ValidatedSearcher | None:
        """Return the ValidatedSearcher in a sweep's search algorithm, if any."""
        found = getattr(controller.search_alg, "searcher", None)
        while found is not None and not isinstance(found, cls):
            found = getattr(found, "searcher", None)
        return found

    @property
    def objectives(self) -> dict[str, str | None]:
        """Return the metrics that your searcher learns from, each with its mode."""
        metric, mode = self._innermost.metric, self._innermost.mode
        names = metric if isinstance(metric, list) else [metric]
        modes = mode if isinstance(mode, list) else [mode] * len(names)
        return {
            name: better
            for name, better in zip(names, modes, strict=True)
            if isinstance(name, str) and name != DEFAULT_METRIC
        }

    @property
    def _innermost(self) -> Any:
        innermost = self.searcher
        while isinstance(getattr(innermost, "searcher", None), Searcher):
            innermost = innermost.searcher  # a wrapper may have a copy of an unset metric
        return innermost

    def attach(self, refresh: Callable[[], None], constraints: Sequence[Constraint]) -> None:
        """Connect it with a sweep.

        Args:
            refresh: Polls the sweep's validations.
            constraints: The constraints on scores.
        """
        self._refresh, self._constraints = refresh, constraints

    # Called by Tune ----------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Pass ``TuneConfig``'s metric and mode, and the search space, to your searcher."""
        return bool(self.searcher.set_search_properties(metric, mode, config, **spec))

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Pass the limit to your searcher; the size of a batch is left unchanged."""
        if isinstance(self.searcher, ConcurrencyLimiter):
            return False
        return bool(self.searcher.set_max_concurrency(max_concurrent))

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return your searcher's next configuration, after delivering all finished validations."""
        if self._refresh is not None:
            self._refresh()
        return self.searcher.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Ignore a report, because your searcher gets validated results only."""
        if self._refresh is None:
            raise WiringError(
                "ValidatedSearcher was given to a sweep without a ValidatedScheduler. Pass "
                "TuneConfig(scheduler=tunekit.ValidatedScheduler(FIFOScheduler())), or use "
                "tunekit.Tuner."
            )

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record a trial's end; your searcher gets it after the trial's last score."""
        if error:
            self._final.pop(trial_id, None)
            self.searcher.on_trial_complete(trial_id, result=None, error=True)
            return
        self._completed.add(trial_id)
        self._complete_if_both(trial_id)

    def on_pause(self, trial_id: str) -> None:
        """Forward a pause to a searcher that handles pauses (BOHB)."""
        if hasattr(self.searcher, "on_pause"):
            self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Forward a resumption to a searcher that handles pauses (BOHB)."""
        if hasattr(self.searcher, "on_unpause"):
            self.searcher.on_unpause(trial_id)

    def add_evaluated_point(self, *args: Any, **kwargs: Any) -> None:
        """Pass a point that was evaluated elsewhere to your searcher."""
        self.searcher.add_evaluated_point(*args, **kwargs)

    # Called with validated results -------------------------------------------------------------

    def receive(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass a validated result to your searcher."""
        self.searcher.on_trial_result(trial_id, {**self._told(trial_id, result), DONE: False})

    def finish(self, trial_id: str, result: Mapping[str, Any] | None) -> None:
        """Record a trial's newest validated result, after its last validation has ended."""
        self._final[trial_id] = result
        self._complete_if_both(trial_id)

    def _told(self, trial_id: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result for your searcher; Optuna's may handle constraints itself."""
        broken = [violation(result, [one]) for one in self._constraints]
        if broken and constrain(self._innermost, trial_id, broken):
            return result
        return standing_for(result, self.objectives, self._constraints)

    def _complete_if_both(self, trial_id: str) -> None:
        """Complete a trial once both it and its last validation have ended.

        Tune notifies the scheduler of a trial's end before the searcher.
        """
        if trial_id in self._completed and trial_id in self._final:
            self._completed.discard(trial_id)
            result = self._final.pop(trial_id)
            final = None if result is None else {**self._told(trial_id, result), DONE: True}
            self.searcher.on_trial_complete(trial_id, result=final, error=False)

    # Saving ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what Tune saves in addition to your searcher's own state."""
        return {"completed": self._completed, "final": self._final}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what Tune restores in addition to your searcher's own state."""
        self._completed, self._final = state["completed"], state["final"]

    def save(self, checkpoint_path: str) -> None:
        """Save your searcher."""
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore your searcher."""
        self.searcher.restore(checkpoint_path)
