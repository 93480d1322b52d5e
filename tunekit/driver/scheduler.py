"""Run any Tune scheduler on validated results."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    HyperBandForBOHB,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator

from tunekit._ray.controller import Controller
from tunekit._ray.scheduler_kinds import innermost, traits_of
from tunekit._ray.tuner import innermost_searcher
from tunekit.config import ValidationConfig
from tunekit.core.events import TrialFailed, TrialRetried
from tunekit.core.problems import Problems
from tunekit.core.reconcile import Desired
from tunekit.driver.callback import ValidationCallback
from tunekit.errors import WiringError
from tunekit.scheduling.state import SchedulerState

# They fit a model to scores, including the numbers that stand for infeasible ones.
_FIT_VALUES = ("AxSearch", "BayesOptSearch", "HEBOSearch", "PB2")


def unwrapped(scheduler: Any) -> Any:
    """Return the scheduler inside a :class:`ValidatedScheduler`; any other is returned as is."""
    return scheduler.scheduler if isinstance(scheduler, ValidatedScheduler) else scheduler


class ValidatedScheduler(TrialScheduler):
    """Pass only validated results, in iteration order, to an unmodified Tune scheduler.

    A report, merged with its score, reaches your scheduler once its checkpoint is validated. Each
    is passed once, older iterations of a trial before newer ones, and the trial's end after its
    last score. A report without a validated checkpoint never reaches it.
    ``ValidationConfig(on_pending=...)`` sets what the trial does meanwhile.

    For your scheduler, each trial is at the iteration of its newest score: the scheduler pauses,
    stops, resumes and clones it there. So population based training clones exactly the checkpoint
    that it has ranked, with its hyperparameters, however far the donor has trained since.

    The sweep also needs a :class:`~tunekit.ValidationCallback`. ``TuneConfig(metric=...)`` and the
    scheduler's own metric may be one that only validation produces. Stopping criteria of
    ``RunConfig(stop=...)`` that read such a metric also get validated results.

    Args:
        scheduler: The scheduler; it is not changed.

    Raises:
        tunekit.errors.ConfigError: If ``scheduler`` is not a scheduler, or is already wrapped.

    Example:
        >>> from ray.tune.schedulers import ASHAScheduler
        >>> scheduler = ValidatedScheduler(ASHAScheduler(max_t=27, grace_period=1))
    """

    #: None, because Tune must not look for the metric in reports, which may lack it.
    metric = None

    def __init__(self, scheduler: TrialScheduler):
        problems = Problems("ValidatedScheduler")
        if isinstance(scheduler, ValidatedScheduler):
            problems.add("scheduler is already a ValidatedScheduler. Pass the scheduler inside it.")
        elif problems.instance(
            "scheduler", scheduler, TrialScheduler, "Pass a scheduler of ray.tune.schedulers."
        ) and isinstance(innermost(scheduler), ValidatedScheduler):
            problems.add(
                "scheduler has a ValidatedScheduler inside. Wrap the outer one only: "
                "ValidatedScheduler(ResourceChangingScheduler(scheduler))."
            )
        problems.raise_any()
        super().__init__()
        self.scheduler = scheduler
        self._state = SchedulerState(scheduler)
        self._proxies = self._state.proxies
        self._joined: ValidationCallback | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return your scheduler as it was passed; the rest is saved separately."""
        return {"scheduler": self.scheduler, "mode": self._state.mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore your scheduler; the rest is initialized again."""
        ValidatedScheduler.__init__(self, state["scheduler"])
        self._state.mode = state["mode"]

    def _join(self, tune_controller: Any) -> ValidationCallback:
        """Return the sweep's callback, after connecting to it at the first call."""
        if self._joined is None:
            controller = Controller(tune_controller)
            self._joined = self._validation_of(controller)
            self._joined.attach(controller, self._state)
        return self._joined

    def _validation_of(self, controller: Controller) -> ValidationCallback:
        """Return the sweep's callback, if the parts of the sweep fit together."""
        callbacks = [c for c in controller.callbacks if isinstance(c, ValidationCallback)]
        if len(callbacks) != 1:
            raise WiringError(
                f"ValidatedScheduler found {len(callbacks)} ValidationCallbacks among the "
                "sweep's callbacks; it needs one. Put "
                "tunekit.ValidationCallback(tunekit.ValidationConfig(fn=validate)) into "
                "RunConfig(callbacks=[...]), or use tunekit.Tuner."
            )
        problems = Problems("ValidatedScheduler")
        wrong_together(
            self.scheduler,
            callbacks[0].config,
            reuse_actors=controller.reuses_actors,
            search_alg=controller.search_alg,
            problems=problems,
        )
        problems.raise_any()
        return callbacks[0]

    # Before the sweep --------------------------------------------------------------------------

    @property
    def supports_buffered_results(self) -> bool:
        """Return False: a trial that waits for a score must not run ahead."""
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass ``TuneConfig``'s metric and mode to your scheduler."""
        self._state.mode = mode or self._state.mode
        return bool(self.scheduler.set_search_properties(metric, mode, **spec))

    def debug_string(self) -> str:
        """Return the summaries of your scheduler and of the validations."""
        text = self.scheduler.debug_string()
        if self._joined is None:
            return text
        return "\n".join([text, *self._joined.progress()])

    # While the sweep runs ----------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial, or one that is about to restart after a failure."""
        sweep, proxies = self._join(tune_controller), self._proxies
        before = proxies.by_id.get(trial.trial_id)
        restored = before is not None and before.real is None  # the saved scheduler knows it
        proxy = proxies.add(trial)
        if before is None:
            sweep.user_scheduler.add(proxy)
        elif not restored:
            sweep.emit(TrialRetried(trial_id=trial.trial_id))
            sweep.user_scheduler.restart(proxy)
            if proxy.phase is Desired.PAUSED:
                Controller(tune_controller).set_status(trial, Trial.PAUSED)
        sweep.adopt(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a trial failed; your scheduler is notified only if it failed for good."""
        sweep = self._join(tune_controller)
        sweep.validator.check_ray()
        sweep.emit(TrialFailed(trial_id=trial.trial_id))
        sweep.actions.stands_no_more(self._proxies.of(trial))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Return the decision on a report; a trial that may have to wait is held."""
        return self._join(tune_controller).actions.answer(self._proxies.of(trial), result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Record a trial's end; your scheduler is notified after the trial's last score."""
        self._join(tune_controller).ended(trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Record the end of a trial that was not running."""
        sweep, proxy = self._join(tune_controller), self._proxies.of(trial)
        # A trial that is stopped by hand while it waits is still ranked by its last score.
        stopped_by_hand = sweep.engine.record(trial.trial_id).stopped
        removed = not (stopped_by_hand and proxy.phase is Desired.RUNNING)
        sweep.ended(trial, removed=removed)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the next trial to start; trials that waited for a score come first."""
        sweep = self._join(tune_controller)
        ready = sweep.actions.first_ready() or sweep.next_trial.choose()
        controller = sweep.controller
        return None if controller is None or controller.is_full else ready


def wrong_together(
    scheduler: Any,
    config: ValidationConfig,
    *,
    reuse_actors: bool,
    search_alg: Any,
    problems: Problems,
) -> None:
    """Add a problem for each setting of a sweep that cannot be combined with its scheduler.

    Args:
        scheduler: The scheduler, not wrapped; other objects are ignored.
        config: The settings of the validations.
        reuse_actors: ``TuneConfig(reuse_actors=...)``.
        search_alg: ``TuneConfig(search_alg=...)``, as it was passed.
        problems: Where to add it.
    """
    decides = innermost(scheduler)
    name = type(decides).__name__
    for kind in (name, type(innermost_searcher(search_alg)).__name__) if config.constraints else ():
        if kind in _FIT_VALUES:
            problems.add(
                f"constraints need a scheduler and a searcher that rank scores, but {kind} fits a "
                "model to their values. Use PopulationBasedTraining or OptunaSearch, or leave "
                "constraints out."
            )
    if isinstance(decides, PopulationBasedTraining):
        if traits_of(decides).synchronous and config.on_pending == "continue":
            problems.add(
                f"{name}(synch=True) compares all trials at the same iteration, but "
                "on_pending='continue' lets them continue. Use on_pending='wait', or synch=False."
            )
        if search_alg is not None and not isinstance(search_alg, BasicVariantGenerator):
            problems.add(
                f"{name} chooses hyperparameters itself, and search_alg={search_alg!r} would, too. "
                "Leave search_alg out."
            )
    if isinstance(decides, HyperBandForBOHB) and not hasattr(
        innermost_searcher(search_alg), "on_pause"
    ):
        problems.add(
            f"{name} notifies its searcher when a trial pauses, but search_alg={search_alg!r} does "
            "not support that. Pass TuneConfig(search_alg=ray.tune.search.bohb.TuneBOHB()), or use "
            "HyperBandScheduler."
        )
    if isinstance(scheduler, ResourceChangingScheduler) and reuse_actors:
        problems.add(
            "ResourceChangingScheduler restarts trials to change their resources, but "
            "reuse_actors=True keeps their actors. Set TuneConfig(reuse_actors=False)."
        )
